# SPDX-License-Identifier: Apache-2.0
"""Integer, floating-point, logic and conversion instructions against their definitions in the PTX ISA."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.emulator_launch import unary_on_lanes as on_lanes

U32 = st.integers(0, 2**32 - 1)
EDGES32 = [0, 1, 2, 31, 32, 33, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0xFFFF, 0x10000]


def vector(values, dtype=np.uint32) -> np.ndarray:
    """32 lanes from any number of values, repeated."""
    return np.array([values[i % len(values)] for i in range(32)], dtype)


def signed(x: int, bits: int = 32) -> int:
    """Two's complement reading."""
    return x - (1 << bits) if x >> bits - 1 else x


pairs = st.lists(
    st.tuples(U32 | st.sampled_from(EDGES32), U32 | st.sampled_from(EDGES32)), min_size=32, max_size=32
)

INTEGER = {  # instruction -> (definition on Python ints, PTX ISA section)
    "add.s32 {d}, {a}, {b};": (lambda a, b: a + b, "9.7.1.1"),
    "sub.u32 {d}, {a}, {b};": (lambda a, b: a - b, "9.7.1.2"),
    "mul.lo.s32 {d}, {a}, {b};": (lambda a, b: a * b, "9.7.1.3"),
    "mul.hi.u32 {d}, {a}, {b};": (lambda a, b: a * b >> 32, "9.7.1.3"),
    "mul.hi.s32 {d}, {a}, {b};": (lambda a, b: signed(a) * signed(b) >> 32, "9.7.1.3"),
    "min.s32 {d}, {a}, {b};": (lambda a, b: min(signed(a), signed(b)), "9.7.1.14"),
    "max.u32 {d}, {a}, {b};": (max, "9.7.1.15"),
    "and.b32 {d}, {a}, {b};": (lambda a, b: a & b, "9.7.8.1"),
    "xor.b32 {d}, {a}, {b};": (lambda a, b: a ^ b, "9.7.8.3"),
    "shl.b32 {d}, {a}, {b};": (lambda a, b: a << b if b < 32 else 0, "9.7.8.8"),
    "shr.u32 {d}, {a}, {b};": (lambda a, b: a >> b if b < 32 else 0, "9.7.8.9"),
    "shr.s32 {d}, {a}, {b};": (lambda a, b: signed(a) >> min(b, 32), "9.7.8.9"),
    "shf.l.wrap.b32 {d}, {a}, {b}, 7;": (lambda a, b: (b << 32 | a) >> 25, "9.7.8.7"),
    "shf.r.clamp.b32 {d}, {a}, {b}, 40;": (lambda a, b: b, "9.7.8.7"),
    "lop3.b32 {d}, {a}, {b}, 12, 0x6a;": (lambda a, b: (a & b) ^ 12, "9.7.8.6"),
    "prmt.b32 {d}, {a}, {b}, 0x7531;": (
        lambda a, b: sum(((b << 32 | a) >> 8 * s & 255) << 8 * i for i, s in enumerate((1, 3, 5, 7))), "9.7.9.7"),
    "popc.b32 {d}, {a};": (lambda a, b: a.bit_count(), "9.7.1.16"),
    "clz.b32 {d}, {a};": (lambda a, b: 32 - a.bit_length(), "9.7.1.17"),
    "brev.b32 {d}, {a};": (lambda a, b: int(f"{a:032b}"[::-1], 2), "9.7.1.21"),
    "neg.s32 {d}, {a};": (lambda a, b: -a, "9.7.1.13"),
    "bfe.u32 {d}, {a}, 5, 9;": (lambda a, b: a >> 5 & 511, "9.7.1.22"),
    "bfi.b32 {d}, {a}, {b}, 4, 8;": (lambda a, b: b & ~0xFF0 | (a & 255) << 4, "9.7.1.23"),
    "setp.lt.s32 %p1, {a}, {b}; selp.b32 {d}, 1, 0, %p1;": (lambda a, b: signed(a) < signed(b), "9.7.6.2"),
    "setp.hi.u32 %p1, {a}, {b}; selp.b32 {d}, {a}, {b}, %p1;": (max, "9.7.6.2"),
    "setp.ge.and.u32 %p1|%p2, {a}, {b}, %p0; selp.b32 {d}, 1, 2, %p2;": (None, "9.7.6.2"),
}  # fmt: skip


