# SPDX-License-Identifier: Apache-2.0
"""Zero points as a caller gives them: to `run`, `matmul` and `linear`, of one matrix or many, and what is refused."""

import numpy as np
import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec
from cutegemm import epilogue as epi
from cutegemm.errors import GemmError
from tests.support.integers import INT8, UINT8, asked, drawn, exact, points

WIDE = GemmSpec(d_dtype="fp32")


def operands(m=6, n=5, k=40):
    """A of uint8 and B of int8."""
    return drawn(m, k, UINT8, 1), drawn(n, k, INT8, 2).T


@pytest.mark.parametrize("kinds", [("tensor", "row"), ("row", "tensor"), ("auto", "row")])
def test_run_and_matmul_agree(kinds):
    """The spec names the kinds, or the function finds them by the shapes; sums may be given."""
    a, b = operands()
    given = points(kinds, 6, 5)
    wanted = exact(a, b, given)
    assert torch.equal(Gemm(asked(kinds)).run(a, b, **given).long(), wanted)
    assert torch.equal(cutegemm.matmul(a, b, **given).long(), wanted)
    assert torch.equal(cutegemm.matmul(a, b, spec=asked(kinds), **given).long(), wanted)
    sums = {"sums_a": a.sum(1, dtype=torch.int32), "sums_b": b.sum(0, dtype=torch.int32)}
    needed = {x: sums[x] for x, kind in zip(("sums_b", "sums_a"), kinds) if kind != "auto"}
    assert torch.equal(cutegemm.matmul(a, b, **given, **needed).long(), wanted)


def test_leading_dimensions_and_batches():
    """`linear` folds rows, whose zero points have x's dimensions; batches have zero points of their own, or share."""
    x, w = drawn(6, 40, UINT8, 1).view(2, 3, 40), drawn(5, 40, INT8, 2)
    za, zb = drawn(2, 3, UINT8, 3), drawn(1, 5, INT8, 4)[0]
    wanted = (x.long() - za.long()[..., None]) @ (w.long() - zb.long()[:, None]).T
    assert torch.equal(cutegemm.linear(x, w, zero_point_a=za, zero_point_b=zb).long(), wanted)
    b = torch.stack([w.T, w.T.flip(0)])
    for rows in (za, za[0]):
        wanted = (x.long() - rows.long()[..., None]) @ (b.long() - zb.long())
        assert torch.equal(cutegemm.matmul(x, b, zero_point_a=rows, zero_point_b=zb).long(), wanted)


def test_other_libraries_arrays():
    """NumPy arrays are read as tensors are."""
    a, b = operands()
    d = Gemm(asked(("tensor", "auto"))).run(a.numpy(), np.ascontiguousarray(b.numpy()), zero_point_a=9)
    assert isinstance(d, np.ndarray) and (d == exact(a, b, {"zero_point_a": 9}).numpy()).all()


def test_a_compiler_records_the_call():
    """One graph, the same result; a bias and scales go with zero points."""
    x, w = drawn(6, 40, UINT8, 1), drawn(5, 40, INT8, 2)
    zb, bias = drawn(1, 5, INT8, 4)[0], torch.ones(5)

    def call(x, w, zb, bias):
        return cutegemm.linear(x, w, bias, zero_point_a=9, zero_point_b=zb, scale_a=0.5, spec=WIDE)

    d = call(x, w, zb, bias)
    wanted = exact(x, w.T, {"zero_point_a": 9, "zero_point_b": zb}).float() * 0.5 + 1
    assert torch.equal(d, wanted)
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(x, w, zb, bias), d)


def test_an_epilogue_of_the_caller_sees_the_difference():
    """A spec's zero points and a call's epilogue compose; an output's zero point is an epilogue."""

    @epi.define
    def requantised(acc, *, scale: epi.Scalar, zero: epi.Scalar):
        return epi.round(acc * scale) + zero

    a, b = operands()
    spec = GemmSpec(zero_point_a="tensor", epilogue=requantised, d_dtype="uint8")
    d = Gemm(spec).run(a, b, zero_point_a=9, scale=0.001, zero=128.0)
    wanted = (exact(a, b, {"zero_point_a": 9}).float() * 0.001).round() + 128
    assert torch.equal(d, wanted.clamp(0, 255).to(UINT8))
    again = cutegemm.matmul(a, b, zero_point_a=9, epilogue=requantised, scale=0.001, zero=128.0,
                            spec=GemmSpec(d_dtype="uint8"))  # fmt: skip
    assert torch.equal(again, d)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"zero_point_a": 1.5}, "zero_point_a=1.5: must be an integer from -2147483648 to 2147483647"),
        ({"zero_point_a": torch.zeros(7, dtype=INT8)}, "zero_point_a.shape=(7,): must be (6,)"),
        ({"zero_point_b": torch.zeros(5)}, "zero_point_b.dtype=torch.float32: must be int8 or uint8 or int32"),
        (
            {"zero_point_a": torch.zeros(6, dtype=INT8, device="meta")},
            "zero_point_a.device='meta': must be the operand's, cpu",
        ),
        ({"zero_point_a": 3, "sums_b": torch.zeros(5)}, "sums_b.dtype=torch.float32: must be int32"),
        ({"zero_point_a": 3, "sums_b": [1]}, "sums_b: must be a torch.Tensor, got list"),
        (
            {"zero_point_a": 3, "sums_a": torch.zeros(6, dtype=torch.int32)},
            "sums_a='...': the epilogue reads zero_point_a",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(given, told):
    """Type, shape, device and name, before anything runs."""
    a, b = operands()
    with pytest.raises(GemmError) as e:
        cutegemm.matmul(a, b, **given)
    assert str(e.value).startswith(told)


def test_specs_that_no_kernel_has():
    """Zero points of floats, of gated pairs, without a value, of another name."""
    a, b = operands()
    gemm = Gemm(asked(("tensor", "auto")))
    for call, told in (
        (
            lambda: gemm.run(a.float(), b.float(), zero_point_a=1),
            "a.dtype=torch.float32: must be int8 or uint8",
        ),
        (lambda: gemm.run(a, b), "zero_point_a: missing; the spec declares it"),
        (
            lambda: gemm.run(a, b, zero_point_a=1, zero_a=torch.zeros(5, dtype=torch.int32)),
            "zero_a='...': is made of zero_point_a, which the call gives; nearest legal value: 'zero_point_a'",
        ),
        (lambda: asked(("rows", "auto")), "zero_point_a='rows': must be one of tensor, row"),
        (
            lambda: asked(("tensor", "auto"), epilogue=epi.swiglu("halves")),
            "zero_point_a='tensor': a gated pair has no zero points",
        ),
    ):
        with pytest.raises(GemmError) as e:
            call()
        assert told in str(e.value)
