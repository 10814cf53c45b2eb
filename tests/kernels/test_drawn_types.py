# SPDX-License-Identifier: Apache-2.0
"""Drawn extents and values of 8-bit operands of every pair of types, and of tf32: a kernel a row, beside fp64.

Three problems a row by default, sixty with `pytest --profile long`. Rows of operands begin at multiples of 16 bytes, so
that a row's problems share its kernel.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import Gemm, GemmSpec, Tile
from cutegemm.epilogue.graph import linear_combination
from cutegemm.running.numerics.bounds import bound
from tests.support.profile import cases
from tests.support.scales import ROWS, SQUARES, emulated

pytestmark = pytest.mark.sliced

E4M3, E5M2, INT8, UINT8, FP32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.float32
TILE = {"tile": Tile(64, 48, 128), "swap": False, "split_k": 1}
# name -> types of A and B, and fields of the spec
CASES = {
    "e4m3, e4m3": ((E4M3, E4M3), {"scale_a": "row", "scale_b": "tensor"}),
    "e5m2, e5m2": ((E5M2, E5M2), {"scale_a": "tensor", "scale_b": "row", "d_dtype": "fp32"}),
    "e5m2, e4m3": ((E5M2, E4M3), {"scale_a": ROWS, "scale_b": ROWS, "d_dtype": "fp16"}),
    "e4m3, e5m2": ((E4M3, E5M2), {"scale_b": SQUARES, "d_dtype": "fp8_e5m2"}),
    "int8, int8": ((INT8, INT8), {"d_dtype": "int32"}),
    "uint8, int8": ((UINT8, INT8), {"scale_a": "row", "scale_b": "row", "d_dtype": "int8"}),
    "int8, uint8": ((INT8, UINT8), {"scale_b": "tensor", "d_dtype": "uint8"}),
    "uint8, uint8": ((UINT8, UINT8), {"scale_a": "tensor", "scale_b": "row", "d_dtype": "fp16"}),
    "tf32": ((FP32, FP32), {"math": "tf32", "tile": Tile(64, 48, 32)}),
    "tf32x3": ((FP32, FP32), {"math": "tf32x3", "tile": Tile(64, 48, 32)}),
}


def drawn(rows, k, dtype, magnitude, draw):
    """A matrix whose rows begin at multiples of 16 bytes; every seventh row is zero, and some elements are large."""
    pitch = k + -k % (16 // dtype.itemsize)
    if not dtype.is_floating_point:
        kept = torch.iinfo(dtype)
        x = torch.randint(kept.min, kept.max + 1, (rows, pitch), generator=draw, dtype=dtype)
    else:
        x = torch.randn(rows, pitch, generator=draw) * magnitude
        x[torch.rand(rows, pitch, generator=draw) < 0.01] *= 64
        x = x.to(dtype)
    x[::7] = 0
    return x[:, :k]


def scale(kind, rows, k, draw):
    """Scales of a kind, some of them negative."""
    shape = {"tensor": (), "row": (rows,)}.get(kind) if isinstance(kind, str) else None
    shape = (-(-rows // kind[1]), -(-k // 128)) if shape is None else shape
    return torch.randn(shape, generator=draw) / 8


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=cases(3, 60))
@given(
    shape=st.tuples(st.integers(2, 140), st.integers(2, 100), st.integers(2, 300)),
    magnitude=st.sampled_from((2.0**-8, 1.0, 4.0)),
    seed=st.integers(0, 1000),
)
def test_any_extents_and_values(name, shape, magnitude, seed):
    """D on the emulator and on the reference is within the bounds of fp64, without a race."""
    (types, fields), (m, n, k), draw = CASES[name], shape, torch.Generator().manual_seed(seed)
    spec = GemmSpec(**{**TILE, **fields})
    a, b = (drawn(rows, k, dtype, magnitude, draw) for rows, dtype in zip((m, n), types))
    extents = {"scale_a": m, "scale_b": n}
    kinds = {x: kind for x, kind in fields.items() if x in extents}
    named = {x: scale(kind, extents[x], k, draw) for x, kind in kinds.items()}
    graph, inputs = (spec.epilogue, named) if named else (linear_combination(False), {"alpha": 1.0})
    # the reference multiplies fp32 exactly, not as tf32
    ways = [emulated(spec, a, b.T, **named), *([] if "math" in fields else [Gemm(spec).run(a, b.T, **named)])]
    for d in ways:
        limit = bound(graph, a, b.T, inputs, {"d": d.dtype}, arithmetic=spec.arithmetic)["d"]
        assert limit.complaint(d) is None, limit.complaint(d)
    if not (types[0].is_floating_point or named):
        assert torch.equal(d.long(), a.long() @ b.long().T)


@pytest.mark.parametrize("types", [(UINT8, INT8), (INT8, UINT8)], ids=str)
@settings(max_examples=cases(3, 60))
@given(
    shape=st.tuples(st.integers(2, 140), st.integers(2, 100), st.integers(2, 300)),
    kinds=st.tuples(*2 * (st.sampled_from(("none", "tensor", "row")),)),
    seed=st.integers(0, 1000),
)
def test_zero_points_of_any_extents(types, shape, kinds, seed):
    """D in int32 is exact, on the emulator and on the reference."""
    (m, n, k), draw = shape, torch.Generator().manual_seed(seed)
    a, b = (drawn(rows, k, dtype, 1.0, draw) for rows, dtype in zip((m, n), types))
    fields, points = {}, {}
    for name, kind, rows, dtype in zip(("zero_point_a", "zero_point_b"), kinds, (m, n), types):
        known = torch.iinfo(dtype)
        whole = torch.randint(known.min, known.max + 1, (rows,), generator=draw, dtype=dtype)
        if kind != "none":
            fields[name], points[name] = kind, whole[0] if kind == "tensor" else whole
    told = [x.long() - points.get(name, torch.tensor(0)).long().reshape(-1, 1)
            for name, x in (("zero_point_a", a), ("zero_point_b", b))]  # fmt: skip
    spec = GemmSpec(**TILE, **fields, d_dtype="int32")
    for d in (emulated(spec, a, b.T, **points), Gemm(spec).run(a, b.T, **points)):
        assert torch.equal(d.long(), told[0] @ told[1].T)