@pytest.mark.parametrize("text", [t for t, (f, _) in INTEGER.items() if f])
@settings(max_examples=6, deadline=None)
@given(values=pairs)
def test_integer_instructions_follow_their_definition(text, values):
    """Each integer instruction gives its definition's result in every lane (PTX ISA 9.7.1, 9.7.6, 9.7.8)."""
    a, b = (np.array(v, np.uint32) for v in zip(*values, strict=True))
    got = on_lanes(text, a, b)
    want = [INTEGER[text][0](int(x), int(y)) % 2**32 for x, y in zip(a, b, strict=True)]
    assert got.tolist() == want


def test_uniform_operands_take_the_same_path_as_vectors():
    """Immediate operands give the same results as registers (the emulator keeps uniform values as ints)."""
    for a in EDGES32:
        for shift in (0, 1, 31, 32, 40):
            got = on_lanes(
                f"mov.u32 %r50, {a}; shr.s32 %r51, %r50, {shift}; shl.b32 %r52, %r50, {shift};"
                " xor.b32 {d}, %r51, %r52;",
                vector([0]),
            )
            want = (signed(a) >> min(shift, 32)) ^ (a << shift if shift < 32 else 0)
            assert set(got.tolist()) == {want % 2**32}


@settings(max_examples=10, deadline=None)
@given(values=st.lists(st.tuples(U32, U32.filter(bool)), min_size=32, max_size=32))
def test_division_truncates_toward_zero(values):
    """div and rem of signed numbers (PTX ISA 9.7.1.6, 9.7.1.7)."""
    a, b = (np.array(v, np.uint32) for v in zip(*values, strict=True))
    q = on_lanes("div.s32 {d}, {a}, {b};", a, b)
    r = on_lanes("rem.s32 {d}, {a}, {b};", a, b)
    for x, y, quotient, rest in zip(a.tolist(), b.tolist(), q.tolist(), r.tolist(), strict=True):
        exact = Fraction(signed(x), signed(y))
        want = int(exact)  # Fraction to int truncates toward zero
        assert quotient == want % 2**32
        assert rest == (signed(x) - want * signed(y)) % 2**32


def test_wide_multiplication_keeps_all_bits():
    """mul.wide and mad.wide give 64 bits (PTX ISA 9.7.1.3, 9.7.1.4)."""
    a, b = vector([0xFFFFFFFF, 3, 0x80000000]), vector([0xFFFFFFFE, 0xFFFFFFFF, 7])
    wide = on_lanes("mul.wide.s32 {d}, {a}, {b};", a, b, out_bits=64)
    assert wide.tolist() == [signed(int(x)) * signed(int(y)) % 2**64 for x, y in zip(a, b, strict=True)]
    mad = on_lanes("mad.wide.u32 {d}, {a}, {b}, 5;", a, b, out_bits=64)
    assert mad.tolist() == [(int(x) * int(y) + 5) % 2**64 for x, y in zip(a, b, strict=True)]


FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 1.0, -1.0, float("inf"), 2.0**-149, 2.0**-126]
)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=32, max_size=32))
def test_fma_rounds_once(values):
    """fma.rn.f32 equals the exact product and sum rounded once (PTX ISA 9.7.3.6)."""
    a, b, c = (np.array(v, np.float32) for v in zip(*values, strict=True))
    got = on_lanes("fma.rn.f32 {d}, {a}, {b}, {c};", *(x.view(np.uint32) for x in (a, b, c))).view(np.float32)
    for x, y, z, d in zip(a, b, c, got, strict=True):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert _is_nearest(exact, d), (x, y, z, d)


def _is_nearest(exact: Fraction, d: np.float32) -> bool:
    """Whether `d` is `exact` rounded to nearest even in fp32."""
    if np.isinf(d):
        return abs(exact) >= Fraction(2**128 - 2**103)
    error = abs(exact - Fraction(float(d)))
    with np.errstate(over="ignore"):
        neighbours = (np.nextafter(d, np.float32(np.inf)), np.nextafter(d, np.float32(-np.inf)))
    for other in neighbours:
        if np.isinf(other):
            continue
        distance = abs(exact - Fraction(float(other)))
        if distance < error or (distance == error and int(np.float32(d).view(np.uint32)) & 1):
            return False
    return True


