# SPDX-License-Identifier: Apache-2.0
"""The rarer scalar instructions against their definitions, each with its section of the PTX ISA (9.0)."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.emulator_launch import unary_on_lanes as on_lanes

EDGES = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
WORDS = st.integers(0, 2**32 - 1) | st.sampled_from(EDGES)
PAIRS = st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=32, max_size=32)


def signed(x: int, bits: int = 32) -> int:
    """Two's complement reading of the low bits."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> bits - 1 else x


def halves(f):
    """A function of two 16-bit numbers, applied to both halves of registers."""
    return lambda a, b: f(a >> 16, b >> 16) % 2**16 << 16 | f(a & 0xFFFF, b & 0xFFFF) % 2**16


def s16(f):
    """A function of signed 16-bit numbers."""
    return lambda x, y: f(signed(x, 16), signed(y, 16))


def bytes_of(a: int, sign: bool) -> list[int]:
    """The four bytes of a register."""
    return [signed(a >> 8 * i, 8) if sign else a >> 8 * i & 255 for i in range(4)]


def permuted(a: int, b: int, order: str) -> int:
    """Bytes of {b, a} named by their numbers, most significant first."""
    both = b << 32 | a
    return sum((both >> 8 * int(n) & 255) << 8 * (3 - i) for i, n in enumerate(order))


def clamp(x: int, bits: int = 32) -> int:
    """The nearest signed number of `bits`."""
    return min(max(x, -(1 << bits - 1)), (1 << bits - 1) - 1)


