# SPDX-License-Identifier: Apache-2.0
"""Conversions to and from narrow and rounded types against their definitions (PTX ISA 9.0, 9.7.9.21, cvt)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.support.emulator_launch import exact_fp8
from tests.support.emulator_launch import unary_on_lanes as on_lanes


def f32(x: np.ndarray) -> np.ndarray:
    """fp32 as patterns."""
    return np.asarray(x, np.float32).view(np.uint32)


FP8 = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}  # mantissa bits, bias, pattern of the greatest number


@pytest.mark.parametrize("kind", list(FP8))
def test_fp8_conversion_is_to_the_nearest_number(kind):
    """cvt.rn.satfinite.e4m3x2.f32 and e5m2x2 pick the nearest, ties to even, and saturate (9.7.9.21 cvt)."""
    mantissa, bias, top = FP8[kind]
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(4096) * 2.0 ** rng.integers(-20, 18, 4096)).astype(np.float32)
    ties = [(exact_fp8(p, mantissa, bias) + exact_fp8(p + 1, mantissa, bias)) / 2 for p in range(0, top, 3)]
    x[: len(ties)] = ties
    x[-3:] = math.inf, -math.inf, 1e30
    values = np.array([exact_fp8(p, mantissa, bias) for p in range(top + 1)])
    for row in x.reshape(-1, 32):
        got = on_lanes(
            f"cvt.rn.satfinite.{kind}x2.f32 %rs40, {{a}}, 0f3F800000; cvt.u32.u16 {{d}}, %rs40;", f32(row)
        )
        assert set((got & 255).tolist()) == {bias << mantissa}  # 1.0 in the low half
        for v, high in zip(row.tolist(), (got >> 8).tolist(), strict=True):
            distance = np.abs(values - min(abs(v), values[-1]))
            nearest = np.flatnonzero(distance == distance.min())
            assert high & 127 in nearest and (len(nearest) == 1 or high % 2 == 0), v
            assert high >> 7 == (math.copysign(1, v) < 0)


@pytest.mark.parametrize("kind", list(FP8))
def test_fp8_widens_exactly_and_keeps_nan(kind):
    """cvt.rn.f16x2.e4m3x2 of all patterns, cvt.rn.satfinite.relu from f16x2, NaN to 0x7f (9.7.9.21 cvt)."""
    mantissa, bias, top = FP8[kind]
    for start in range(0, 256, 32):
        pattern = np.arange(start, start + 32).astype(np.uint16)
        got = on_lanes(f"cvt.rn.f16x2.{kind}x2 {{d}}, {{a}};", pattern).view(np.float16)[::2]
        for p, value in zip(pattern.tolist(), got.tolist(), strict=True):
            if p & 127 <= top:
                assert value == exact_fp8(p, mantissa, bias)
            else:
                assert math.isnan(value) or (kind == "e5m2" and p & 127 == 0x7C and math.isinf(value))
    pair = np.array([math.nan, -3.0] * 32, np.float16).view(np.uint32)
    text = f"cvt.rn.satfinite.relu.{kind}x2.f16x2 %rs40, {{a}}; cvt.u32.u16 {{d}}, %rs40;"
    assert set(on_lanes(text, pair).tolist()) == {0x007F}


def neighbours(x: float, bits: int) -> tuple[float, float]:
    """The greatest fp32 of `bits` mantissa bits not above x, and the least not below (normal numbers)."""
    step = 2.0 ** (math.floor(math.log2(abs(x))) - bits)
    return math.floor(x / step) * step, math.ceil(x / step) * step


DIRECTED = {  # instruction -> (mantissa bits, choice between the lower and the upper neighbour)
    "cvt.rz.bf16.f32 %rs40, {a}; mov.b32 {d}, {{0, %rs40}};": (7, lambda x, low, high: low if x > 0 else high),
    "cvt.rz.bf16x2.f32 {d}, {a}, {a}; and.b32 {d}, {d}, 0xFFFF0000;": (7, lambda x, low, high: low if x > 0 else high),
    "cvt.rna.tf32.f32 {d}, {a};": (10, lambda x, low, high: min(
        (high, low), key=lambda v: (abs(v - x), -abs(v)))),
    "cvt.rn.tf32.f32 {d}, {a};": (10, lambda x, low, high: min(
        (high, low), key=lambda v: (abs(v - x), int(f32([v])[0]) >> 13 & 1))),
}  # fmt: skip


@pytest.mark.parametrize("text", list(DIRECTED))
def test_directed_conversions_pick_the_neighbour_they_name(text):
    """cvt.rz to bf16, cvt.rna and .rn to tf32 (9.7.9.21 cvt)."""
    bits, choose = DIRECTED[text]
    rng = np.random.default_rng(1)
    x = (rng.standard_normal(32) * 8).astype(np.float32)
    x[:4] = 1 + 2.0 ** -(bits + 1), 1 + 3 * 2.0 ** -(bits + 1), -1 - 2.0 ** -(bits + 1), 1.0
    got = on_lanes(text, f32(x)).view(np.float32)
    assert got.tolist() == [choose(v, *neighbours(v, bits)) for v in x.tolist()]


@pytest.mark.parametrize("mode, act", [("rz", 0), ("rm", -1), ("rp", 1)])
def test_integers_convert_in_a_direction(mode, act):
    """cvt.rz/rm/rp.f32.s32 of numbers with more than 24 bits (9.7.9.21 cvt)."""
    x = [16777217, -16777217, 2**31 - 1, -(2**31) + 1, 3]
    got = on_lanes(f"cvt.{mode}.f32.s32 {{d}}, {{a}};", np.array(x * 8, np.int64).astype(np.uint32)[:32])
    for v, d in zip(x, got.view(np.float32).tolist()):
        low, high = neighbours(v, 23)
        assert d == {0: low if v > 0 else high, -1: low, 1: high}[act]


EXACTLY = {  # instruction -> its exact result
    "add.{} {d}, {a}, {b};": lambda a, b: a + b,
    "sub.{} {d}, {a}, {b};": lambda a, b: a - b,
    "mul.{} {d}, {a}, {b};": lambda a, b: a * b,
    "fma.{} {d}, {a}, {b}, {b};": lambda a, b: a * b + b,
    "div.{} {d}, {a}, {b};": lambda a, b: a / b,
    "rcp.{} {d}, {b};": lambda a, b: 1 / b,
}


@pytest.mark.parametrize("text", list(EXACTLY))
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_fp32_arithmetic_rounds_in_a_direction(text, mode):
    """The result is the neighbour of the exact one that the mode names; a difference of zero is -0 if rounded down."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(64) * 2.0 ** rng.integers(-30, 30, 64) for _ in "ab")
    b[:4] = 2.0**100, -(2.0**-100), 1, 3
    x, y = (np.array(v, np.float32) for v in (a, b))
    got = on_lanes(text.replace("{}", f"{mode}.f32"), f32(x), f32(y)).view(np.float32)
    for p, q, d in zip(x.tolist(), y.tolist(), got, strict=True):
        want = EXACTLY[text](Fraction(p), Fraction(q))
        down, up = (Fraction(float(np.nextafter(d, np.float32(way)))) for way in (-np.inf, np.inf))
        below = mode == "rm" or (mode == "rz" and want > 0)
        assert Fraction(float(d)) <= want < up if below else down < want <= Fraction(float(d)), (p, q)
    zero = on_lanes(f"sub.{mode}.f32 {{d}}, {{a}}, {{a}};", f32(x))
    assert set(zero.tolist()) == {1 << 31 if mode == "rm" else 0}


