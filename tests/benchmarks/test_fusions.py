# SPDX-License-Identifier: Apache-2.0
"""Fused epilogues in torch and in cutegemm: every contender is right, and what is wrong is refused."""

from dataclasses import replace

import pytest
import torch

from benchmarks import fusions
from benchmarks.correctness import WrongResult
from benchmarks.timing import Contender
from tests.support.fused_cases import OF, SMALL

CONTENDERS = [(case, name) for case in SMALL for name in fusions.names(case)]


def label(value) -> str:
    """The name of a parameter."""
    return value.epilogue if hasattr(value, "epilogue") else str(value)


@pytest.mark.parametrize(("case", "name"), CONTENDERS, ids=label)
def test_contender_is_right(case, name):
    """Every contender computes its formula on both input sets, in the outputs' types and shapes."""
    contender = fusions.make(name, case, lambda function: function)
    for x in fusions.make_sets(case, "cpu", 2):
        fusions.check(contender, case, x)
        d, *reductions = x.results[name]
        plain = name in fusions.WITHOUT
        assert d.shape == (case.m, case.n // 2 if case.epilogue == "swiglu" and not plain else case.n)
        fp8 = case.epilogue == "bias_quantize_fp8" and not plain
        assert d.dtype == (torch.float8_e4m3fn if fp8 else torch.bfloat16)
        assert [r.shape for r in reductions] == [()] * fp8


def test_only_cutegemm_names_its_plan():
    """A fused plan's label has its launches and tile; torch tells none."""
    case = OF["bias_quantize_fp8"]
    ours = fusions.make("cutegemm", replace(case, m=4096, n=14336, k=4096))
    assert ours.plan.startswith("gemm -> finish amax, warp_specialized, tile ")
    assert fusions.make("eager", case).plan is None


def test_planned_problem_reads_c():
    """The label of the linear combination is of a plan that reads C, the plain contender's of one without."""
    case = OF["linear_combination"]
    assert fusions._gemm(case, fused=True).plan.problem.c is not None
    assert fusions._gemm(case, fused=False).plan.problem.c is None


def _without(case, name):
    """The case's formula computed as if what it reads called `name` were zero."""

    def solve(x):
        return fusions.FUSIONS[case.epilogue].formula(
            x.plain.a, x.plain.b.T, **(x.tensors | {name: torch.zeros_like(x.tensors[name])})
        )

    return solve


def _swapped(x):
    up, gate = (x.plain.a @ x.plain.b).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _amax_of_d(x):
    d, amax = fusions.bias_quantize_fp8(x.plain.a, x.plain.b.T, **x.tensors)
    return d, amax * 1.05


def _spoiled(at, by):
    """The right D with `by` added at an index, or at the smallest element of row 0 where that is None."""

    def solve(x):
        d = fusions.product(x.plain.a, x.plain.b.T)
        d[at if at is not None else (0, d[0].abs().argmin())] += by
        return d

    return solve


WRONG = [
    ("bias_gelu_residual", _without(OF["bias_gelu_residual"], "bias"), "of rows of D"),
    ("bias_gelu_residual", _without(OF["bias_gelu_residual"], "residual"), "of rows of D"),
    ("linear_combination", _without(OF["linear_combination"], "c"), "of rows of D"),
    ("swiglu", _swapped, "of rows of D"),
    ("bias_quantize_fp8", _without(OF["bias_quantize_fp8"], "bias"), "of rows of D"),
    ("bias_quantize_fp8", _amax_of_d, "of amax"),
    ("swiglu", lambda x: x.out["d"], "not finite"),
    ("bias_quantize_fp8", lambda x: tuple(x.out.values()), "not finite"),
]


@pytest.mark.parametrize(("name", "solve", "message"), WRONG)
def test_wrong_result_is_refused(name, solve, message):
    """An input left out, halves swapped, a wrong reduction and an unwritten D each fail the check."""
    case = OF[name]

    def call(x):
        outputs = solve(x)
        x.results["eager"] = outputs if isinstance(outputs, tuple) else (outputs,)

    (x,) = fusions.make_sets(case, "cpu", 1)
    with pytest.raises(WrongResult, match=message):
        fusions.check(Contender("eager", call), case, x)


@pytest.mark.parametrize(
    ("solve", "message"),
    [
        (_spoiled((slice(None), 1), 1.0), "Frobenius error .* of rows"),
        (_spoiled((1, slice(None)), 1.0), "Frobenius error .* of columns"),
        (_spoiled(None, 0.1), "an element of rows of D"),
        (lambda x: fusions.bias_gelu_residual(x.plain.a, x.plain.b.T, **x.tensors), "Frobenius error"),
    ],
    ids=["column", "row", "element", "epilogue"],
)
def test_plain_contender_is_held_to_the_product(solve, message):
    """One wrong column, row or element fails, sampled or not the other way, and so does an applied epilogue."""
    case = OF["bias_gelu_residual"]
    (x,) = fusions.make_sets(case, "cpu", 1)
    contender = Contender("cutegemm_plain", lambda x: x.results.update(cutegemm_plain=(solve(x),)))
    with pytest.raises(WrongResult, match=message):
        fusions.check(contender, case, x)


def test_bound_counts_the_roundings():
    """Eager SwiGLU rounds gate, up and silu before D, so that it may err by more than what rounds D alone."""
    case = OF["swiglu"]
    (x,) = fusions.make_sets(case, "cpu", 1)

    def coarse(name):
        def call(x):
            gate, up = (x.plain.a.float() @ x.plain.b.float()).chunk(2, -1)
            x.results[name] = ((1.005 * torch.nn.functional.silu(gate) * up).to(torch.bfloat16),)

        return Contender(name, call)

    fusions.check(coarse("eager"), case, x)
    with pytest.raises(WrongResult, match="must be at most 3.91e-03"):
        fusions.check(coarse("cutegemm"), case, x)
    assert fusions._bound(torch.bfloat16, torch.bfloat16, 4) == 2 * fusions.BOUND[torch.bfloat16]
    assert fusions._bound(fusions.E4M3, torch.bfloat16, 1) == fusions.BOUND[fusions.E4M3]


def test_operands_keep_activations_where_they_bend():
    """A @ B has variance 1 whatever K, so gelu and silu are no relu and e4m3 does not saturate."""
    for case in (OF["swiglu"], replace(OF["bias_quantize_fp8"], k=1024)):
        for x in fusions.make_sets(case, "cpu", 2):
            assert (x.plain.a @ x.plain.b).float().std() == pytest.approx(1, rel=0.1)
    d, _ = fusions.bias_quantize_fp8(x.plain.a, x.plain.b.T, **x.tensors)
    assert 0.3 * fusions.E4M3_MAX < d.float().abs().max() < fusions.E4M3_MAX


def test_sets_differ():
    """No two sets share values: a launch on one finds nothing of another's."""
    first, second = fusions.make_sets(OF["bias_gelu_residual"], "cpu", 2)
    assert not torch.equal(first.plain.a, second.plain.a)
    assert all(not torch.equal(first.tensors[name], second.tensors[name]) for name in ("bias", "residual"))