INTEGER = {  # instruction -> (definition on Python ints, PTX ISA section)
    "add.sat.s32 {d}, {a}, {b};": (lambda a, b: clamp(signed(a) + signed(b)), "9.7.1.1 add"),
    "sub.sat.s32 {d}, {a}, {b};": (lambda a, b: clamp(signed(a) - signed(b)), "9.7.1.2 sub"),
    "add.u16x2 {d}, {a}, {b};": (halves(lambda x, y: x + y), "9.7.1.1 add"),
    "min.s16x2 {d}, {a}, {b};": (halves(s16(min)), "9.7.1.12 min"),
    "max.u16x2 {d}, {a}, {b};": (halves(max), "9.7.1.13 max"),
    "max.relu.s16x2 {d}, {a}, {b};": (halves(s16(lambda x, y: max(x, y, 0))), "9.7.1.13 max"),
    "max.relu.s32 {d}, {a}, {b};": (lambda a, b: max(signed(a), signed(b), 0), "9.7.1.13 max"),
    "mad.lo.s32 {d}, {a}, {b}, 77;": (lambda a, b: a * b + 77, "9.7.1.4 mad"),
    "mad.hi.u32 {d}, {a}, {b}, 77;": (lambda a, b: (a * b >> 32) + 77, "9.7.1.4 mad"),
    "abs.s32 {d}, {a};": (lambda a, b: abs(signed(a)), "9.7.1.10 abs"),
    "bfind.u32 {d}, {a};": (lambda a, b: a.bit_length() - 1, "9.7.1.16 bfind"),
    "bfind.s32 {d}, {a};": (lambda a, b: (a ^ -(a >> 31) % 2**32).bit_length() - 1, "9.7.1.16 bfind"),
    "bfind.shiftamt.u32 {d}, {a};": (lambda a, b: 32 - a.bit_length() if a else -1, "9.7.1.16 bfind"),
    "mov.b64 %rd50, {{{b}, {a}}}; brev.b64 %rd51, %rd50; mov.b64 {{_, {d}}}, %rd51;": (
        lambda a, b: int(f"{b:032b}"[::-1], 2), "9.7.1.17 brev"),
    "sad.s32 {d}, {a}, {b}, {a};": (lambda a, b: a + abs(signed(a) - signed(b)), "9.7.1.9 sad"),
    "sad.u32 {d}, {a}, {b}, 5;": (lambda a, b: 5 + abs(a - b), "9.7.1.9 sad"),
    "mul24.lo.s32 {d}, {a}, {b};": (lambda a, b: signed(a, 24) * signed(b, 24), "9.7.1.5 mul24"),
    "mad24.lo.u32 {d}, {a}, {b}, {b};": (lambda a, b: a % 2**24 * (b % 2**24) + b, "9.7.1.6 mad24"),
    "bmsk.clamp.b32 {d}, {a}, {b};": (lambda a, b: (2 ** min(b, 32) - 1) << min(a, 32), "9.7.1.22 bmsk"),
    "bmsk.wrap.b32 {d}, {a}, {b};": (lambda a, b: (2 ** (b % 32) - 1) << a % 32, "9.7.1.22 bmsk"),
    "szext.clamp.s32 {d}, {a}, {b};": (
        lambda a, b: a if b >= 32 else b and signed(a, b), "9.7.1.21 szext"),
    "szext.wrap.u32 {d}, {a}, {b};": (lambda a, b: a % 2 ** (b % 32), "9.7.1.21 szext"),
    "dp4a.u32.s32 {d}, {a}, {b}, 5;": (
        lambda a, b: 5 + sum(x * y for x, y in zip(bytes_of(a, False), bytes_of(b, True))), "9.7.1.23 dp4a"),
    "dp4a.s32.s32 {d}, {a}, {b}, {a};": (
        lambda a, b: a + sum(x * y for x, y in zip(bytes_of(a, True), bytes_of(b, True))), "9.7.1.23 dp4a"),
    "dp2a.lo.u32.u32 {d}, {a}, {b}, 5;": (
        lambda a, b: 5 + (a & 0xFFFF) * (b & 255) + (a >> 16) * (b >> 8 & 255), "9.7.1.24 dp2a"),
    "dp2a.hi.s32.u32 {d}, {a}, {b}, {a};": (
        lambda a, b: a + signed(a, 16) * (b >> 16 & 255) + signed(a >> 16, 16) * (b >> 24), "9.7.1.24 dp2a"),
    "dp2a.lo.u32.s32 {d}, {a}, {b}, 0;": (
        lambda a, b: (a & 0xFFFF) * signed(b, 8) + (a >> 16) * signed(b >> 8, 8), "9.7.1.24 dp2a"),
    "or.b32 {d}, {a}, {b};": (lambda a, b: a | b, "9.7.8.2 or"),
    "not.b32 {d}, {a};": (lambda a, b: ~a, "9.7.8.4 not"),
    "cnot.b32 {d}, {a};": (lambda a, b: a == 0, "9.7.8.5 cnot"),
    "lop3.b32 {d}, {a}, {b}, {a}, 0x96;": (lambda a, b: a ^ b ^ a, "9.7.8.6 lop3"),
    "lop3.b32 {d}, {a}, {b}, 255, 0xb8;": (lambda a, b: (a & ~b) | (b & 255), "9.7.8.6 lop3"),
    "bfi.b32 {d}, {a}, {b}, 28, 8;": (lambda a, b: b & ~(15 << 28) | (a & 15) << 28, "9.7.1.20 bfi"),
    "bfi.b32 {d}, {a}, {b}, 0x104, 0x803;": (lambda a, b: b & ~(7 << 4) | (a & 7) << 4, "9.7.1.20 bfi"),
    "bfe.s32 {d}, {a}, 0x11c, {b};": (
        lambda a, b: b & 255 and signed(a >> 28, min(b & 255, 4)), "9.7.1.19 bfe"),
    "bfe.s32 {d}, {a}, 12, 5;": (lambda a, b: signed(a >> 12, 5), "9.7.1.19 bfe"),
    "prmt.b32 {d}, {a}, {b}, 0x9180;": (lambda a, b: (
        0xFF000000 * (a >> 15 & 1) | permuted(a, b, "0100") & 0xFF0000 | 0xFF00 * (a >> 7 & 1) | a & 255),
        "9.7.9.7 prmt"),
    "slct.u32.s32 {d}, {a}, {b}, {b};": (lambda a, b: a if signed(b) >= 0 else b, "9.7.6.4 slct"),
    "set.lt.u32.s32 {d}, {a}, {b};": (lambda a, b: -(signed(a) < signed(b)), "9.7.6.1 set"),
    "set.hi.f32.u32 {d}, {a}, {b};": (lambda a, b: 0x3F800000 if a > b else 0, "9.7.6.1 set"),
    "setp.ne.s32 %p0, {a}, 0; set.gt.or.s32.u32 {d}, {a}, {b}, %p0;": (lambda a, b: -(a > b or a != 0), "9.7.6.1 set"),
    "cvt.sat.s8.s32 %r50, {a}; mov.b32 {d}, %r50;": (lambda a, b: clamp(signed(a), 8), "9.7.9.21 cvt"),
    "cvt.s8.u8 {d}, {a};": (lambda a, b: signed(a, 8), "9.7.9.21 cvt"),
    "cvt.u16.s8 {d}, {a};": (lambda a, b: signed(a, 8) % 2**16, "9.7.9.21 cvt"),
    "cvt.sat.u16.s32 %r50, {a}; mov.b32 {d}, %r50;": (lambda a, b: min(max(signed(a), 0), 65535), "9.7.9.21 cvt"),
}  # fmt: skip


