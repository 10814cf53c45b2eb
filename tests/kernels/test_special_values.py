# SPDX-License-Identifier: Apache-2.0
"""NaN, infinite, zero and subnormal elements of 8-bit operands, and what each type of D stores of what it cannot hold.

The table "Special values" of docs/fp8.md states what is asked here. e4m3 has NaN and no infinities; e5m2 has both.
"""

import itertools
import math

import pytest
import torch

import cutegemm
from cutegemm import Gemm, GemmSpec, Tile, emulator

pytestmark = pytest.mark.sliced

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = list(itertools.product((E4M3, E5M2), repeat=2))
LEAST = {E4M3: 2.0**-9, E5M2: 2.0**-16}  # the smallest subnormal numbers
D_TYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": E4M3,
    "fp8_e5m2": E5M2,
}
# an instruction adds 32 products, each truncated to 13 fraction bits of the largest
TRUNCATED = 32 * 2.0**-13
BLOCK = {"scale_a": ("block", 1, 128), "scale_b": ("block", 128, 128)}


def operands(types):
    """A (16, 192) and B (192, 16): row i of A, or column i of B, has what the name of the list's i-th row says."""
    draw = torch.Generator().manual_seed(7)
    a, b = (torch.randn(16, 192, generator=draw).to(x) for x in types)
    for x in (a, b):
        x[0, 3] = math.nan
        x[1, 5] = math.inf  # 448 in e4m3, whose conversion saturates
        x[2, 5] = -math.inf
        x[3] = 0
        x[4] = 0
        x[4, 0] = LEAST[x.dtype]
        x[5] = torch.finfo(x.dtype).max
        x[6] = -torch.finfo(x.dtype).max
        # infinities of both signs in one sum
        x[7, 5:7] = torch.tensor([math.inf, -math.inf])
    return a, b.T


def emulated(spec, a, b, **named):
    """D on the emulator, free of races."""
    run = emulator.run(Gemm(spec), a, b, options=emulator.Options(races=True, progress=False), **named)
    assert not run.findings
    return run.d


def stored(exact, dtype):
    """What a D of this type holds of fp64 sums: fp8 saturates, other types overflow to infinity; NaN stays."""
    if dtype in (E4M3, E5M2):
        largest = torch.finfo(dtype).max
        return exact.clamp(-largest, largest).to(dtype).double()
    return exact.to(dtype).double()


def assert_near(found, wanted, a, b, factor=1.0):
    """D has NaN and infinities where fp64 does; other sums are off by a rounding and the tensor cores' 13 bits."""
    d, kept = found.double(), torch.finfo(found.dtype)
    assert torch.equal(d.isnan(), wanted.isnan())
    infinite = wanted.isinf()
    assert torch.equal(d.isinf(), infinite) and torch.equal(d[infinite], wanted[infinite])
    allowed = kept.eps * wanted.abs() + TRUNCATED * factor * (a.double().abs() @ b.double().abs())
    finite = wanted.isfinite() & allowed.isfinite()
    assert ((d - wanted).abs() <= allowed + kept.smallest_normal)[finite].all()


@pytest.mark.parametrize("scales", [{}, BLOCK], ids=["plain", "blocks"])
@pytest.mark.parametrize("d_dtype", D_TYPES)
@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_special_values_of_a_gemm_are_those_of_fp64(types, d_dtype, scales):
    """NaN, infinities and saturated sums stand where they do in fp64, and other sums are near; reference too."""
    a, b = operands(types)
    ones = {"scale_a": torch.ones(16, 2), "scale_b": torch.ones(1, 2)} if scales else {}
    # an infinity times a zero is NaN in fp64 as well
    wanted = stored(a.double() @ b.double(), D_TYPES[d_dtype])
    spec = GemmSpec(d_dtype=d_dtype, tile=Tile(64, 16, 128), swap=False, **scales)
    for found in (emulated(spec, a, b, **ones), Gemm(spec).run(a, b, **ones)):
        assert found.dtype == D_TYPES[d_dtype]
        assert_near(found, wanted, a, b)
        assert wanted.isnan().any()