@pytest.mark.parametrize("mode, act", [("rz", 0), ("rm", -1), ("rp", 1)])
def test_wide_integers_convert_to_fp64_in_a_direction(mode, act):
    """cvt.rz/rm/rp.f64.s64 of numbers with more than 53 bits (9.7.9.21 cvt)."""
    x = [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 3]
    got = on_lanes(
        f"cvt.{mode}.f64.s64 {{d}}, {{a}};", np.array(x * 7, np.int64)[:32].view(np.uint64), out_bits=64
    )
    for v, d in zip(x, got.view(np.float64).tolist()):
        error = int(d) - v
        assert error == 0 or {0: (error < 0) == (v > 0), -1: error < 0, 1: error > 0}[act]
        assert abs(error) < 2**11


def test_fp16_converts_to_bf16_and_relu_gives_no_negative_zero():
    """cvt.rn.bf16.f16 rounds to 8 bits; cvt.relu of -0 is +0 (9.7.9.21 cvt)."""
    x = np.array([1.0, 1.00390625, 1.01171875, -65504, 2.0**-24, -0.0, math.inf, 0.5] * 4, np.float16)
    got = on_lanes("cvt.rn.bf16.f16 %rs40, {a}; cvt.u32.u16 {d}, %rs40;", x.view(np.uint16)) << 16
    assert got.view(np.float32)[:8].tolist() == [1, 1, 1.015625, -65536, 2.0**-24, 0, math.inf, 0.5]
    text = "cvt.rn.satfinite.relu.e4m3x2.f16x2 %rs40, {a}; cvt.u32.u16 {d}, %rs40;"
    assert set(on_lanes(text, np.full(32, 0x80008000, np.uint32)).tolist()) == {0}


def test_nan_becomes_the_top_bit_of_64_bit_integers():
    """cvt.rzi.s64.f32 of NaN is 0x8000000000000000, of s32 zero (9.7.9.21 cvt)."""
    x = f32([math.nan, 2.75, -1e30, 1e30] * 8)
    got = on_lanes("cvt.rzi.s64.f32 {d}, {a};", x, out_bits=64)
    assert got[:4].tolist() == [1 << 63, 2, 1 << 63, (1 << 63) - 1]
    assert on_lanes("cvt.rzi.s32.f32 {d}, {a};", x)[0] == 0
