# SPDX-License-Identifier: Apache-2.0
"""Zero points of integer operands: subtracted of sums exactly, modulo 2**32, before scales and epilogue."""

import pytest
import torch

import cutegemm
from cutegemm import GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.errors import SpecError
from tests.support.integers import INT8, UINT8, asked, drawn, emulated, exact, points

pytestmark = pytest.mark.sliced


@pytest.mark.parametrize(
    ("kinds", "types", "shape", "fields"),
    [
        (("tensor", "auto"), (UINT8, INT8), (130, 72, 400), {}),
        (("auto", "row"), (INT8, UINT8), (130, 72, 400), {"swap": True}),
        (("row", "row"), (UINT8, UINT8), (1, 200, 1040), {}),
        (("tensor", "row"), (UINT8, UINT8), (130, 75, 401), {}),
        (("row", "row"), (INT8, UINT8), (70, 75, 401), {"a_load": "relayout", "b_load": "relayout"}),
        (("row", "tensor"), (INT8, INT8), (130, 200, 1040), {"split_k": 2, "split_reduction": "launch"}),
        (
            ("tensor", "tensor"),
            (INT8, UINT8),
            (130, 200, 1040),
            {"split_k": 2, "split_reduction": "cluster", "tile": Tile(128, 48, 128)},
        ),
        (("row", "row"), (INT8, UINT8), (300, 96, 400), {"schedule": "pingpong", "sms": 2}),
        (("tensor", "row"), (INT8, INT8), (130, 200, 400), {"schedule": "multistage"}),
        (("row", "auto"), (UINT8, INT8), (5, 7, 0), {}),
    ],
)
def test_sums_are_exact(kinds, types, shape, fields):
    """Every pair of kinds, by every schedule and in splits: each bit of int32."""
    m, n, k = shape
    a, b, given = drawn(m, k, types[0], 1), drawn(n, k, types[1], 2).T, points(kinds, m, n)
    d = emulated(asked(kinds, **fields), a, b, **given)
    assert d.dtype == torch.int32 and torch.equal(d.long(), exact(a, b, given))


def test_sums_beyond_24_bits_are_exact():
    """Corrections are not rounded to fp32: sums of the operands and of the result have more bits."""
    a, b = torch.full((3, 33_024), 255, dtype=UINT8), torch.full((33_024, 8), 255, dtype=UINT8)
    a[1], b[:, 1] = 254, 1
    given = {"zero_point_a": 3, "zero_point_b": 77}
    assert torch.equal(emulated(asked(("tensor", "tensor")), a, b, **given).long(), exact(a, b, given))


@pytest.mark.parametrize("d_dtype", ["bf16", "fp32", "int8"])
def test_scales_come_after(d_dtype):
    """D is the exact sum, scaled in fp32 and rounded once; an epilogue sees the scaled sum."""
    kinds, (m, n, k) = ("tensor", "row"), (70, 40, 144)
    a, b, given = drawn(m, k, UINT8, 1), drawn(n, k, INT8, 2).T, points(kinds, m, n)
    scale = torch.rand(m, generator=torch.Generator().manual_seed(5)) / 4096
    spec = asked(kinds, scale_a="row", scale_b="tensor", d_dtype=d_dtype, epilogue=epi.bias())
    d = emulated(spec, a, b, scale_a=scale, scale_b=0.5, bias=torch.ones(n), **given)
    wanted = exact(a, b, given).float() * scale[:, None] * 0.5 + 1
    if d_dtype == "int8":
        assert torch.equal(d, wanted.round().clamp(-128, 127).to(torch.int8))
    else:
        assert torch.allclose(d.float(), wanted, rtol=2**-8 if d_dtype == "bf16" else 1e-6, atol=1e-6)


@pytest.mark.sliced(False)
@pytest.mark.parametrize("scaled", ["a", "b"])
def test_scales_of_blocks_are_refused(scaled):
    """They multiply partial sums, of which nothing is subtracted: the difference of whole sums would be wrong."""
    told = (
        f"zero_point_a='tensor': is subtracted of whole sums, which scale_{scaled} of blocks has scaled; scales may be "
        "of rows; nearest legal value: 'auto'"
    )
    with pytest.raises(SpecError) as e:
        asked(("tensor", "auto"), **{f"scale_{scaled}": ("block", 1, 128)})
    assert str(e.value) == told
    x, w = drawn(5, 256, INT8, 1), drawn(8, 256, INT8, 2)
    with pytest.raises(SpecError, match="zero_point_a='tensor'"):
        cutegemm.linear(x, w, zero_point_a=50, **{f"scale_{scaled}": torch.rand({"a": 5, "b": 8}[scaled], 2)})


def test_integer_inputs_of_an_epilogue_are_exact():
    """Rows and columns of integers are added, subtracted and multiplied in int32, as the sums are."""

    @epi.define
    def shifted(acc, *, row: epi.Row, col: epi.Col):
        return acc + row * col

    m, n, k = 70, 40, 144
    a, b = drawn(m, k, INT8, 1), drawn(n, k, INT8, 2).T
    row = torch.arange(n, dtype=torch.int32) * 100_003
    col = torch.arange(m, dtype=torch.int32) - 9
    d = emulated(GemmSpec(epilogue=shifted, d_dtype="int32"), a, b, row=row, col=col)
    assert torch.equal(d.long(), a.long() @ b.long() + row.long() * col.long()[:, None])


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [("tensor", "tensor"), ("row", "row")])
@pytest.mark.parametrize("shape", [(512, 512, 4096), (1, 1000, 784), (300, 200, 75)], ids=str)
def test_results_on_a_gpu(kinds, shape):
    """Every bit, aligned or not."""
    from cutegemm import Gemm

    m, n, k = shape
    a, b, given = drawn(m, k, UINT8, 1), drawn(n, k, INT8, 2).T, points(kinds, m, n)
    moved = {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    d = Gemm(asked(kinds)).run(a.cuda(), b.T.cuda().T, **moved)
    assert torch.equal(d.cpu().long(), exact(a, b, given))