@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_subnormal_elements_are_not_flushed(types):
    """The product of both smallest subnormal numbers is exact in fp32; a zero row or column gives zeros."""
    a, b = operands(types)
    d = emulated(GemmSpec(d_dtype="fp32", tile=Tile(64, 16, 128), swap=False), a, b)
    assert d[4, 4] == LEAST[types[0]] * LEAST[types[1]]
    assert d[4, 3] == d[3, 4] == d[3, 3] == 0
    assert d[5, 4] == torch.finfo(types[0]).max * LEAST[types[1]]


@pytest.mark.parametrize("d_dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_a_d_in_fp8_saturates_infinities_too(d_dtype):
    """An infinite sum is stored as the largest number of its sign, NaN as NaN."""
    a, b = operands((E5M2, E5M2))
    d = emulated(GemmSpec(d_dtype=d_dtype, tile=Tile(64, 16, 128), swap=False), a, b).double()
    largest = torch.finfo(D_TYPES[d_dtype]).max
    assert not d.isinf().any() and set(d[5, [5, 6]].tolist()) == {largest, -largest}
    assert d[1, 5] == largest and d[2, 5] == -largest and d[0].isnan().all() and d[1, 3].isnan()


@pytest.mark.parametrize(
    ("scale", "wanted"), [(math.nan, 0), (math.inf, None), (-math.inf, None), (1.0, None), (-1.0, None)]
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_a_d_of_integers_saturates_and_has_no_nan(dtype, scale, wanted):
    """Sums of 127 * 127 and 127 * -128 times a scale: the largest or smallest number; 0 of NaN."""
    a, b = torch.full((16, 64), 127, dtype=torch.int8), torch.full((64, 16), 127, dtype=torch.int8)
    b[:, 1] = -128
    spec = GemmSpec(d_dtype=str(dtype).removeprefix("torch."), scale_a="tensor")
    limits = torch.iinfo(dtype)
    both = (limits.max, limits.min) if scale > 0 else (limits.min, limits.max)
    for d in (emulated(spec, a, b, scale_a=scale), Gemm(spec).run(a, b, scale_a=scale)):
        assert d.dtype == dtype
        assert d[0, :2].tolist() == ([wanted] * 2 if wanted is not None else list(both))


@pytest.mark.parametrize("kind", ["tensor", "row", "block"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -2.0])
def test_a_scale_is_a_factor_like_others(kind, value):
    """NaN, infinite, zero and negative scales multiply as in fp64: zero times an infinite sum is NaN."""
    a, b = operands((E5M2, E4M3))
    scale = {"tensor": torch.tensor(value), "row": torch.ones(16), "block": torch.ones(16, 2)}[kind]
    kinds = {"scale_a": ("block", 1, 128) if kind == "block" else kind}
    if kind != "tensor":
        scale[:8] = value
    factor = scale.double() if kind == "tensor" else scale.double().reshape(16, -1)[:, :1]
    # blocks have their own sums, and infinite ones of both signs add up to NaN
    parts = [a.double() @ b.double()]
    if kind == "block":
        parts = [a[:, x].double() @ b[x].double() for x in (slice(128), slice(128, None))]
    wanted = sum(part * factor for part in parts)
    d = emulated(GemmSpec(d_dtype="fp32", tile=Tile(64, 16, 128), swap=False, **kinds), a, b, scale_a=scale)
    assert_near(d, wanted, a, b, factor.abs())


def test_a_quantized_infinity_is_nan_in_the_product():
    """quantize turns an infinite element into NaN, so its row of D is NaN and no other."""
    x, w = torch.randn(16, 128, generator=torch.Generator().manual_seed(1)), torch.ones(16, 128)
    x[3, 5] = math.inf
    (a, scale_a), (b, scale_b) = cutegemm.quantize(x, "row"), cutegemm.quantize(w, "row")
    d = emulated(GemmSpec(scale_a="row", scale_b="row"), a, b.T, scale_a=scale_a, scale_b=scale_b)
    assert d[3].isnan().all() and d.isfinite().sum() == 15 * 16