@pytest.mark.parametrize("text", list(INTEGER))
@settings(max_examples=4, deadline=None)
@given(values=PAIRS)
def test_integer_instructions(text, values):
    """Each gives its definition's result in every lane, and the same from uniform operands."""
    a, b, _ = (np.array(v, np.uint32) for v in zip(*values, strict=True))
    want = [INTEGER[text][0](int(x), int(y)) % 2**32 for x, y in zip(a, b, strict=True)]
    assert on_lanes(text, a, b).tolist() == want
    x, y = int(a[0]), int(b[0])
    body = text.replace("{a}", "%r60").replace("{b}", "%r61")
    uniform = on_lanes(f"mov.b32 %r60, {x}; mov.b32 %r61, {y}; {body}", np.zeros(32, np.uint32))
    assert set(uniform.tolist()) == {want[0]}


PERMUTES = {  # mode -> bytes of {b, a}, most significant first, for the controls 0 to 3
    "f4e": "3210 4321 5432 6543",
    "b4e": "5670 6701 7012 0123",
    "rc8": "0000 1111 2222 3333",
    "ecl": "3210 3211 3222 3333",
    "ecr": "0000 1110 2210 3210",
    "rc16": "1010 3232 1010 3232",
}


@pytest.mark.parametrize("mode", list(PERMUTES))
def test_prmt_in_its_special_modes(mode):
    """Forward and backward extraction, replication and edge clamping by the low two bits of c (9.7.9.7 prmt)."""
    a, b, c = (np.random.default_rng(i).integers(0, 2**32, 32, dtype=np.uint32) for i in range(3))
    orders = PERMUTES[mode].split()
    want = [permuted(int(x), int(y), orders[z & 3]) for x, y, z in zip(a, b, c, strict=True)]
    assert on_lanes(f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};", a, b, c).tolist() == want
    for control, order in enumerate(orders):
        got = on_lanes(f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {control};", a, b)
        assert got[0] == permuted(int(a[0]), int(b[0]), order)


@settings(max_examples=10, deadline=None)
@given(values=PAIRS)
def test_carries_chain_to_wider_numbers(values):
    """add.cc and addc, sub.cc and subc, mad.cc and madc act on two registers as one (9.7.2, extended precision)."""
    a, b, c = (np.array(v, np.uint32) for v in zip(*values, strict=True))
    wide = lambda high, low: int(high) << 32 | int(low)
    text = "add.cc.u32 %r50, {a}, {b}; addc.u32 %r51, {b}, {c}; mov.b64 {d}, {{%r50, %r51}};"
    got = on_lanes(text, a, b, c, out_bits=64)
    assert got.tolist() == [(wide(y, x) + wide(z, y)) % 2**64 for x, y, z in zip(a, b, c)]
    text = "sub.cc.u32 %r50, {a}, {b}; subc.cc.u32 %r51, {b}, {c}; subc.u32 %r52, 0, 0; mov.b64 {d}, {{%r50, %r51}};"
    got = on_lanes(text, a, b, c, out_bits=64)
    assert got.tolist() == [(wide(y, x) - wide(z, y)) % 2**64 for x, y, z in zip(a, b, c)]
    borrow = on_lanes(text.replace("mov.b64 {d}, {{%r50, %r51}};", "mov.b32 {d}, %r52;"), a, b, c)
    assert borrow.tolist() == [2**32 - 1 if wide(y, x) < wide(z, y) else 0 for x, y, z in zip(a, b, c)]
    text = "mad.lo.cc.u32 %r50, {a}, {b}, {c}; madc.hi.u32 %r51, {a}, {b}, {c}; mov.b64 {d}, {{%r50, %r51}};"
    got = on_lanes(text, a, b, c, out_bits=64)
    assert got.tolist() == [(int(x) * int(y) + wide(z, z)) % 2**64 for x, y, z in zip(a, b, c)]


def test_carries_of_64_bits_and_of_uniform_registers():
    """add.cc.u64 carries out of 64 bits; a carry of uniform operands is that of every lane (9.7.2.1, 9.7.2.2)."""
    x = np.array([2**64 - 1, 5, 2**63, 0] * 8, np.uint64)
    got = on_lanes("add.cc.u64 %rd50, {a}, {a}; addc.u32 {d}, 0, 0;", x)
    assert got.tolist() == [int(v) * 2 >> 64 for v in x]
    ones, one = np.full(32, 2**32 - 1, np.uint32), np.full(32, 1, np.uint32)
    text = "add.cc.u32 %r50, {a}, {b}; addc.cc.u32 %r51, {a}, 0; addc.u32 {d}, 0, 0;"  # the carry alone carries on
    assert set(on_lanes(text, ones, one).tolist()) == {1}
    text = "sub.cc.u32 %r50, 0, {b}; subc.cc.u32 %r51, {b}, {b}; subc.u32 {d}, 5, 0;"
    assert set(on_lanes(text, ones, one).tolist()) == {4}
    text = "mov.b32 %r50, -1; add.cc.u32 %r51, %r50, 1; addc.u32 {d}, %r51, 7;"
    assert set(on_lanes(text, np.zeros(32, np.uint32)).tolist()) == {8}


def f32(x: np.ndarray) -> np.ndarray:
    """fp32 as patterns."""
    return np.asarray(x, np.float32).view(np.uint32)


SPECIAL32 = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 2.0**-130, -(2.0**-149), 3e38]


