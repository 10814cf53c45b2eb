# SPDX-License-Identifier: Apache-2.0
"""The error bound of the support package: results as inexact as a GPU's keep it, wrong results do not."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutegemm import epilogue as epi
from cutegemm.running.numerics import reference
from tests.support import epilogue_bounds
from tests.support.epilogues import assert_outputs_close, bound, graphs, random_inputs

TYPES = {
    None: torch.bfloat16,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def inexact(patch, approximate, generator):
    """Make every function of the reference err, up to its own bound, in a random direction."""
    own = {**epilogue_bounds.OWN, **(epilogue_bounds.APPROXIMATE if approximate else {})}
    for op, bound_of in own.items():

        def function(x, exact=reference.OPERATIONS[op], bound_of=bound_of):
            v = exact(x)
            noise = 0.99 * (2 * torch.rand(v.shape, generator=generator) - 1)
            error = torch.where((v == 0) | (x.abs() > 1e30), 0.0, bound_of(x, v))
            return torch.where(v.isfinite(), v + noise * error, v)

        patch.setitem(reference.OPERATIONS, op, function)


def problem(graph, batched, generator):
    """Operands and inputs for a small D."""
    m, n, k = 5, 6, 7
    a = torch.randn((2, m, k) if batched else (m, k), generator=generator).bfloat16()
    b = torch.randn((k, n), generator=generator).bfloat16()
    shape = (*a.shape[:-1], n // 2 if graph.gated else n)
    return a, b, random_inputs(graph, shape, generator, (torch.float32, torch.bfloat16))


def rounded(graph, out):
    """Results in their types, as a kernel stores them."""
    types = {x.name: TYPES[x.dtype] if x.kind == "store" else torch.float32 for x in graph.outputs}
    return {name: reference.round_to(x, types[name]) for name, x in out.items()}


@given(graphs(gated="any"), st.integers(0, 99), st.booleans(), st.booleans())
def test_results_as_inexact_as_a_gpus_keep_the_bound(graph, seed, batched, approximate):
    """fp32, every function off by up to its own error: the bound covers what that grows to."""
    generator = torch.Generator().manual_seed(seed)
    a, b, inputs = problem(graph, batched, generator)
    with pytest.MonkeyPatch.context() as patch:
        inexact(patch, approximate, generator)
        out = reference.evaluate(graph, a, b, inputs, torch.float32)
    assert_outputs_close(rounded(graph, out), graph, a, b, inputs, approximate)


@pytest.mark.parametrize(
    "function",
    [
        lambda t, r: t, lambda t, r: -t, lambda t, r: abs(t), lambda t, r: 50 * t, lambda t, r: t * r,
        lambda t, r: r * t, lambda t, r: t / r, lambda t, r: r / (t + 2), lambda t, r: r - t, lambda t, r: t + r,
        lambda t, r: epi.exp(9 * t), lambda t, r: epi.log(t + 2), lambda t, r: epi.sqrt(t + 2),
        lambda t, r: epi.rsqrt(t + 2), lambda t, r: epi.erf(t), lambda t, r: epi.max(t, -5),
        lambda t, r: epi.min(r, t), lambda t, r: epi.where(t > -5, t, r), lambda t, r: epi.where(r < -5, t, 2 * t),
    ],
)  # fmt: skip
@pytest.mark.parametrize("sign", [1, -1])
def test_an_operands_error_is_carried_through_every_operation(function, sign):
    """tanh off by nearly what it may keeps the bound of what is computed from it, off by four times breaks it."""

    @epi.define
    def graph(acc, *, row: epi.Row):
        return function(epi.tanh(acc), row) + 0 * row

    a, b, row = torch.tensor([[0.5], [-0.75], [1.5]]), torch.ones(1, 2), torch.tensor([40.0, 97.0])
    exact = reference.OPERATIONS["tanh"]
    for share, kept in ((0.98, True), (4.0, False)):
        with pytest.MonkeyPatch.context() as patch:
            factor = 1 + sign * share * epilogue_bounds.TANH
            patch.setitem(reference.OPERATIONS, "tanh", lambda x, factor=factor: exact(x) * factor)
            out = reference.evaluate(graph, a, b, {"row": row}, torch.float32)
        limits = bound(graph, a, b, {"row": row}, {"d": torch.float32})["d"]
        assert limits.wrong(out["d"]).any().item() is not kept


@given(st.sampled_from(sorted({*epi.library.__all__} - {"linear_combination"})), st.integers(0, 9))
def test_the_library_is_bound_everywhere_and_closely(name, seed):
    """On ordinary numbers no element is left free, and none may be off by more than 2 %."""
    graph = getattr(epi, name)()
    a, b, inputs = problem(graph, False, torch.Generator().manual_seed(seed))
    inputs |= {"squares": torch.ones(5), "inverse_n": 0.5, "eps": 1e-5} if name == "rms_apply" else {}
    types = {x.name: torch.float32 for x in graph.outputs}
    for x in bound(graph, a, b, inputs, types).values():
        assert not x.free.any()
        assert (x.high - x.low <= 0.02 * (1 + x.expected.abs())).all()


def mlp():
    """Stored, rounded and reduced outputs of one graph."""

    @epi.define
    def mlp(acc, *, bias: epi.Row):
        h = epi.gelu(acc + bias)
        return epi.Output(d=h, q=epi.Store(h, "fp8"), s=epi.Sum(h, 0), m=epi.Max(h, 1), l=epi.LogSumExp(h))

    return mlp


@pytest.mark.parametrize("name", ["d", "q", "s", "m", "l"])
@pytest.mark.parametrize("wrong", [1.1, -1.0, math.nan, math.inf])
def test_a_wrong_element_breaks_the_bound(name, wrong):
    """One element ten percent off, of the wrong sign, NaN or infinite."""
    generator = torch.Generator().manual_seed(0)
    graph = mlp()
    a, b, inputs = problem(graph, False, generator)
    got = rounded(graph, reference.evaluate(graph, a, b, inputs, torch.float32))
    assert_outputs_close(got, graph, a, b, inputs)
    flat = got[name].float().flatten()
    flat[flat.abs().argmax()] *= wrong
    got[name] = flat.reshape(got[name].shape).to(got[name].dtype)
    with pytest.raises(AssertionError, match=f"^{name}: 1 of {flat.numel()} elements are off"):
        assert_outputs_close(got, graph, a, b, inputs)


def test_missing_and_misshapen_outputs_are_wrong():
    """Whatever is inside them."""
    generator = torch.Generator().manual_seed(0)
    graph = mlp()
    a, b, inputs = problem(graph, False, generator)
    got = rounded(graph, reference.evaluate(graph, a, b, inputs, torch.float32))
    with pytest.raises(AssertionError):
        assert_outputs_close({k: v for k, v in got.items() if k != "s"}, graph, a, b, inputs)
    with pytest.raises(AssertionError, match="s is"):
        assert_outputs_close({**got, "s": got["s"][None]}, graph, a, b, inputs)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities_are_demanded_where_fp64_has_them(special):
    """A finite number in the place of NaN or an infinity is wrong."""
    graph = epi.define(lambda acc: epi.max(acc, -3.0) + epi.exp(-epi.square(acc)))
    a, b = torch.eye(4), torch.ones(4, 4)
    a[1, 1] = special
    out = reference.evaluate(graph, a, b, {}, torch.float32)
    assert_outputs_close(out, graph, a, b, {})
    if special == -math.inf:
        assert out["d"][1].tolist() == 4 * [-3.0]
    out["d"][1, 2] = 0.0
    with pytest.raises(AssertionError, match="1 of 16"):
        assert_outputs_close(out, graph, a, b, {})


@pytest.mark.parametrize(
    ("function", "free"),
    [
        (lambda x: 1 / (x - 0.1), True),
        (lambda x: epi.log(x - 0.1), True),
        (lambda x: epi.sqrt(x - 0.1), True),
        (lambda x: epi.exp(x * 1000), True),
        (lambda x: 1 / x, False),
        (lambda x: epi.log(x), False),
        (lambda x: epi.sqrt(-x), False),
        (lambda x: epi.where(x == 0.1, 1.0, 2.0), False),
    ],
)
def test_nothing_is_demanded_only_where_errors_decide(function, free):
    """At a pole, a domain's edge or beyond fp32's range, not otherwise; at a switch both sides are right."""
    graph = epi.define(lambda acc: function(acc))
    a, b = torch.full((1, 1), 0.1, dtype=torch.float64), torch.ones(1, 1)
    limits = bound(graph, a, b, {}, {"d": torch.float32})["d"]
    assert limits.free.item() is free
    if not free:
        for wrong in (math.inf, 4.0):
            assert limits.wrong(torch.full((1, 1), wrong)).item()
    both = bound(epi.define(lambda acc: epi.where(acc == 0.1, 1.0, 2.0)), a, b, {}, {"d": torch.float32})["d"]
    assert not both.wrong(torch.ones(1, 1)) and not both.wrong(2 * torch.ones(1, 1))


def test_fp8_operands():
    """Which torch cannot take the magnitude of."""
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((4, 3), (3, 5)))
    out = reference.evaluate(epi.row_max(), a, b, {}, torch.float32)
    assert_outputs_close(out, epi.row_max(), a, b, {})