def test_fma_where_rounding_twice_would_differ():
    """1 + 2^-23 + 2^-24 (1 - 2^-30) lies below a tie that its fp64 value hits and rounds up from (PTX ISA 9.7.3.6)."""
    a = vector([2.0**-12 * (1 + 2.0**-15)], np.float32)
    b = vector([2.0**-12 * (1 - 2.0**-15)], np.float32)
    c = vector([1 + 2.0**-23], np.float32)
    got = on_lanes("fma.rn.f32 {d}, {a}, {b}, {c};", *(x.view(np.uint32) for x in (a, b, c))).view(np.float32)
    assert got[0] == np.float32(1 + 2.0**-23)
    assert np.float32(np.float64(a[0]) * np.float64(b[0]) + np.float64(c[0])) == np.float32(1 + 2.0**-22)


@pytest.mark.parametrize(
    "text, act",
    [("add.f32", np.add), ("sub.f32", np.subtract), ("mul.f32", np.multiply), ("div.rn.f32", np.divide)],
)
def test_fp32_arithmetic_rounds_to_nearest_even(text, act, rng):
    """add, sub, mul and div of fp32 (PTX ISA 9.7.3.1 to 9.7.3.8)."""
    a, b = (rng.standard_normal(32).astype(np.float32) for _ in range(2))
    got = on_lanes(f"{text} {{d}}, {{a}}, {{b}};", a.view(np.uint32), b.view(np.uint32))
    assert got.tolist() == act(a, b).view(np.uint32).tolist()


def test_ftz_flushes_subnormal_inputs_and_results():
    """add.ftz.f32 (PTX ISA 9.7.3.1): 2^-127 + 2^-127 is zero with .ftz and 2^-126 without."""
    a = vector([np.float32(2.0**-127)], np.float32).view(np.uint32)
    assert set(on_lanes("add.ftz.f32 {d}, {a}, {a};", a).view(np.float32).tolist()) == {0.0}
    assert set(on_lanes("add.f32 {d}, {a}, {a};", a).view(np.float32).tolist()) == {2.0**-126}


def test_max_drops_nan_unless_asked_to_keep_it():
    """max.f32 and max.NaN.f32 (PTX ISA 9.7.3.12)."""
    a, b = (
        vector([np.nan, 1.0, -0.0], np.float32).view(np.uint32),
        vector([2.0, np.nan, 0.0], np.float32).view(np.uint32),
    )
    plain = on_lanes("max.f32 {d}, {a}, {b};", a, b).view(np.float32)
    assert plain[:3].tolist() == [2.0, 1.0, 0.0] and not np.signbit(plain[2])
    keep = on_lanes("max.NaN.f32 {d}, {a}, {b};", a, b).view(np.float32)
    assert np.isnan(keep[:2]).all()


@pytest.mark.parametrize(
    "relation, nan_result", [("lt", 0), ("ltu", 1), ("neu", 1), ("eq", 0), ("num", 0), ("nan", 1)]
)
def test_float_comparison_with_nan(relation, nan_result):
    """Ordered comparisons with NaN are false, unordered ones true (PTX ISA 9.7.3, table of comparisons)."""
    a, b = vector([np.nan], np.float32).view(np.uint32), vector([1.0], np.float32).view(np.uint32)
    got = on_lanes(f"setp.{relation}.f32 %p1, {{a}}, {{b}}; selp.b32 {{d}}, 1, 0, %p1;", a, b)
    assert set(got.tolist()) == {nan_result}


APPROXIMATE = {  # instruction -> (exact function, inputs, maximum error), PTX ISA 9.7.3.13 to .21
    "ex2.approx.ftz.f32": (np.exp2, (-20, 20), lambda y: np.abs(y) * 2.0**-22),
    "rcp.approx.ftz.f32": (lambda x: 1 / x, (0.01, 100), lambda y: np.abs(y) * 2.0**-23),
    "lg2.approx.f32": (np.log2, (0.01, 100), lambda y: np.maximum(np.abs(y), 1) * 2.0**-22),
    "tanh.approx.f32": (np.tanh, (-5, 5), lambda y: np.abs(y) * 2.0**-10.987),
    "sqrt.approx.f32": (np.sqrt, (0.01, 100), lambda y: y * 2.0**-23),
    "rsqrt.approx.f32": (lambda x: 1 / np.sqrt(x), (0.01, 100), lambda y: y * 2.0**-22.9),
}