def lanes(values) -> np.ndarray:
    """32 fp32 patterns from any number of values, repeated."""
    return f32([values[i % len(values)] for i in range(32)])


def test_copysign_takes_the_sign_of_its_first_operand():
    """copysign.f32 d, a, b: magnitude of b, sign of a (9.7.3.2 copysign)."""
    a, b = lanes(SPECIAL32), lanes(SPECIAL32[::-1])
    assert (
        on_lanes("copysign.f32 {d}, {a}, {b};", a, b).tolist() == (a & 0x80000000 | b & 0x7FFFFFFF).tolist()
    )


PROPERTIES = {
    "finite": math.isfinite,
    "infinite": math.isinf,
    "number": lambda x: not math.isnan(x),
    "notanumber": math.isnan,
    "normal": lambda x: math.isfinite(x) and abs(x) >= 2.0**-126,
    "subnormal": lambda x: 0 < abs(x) < 2.0**-126,
}


@pytest.mark.parametrize("name", list(PROPERTIES))
def test_testp_knows_every_property(name):
    """testp.f32 of each class of number (9.7.3.1 testp)."""
    got = on_lanes(f"testp.{name}.f32 %p1, {{a}}; selp.b32 {{d}}, 1, 0, %p1;", lanes(SPECIAL32))
    assert got[: len(SPECIAL32)].tolist() == [int(PROPERTIES[name](np.float32(x))) for x in SPECIAL32]


def test_min_and_max_of_magnitudes_multiply_the_signs():
    """max.xorsign.abs.f32 (9.7.3.12 max)."""
    a, b = lanes([1.0, -3.0, -2.0, 0.5]), lanes([-2.0, -1.0, 2.5, 4.0])
    got = on_lanes("max.xorsign.abs.f32 {d}, {a}, {b};", a, b).view(np.float32)
    assert got[:4].tolist() == [-2.0, 3.0, -2.5, 4.0]


def test_half_precision_saturates_and_flushes():
    """add.sat.f16x2, mul.ftz.f16 and fma.rn.relu.bf16x2 (9.7.4, half precision)."""
    half = lambda *v: np.array([v[i % len(v)] for i in range(64)], np.float16).view(np.uint32)
    got = on_lanes("add.sat.f16x2 {d}, {a}, {b};", half(0.75, -1.0), half(0.5, 0.25)).view(np.float16)
    assert got[:2].tolist() == [1.0, 0.0]
    small = np.array([2.0**-15] * 32, np.float16).view(np.uint16)
    one = np.array([1.0] * 32, np.float16).view(np.uint16)
    assert set(on_lanes("mul.f16 {d}, {a}, {b};", small, one, out_bits=16).tolist()) == {int(small[0])}
    assert set(on_lanes("mul.ftz.f16 {d}, {a}, {b};", small, one, out_bits=16).tolist()) == {0}
    packed = lambda high, low: np.full(
        32, int(f32([high])[0]) & 0xFFFF0000 | int(f32([low])[0]) >> 16, np.uint32
    )
    got = on_lanes(
        "fma.rn.relu.bf16x2 {d}, {a}, {b}, {c};", packed(2.0, -3.0), packed(4.0, 1.5), packed(1.0, 1.0)
    )
    assert set(got.tolist()) == {int(packed(9.0, 0.0)[0])}


def test_packed_comparison_gives_a_predicate_per_half():
    """setp.f16x2 p|q and set.f16x2 (9.7.7.2 setp, 9.7.7.1 set): p is of the low half."""
    a = np.array([1.0, 2.0] * 32, np.float16).view(np.uint32)
    b = np.array([1.5, 1.5, math.nan, 2.0] * 16, np.float16).view(np.uint32)
    text = "setp.lt.f16x2 %p1|%p2, {a}, {b};"
    text += " selp.b32 %r50, 1, 0, %p1; selp.b32 %r51, 2, 0, %p2; or.b32 {d}, %r50, %r51;"
    assert on_lanes(text, a, b)[:2].tolist() == [1, 0]
    assert on_lanes(text.replace("lt", "geu"), a, b)[:2].tolist() == [2, 3]
    assert on_lanes("set.eq.f16x2.f16x2 {d}, {a}, {b};", a, b)[:2].tolist() == [0, 0x3C000000]
    assert on_lanes("set.ne.u32.f16x2 {d}, {a}, {b};", a, b)[:2].tolist() == [0xFFFFFFFF, 0]
    bf16 = lambda x: np.full(32, int(f32([x])[0]) >> 16, np.uint16)
    text = "setp.gt.bf16 %p1, {a}, {b}; selp.b32 {d}, 1, 0, %p1;"
    assert set(on_lanes(text, bf16(2.0), bf16(1.0)).tolist()) == {1}


BOUNDS = {  # instruction -> (exact function, inputs, greatest error given the exact result, section)
    "tanh.approx.f16": (np.tanh, (-4, 4), lambda y: 2.0**-10.987, "9.7.4.9 tanh"),
    "tanh.approx.bf16": (np.tanh, (-4, 4), lambda y: np.abs(y) * 2.0**-8, "9.7.4.9 tanh"),
    "ex2.approx.f16": (np.exp2, (-8, 8), lambda y: y * 2.0**-9.9, "9.7.4.10 ex2"),
    "ex2.approx.ftz.bf16": (np.exp2, (-8, 8), lambda y: y * 2.0**-7, "9.7.4.10 ex2"),
}