@pytest.mark.parametrize("name", list(APPROXIMATE))
def test_approximate_functions_stay_within_their_documented_error(name, rng):
    """ex2, lg2, rcp, tanh, sqrt, rsqrt against fp64 (PTX ISA 9.7.3)."""
    f, (low, high), bound = APPROXIMATE[name]
    x = rng.uniform(low, high, 32).astype(np.float32)
    got = on_lanes(f"{name} {{d}}, {{a}};", x.view(np.uint32)).view(np.float32).astype(np.float64)
    exact = f(x.astype(np.float64))
    assert (np.abs(got - exact) <= bound(exact)).all()


def bf16_nearest(x: np.float32) -> int:
    """bf16 pattern nearest to x, by trying the two neighbours in exact arithmetic."""
    low = int(np.float32(x).view(np.uint32)) >> 16
    candidates = [p for p in (low, low + 1) if p & 0x7F80 != 0x7F80]
    value = lambda p: Fraction(float(np.uint32(p << 16).view(np.float32)))  # noqa: E731
    return min(candidates, key=lambda p: (abs(value(p) - Fraction(float(x))), p & 1))


def test_bf16_conversion_rounds_to_nearest_even(rng):
    """cvt.rn.bf16x2.f32 and cvt.f32.bf16 (PTX ISA 9.7.9.22); ties go to the even neighbour."""
    ties = [1.00390625, 1.01171875, -1.00390625, 3.0e-39]
    x = np.concatenate([rng.standard_normal(28), ties]).astype(np.float32)
    y = x[::-1].copy()
    got = on_lanes("cvt.rn.bf16x2.f32 {d}, {a}, {b};", x.view(np.uint32), y.view(np.uint32))
    assert got.tolist() == [bf16_nearest(h) << 16 | bf16_nearest(low) for h, low in zip(x, y, strict=True)]
    back = on_lanes("cvt.f32.bf16 {d}, {a};", np.array([bf16_nearest(v) for v in x], np.uint16))
    assert back.tolist() == [bf16_nearest(v) << 16 for v in x]
    nan = on_lanes(
        "cvt.rn.bf16.f32 %rs40, {a}; cvt.u32.u16 {d}, %rs40;", vector([np.nan], np.float32).view(np.uint32)
    )
    assert set(nan.tolist()) == {0x7FFF}


def test_fp16_conversion_and_arithmetic(rng):
    """cvt.rn.f16x2.f32, cvt.f32.f16, fma.rn.f16x2 (PTX ISA 9.7.9.22, 9.7.4.4)."""
    x, y = (rng.standard_normal(32).astype(np.float32) for _ in range(2))
    half = lambda v: v.astype(np.float16).view(np.uint16).astype(np.uint32)  # noqa: E731
    got = on_lanes("cvt.rn.f16x2.f32 {d}, {a}, {b};", x.view(np.uint32), y.view(np.uint32))
    assert got.tolist() == (half(x) << 16 | half(y)).tolist()
    fused = on_lanes("fma.rn.f16x2 {d}, {a}, {b}, {a};", got, got)
    h = got.view(np.float16).astype(np.float64)
    want = (h * h + h).astype(np.float16)  # fp64 holds product and sum exactly enough for one rounding
    assert fused.view(np.float16).tolist() == want.tolist()


def test_conversions_between_integers_and_floats():
    """cvt of integers and floats: sign extension, truncation, rounding, clamping (PTX ISA 9.7.9.22)."""
    bytes_ = vector([0x80, 0x7F, 0xFF])
    assert on_lanes("cvt.s32.s8 {d}, {a};", bytes_)[:3].tolist() == [0xFFFFFF80, 0x7F, 0xFFFFFFFF]
    assert on_lanes("cvt.s64.s32 {d}, {a};", vector([0x80000000]), out_bits=64)[0] == 0xFFFFFFFF80000000
    floats = vector([2.5, -1.5, 3e9, np.nan], np.float32).view(np.uint32)
    assert on_lanes("cvt.rni.s32.f32 {d}, {a};", floats)[:4].tolist() == [2, 0xFFFFFFFE, 0x7FFFFFFF, 0]
    assert on_lanes("cvt.rzi.u32.f32 {d}, {a};", floats)[:4].tolist() == [2, 0, 3000000000, 0]
    assert on_lanes("cvt.rn.f32.s32 {d}, {a};", vector([0xFFFFFFFF, 16777217])).view(np.float32)[
        :2
    ].tolist() == [-1.0, 16777216.0]


@pytest.fixture
def rng() -> np.random.Generator:
    """A seeded generator."""
    return np.random.default_rng(7)