@pytest.mark.parametrize("name", list(BOUNDS))
@pytest.mark.parametrize("packed", ["", "x2"])
def test_half_precision_functions_stay_within_their_error(name, packed):
    """tanh and ex2 of fp16, bf16 and their pairs."""
    act, (low, high), bound, _ = BOUNDS[name]
    rng = np.random.default_rng(2)
    x = rng.uniform(low, high, 64).astype(np.float32)
    patterns = f32(x) >> 16 if "bf16" in name else x.astype(np.float16).view(np.uint16)
    patterns = patterns.astype(np.uint16)
    read = lambda p: (p.astype(np.uint32) << 16).view(np.float32) if "bf16" in name else p.view(np.float16)
    if packed:
        got = on_lanes(f"{name}x2 {{d}}, {{a}};", patterns.view(np.uint32)).view(np.uint16)
    else:
        got = on_lanes(f"{name} {{d}}, {{a}};", patterns[:32].copy(), out_bits=16)
    exact = act(read(patterns[: len(got)]).astype(np.float64))
    assert (np.abs(read(got).astype(np.float64) - exact) <= bound(exact)).all()


FTZ = [
    "ex2.approx.ftz.f32",
    "lg2.approx.ftz.f32",
    "rcp.approx.ftz.f32",
    "sqrt.approx.ftz.f32",
    "rsqrt.approx.ftz.f32",
]


@pytest.mark.parametrize("name", FTZ)
def test_ftz_functions_take_a_subnormal_number_for_zero(name):
    """What .ftz does to the input of ex2, lg2, rcp, sqrt and rsqrt (9.7.3.13 to 9.7.3.21)."""
    got = on_lanes(f"{name} {{d}}, {{a}};", lanes([2.0**-130, -0.0, 0.0, -(2.0**-140)])).view(np.float32)
    at_zero = {"ex2": 1.0, "lg2": -math.inf, "rcp": math.inf, "sqrt": 0.0, "rsqrt": math.inf}[
        name.split(".")[0]
    ]
    assert got[0] == got[2] == at_zero
    if name.startswith("rcp"):
        assert got[1] == got[3] == -math.inf


@pytest.mark.parametrize("name, act", [("rcp.rn.f32", lambda x: 1 / x), ("sqrt.rn.f32", np.sqrt)])
def test_rounded_functions_are_rounded_once(name, act):
    """rcp.rn and sqrt.rn of fp32 equal the fp64 result rounded (9.7.3.13 rcp, 9.7.3.15 sqrt)."""
    x = np.random.default_rng(4).uniform(1e-3, 1e3, 32).astype(np.float32)
    want = act(x.astype(np.float64)).astype(np.float32)
    assert on_lanes(f"{name} {{d}}, {{a}};", f32(x)).tolist() == f32(want).tolist()


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine(name):
    """sin.approx and cos.approx within 2^-20.9 over [-pi, pi] (9.7.3.18 sin, 9.7.3.19 cos)."""
    x = np.random.default_rng(5).uniform(-math.pi, math.pi, 32).astype(np.float32)
    got = on_lanes(f"{name}.approx.f32 {{d}}, {{a}};", f32(x)).view(np.float32).astype(np.float64)
    assert (np.abs(got - getattr(np, name)(x.astype(np.float64))) <= 2.0**-20.9).all()


def test_double_precision_fma_is_rounded_once():
    """fma.rn.f64: the low half of a product survives a cancellation (9.7.3.6 fma)."""
    x = 1 + 2.0**-30
    pattern = lambda v: np.full(32, struct.unpack("<Q", struct.pack("<d", v))[0], np.uint64)
    got = on_lanes("fma.rn.f64 {d}, {a}, {a}, {b};", pattern(x), pattern(-(x * x)), out_bits=64)
    assert set(got.view(np.float64).tolist()) == {2.0**-60}
