# SPDX-License-Identifier: Apache-2.0
"""Floating point on register values: fp16, bf16, fp32 and fp64, rounded as PTX defines.

fma rounds once; min and max ignore NaN unless `.NaN`. Approximate functions are computed in fp64 and rounded once: they
are within the error that PTX documents, but their last bits may differ from the hardware.

Source: PTX ISA 9.0, 9.7.3 (floating point), 9.7.4 (half precision), 9.7.9.22 (cvt).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Real, Value, Vector
from cutegemm.emulator.numbers.values import ND, UINT, unbox

CANONICAL_NAN = 0x7FFFFFFF  # the only NaN that fp32 arithmetic returns
_HALF, _ONE, _NEARLY, _UPPER = (np.uint32(x) for x in (16, 1, 0x7FFF, 0xFFFF0000))
_TINY32 = np.float64(2.0**-126)  # smallest normal fp32


def f32(x: Value) -> Real:
    """Bits as fp32."""
    return x.view(np.float32) if x.__class__ is ND else np.uint32(x).view(np.float32)


def f64(x: Value) -> Real:
    """Bits as fp64."""
    return x.view(np.float64) if x.__class__ is ND else np.uint64(x).view(np.float64)


def f16(x: Value) -> Real:
    """The low 16 bits of a register as fp16."""
    return (x.astype(np.uint16) if x.__class__ is ND else np.uint16(x & 0xFFFF)).view(np.float16)


def bf16(x: Value) -> Real:
    """bf16 bits to fp32, exact."""
    return f32(x.astype(np.uint32) << _HALF if x.__class__ is ND else (x & 0xFFFF) << 16)


def bits(x: Real) -> Value:
    """Bits of a result, with fp32 NaNs canonical: an int for a scalar, else a vector."""
    if x.dtype.itemsize == 4:
        if x.__class__ is not ND:
            return int(x.view(np.uint32)) if x == x else CANONICAL_NAN
        total = x.dot(x)  # NaN if an element is NaN
        if total != total:
            x = np.where(np.isnan(x), f32(CANONICAL_NAN), x)
    return pattern(x)


def pattern(x: Real) -> Value:
    """Bits of a value: an int for a scalar, else a vector."""
    kind = UINT[x.dtype.itemsize * 8]
    return x.view(kind) if x.__class__ is ND else int(x.view(kind))


def nan64(result: Real, *operands: Real) -> Real:
    """An fp64 result in which a NaN is the first NaN of `operands`, quieted."""
    if not np.isnan(result).any():
        return result
    out = np.asarray(result)
    for x in reversed(operands):
        quiet = (np.asarray(x).view(np.uint64) | np.uint64(1 << 51)).view(np.float64)
        out = np.where(np.isnan(x) & np.isnan(result), quiet, out)
    return out[()]


def flush(x: Real) -> Real:
    """.ftz: subnormal fp32 becomes zero with the same sign."""
    return np.where(np.abs(x) < np.float32(_TINY32), np.copysign(np.float32(0), x), x)[()]


def saturate(x: Real) -> Real:
    """.sat: clamp to [0, 1], NaN and -0 to +0."""
    zero = x.dtype.type(0)
    return (np.clip(np.where(np.isnan(x), zero, x), zero, x.dtype.type(1)) + zero)[()]


def relu(x: Real) -> Real:
    """.relu: negative values and -0 become +0, NaN the canonical NaN."""
    return np.where(np.isnan(x) | (x > 0), x, x.dtype.type(0))[()]


def fma_ftz(a: Real, b: Real, c: Real | None = None) -> Real:
    """fp32 a*b or a*b+c rounded once to 24 bits; zero if the result is below all normal numbers."""
    exact = np.multiply(a, b, dtype=np.float64)
    if c is not None:
        exact = to_odd(exact, np.asarray(c, np.float64))
    below = np.abs(exact) < _TINY32 * (1 - 2.0**-25)
    return np.where(below, np.copysign(np.float32(0), exact), exact).astype(np.float32)[()]


def fma64_wide(a: Real, b: Real, c: Real) -> Vector:
    """fp16 or bf16 a*b+c in fp64, rounded to odd, so that rounding it again to 16 bits is correct."""
    return to_odd(np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64))


def div_approx(a: Real, b: Real) -> Real:
    """div.approx.f32: a divisor above 2**126 gives zero, or NaN of an infinity (PTX ISA 9.7.3.8)."""
    huge = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(b)
    beyond = np.where(np.isfinite(a), np.copysign(np.float32(0), a) * np.sign(b), np.float32(np.nan))
    return np.where(huge, beyond, a / b).astype(np.float32)[()]


def to_odd(a: Real, b: Real) -> Vector:
    """a+b rounded to odd in fp64, so that rounding it again to fewer bits is correct."""
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    even = np.asarray(total).view(np.uint64) & np.uint64(1) == 0
    nudge = (error != 0) & even & np.isfinite(total)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(nudge, np.nextafter(total, toward), total)


def fma64(a: Real, b: Real, c: Real) -> Real:
    """fp64 a*b+c rounded once, by exact fractions (slow, but rare)."""

    def one(x: Any, y: Any, z: Any) -> Any:
        if np.isinf(z) and np.isfinite(x) and np.isfinite(y):
            return z  # x * y may overflow fp64
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            return x * y + z
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            return x * y + z
        try:
            return np.float64(exact.numerator / exact.denominator)
        except OverflowError:
            return np.float64(np.inf if exact > 0 else -np.inf)

    lanes = np.broadcast(a, b, c)
    out = np.array([one(x, y, z) for x, y, z in lanes], np.float64)
    return out if lanes.nd else out[0]


def narrow_bf16(x: npt.ArrayLike) -> Value:
    """fp32 or fp64 to bf16 bits, nearest even; NaN becomes 0x7fff."""
    x = np.asarray(x)
    if x.dtype == np.float64:  # round to odd first, so that rounding it again is correct
        near = x.astype(np.float32)
        pattern = near.view(np.uint32)
        inexact = (near.astype(np.float64) != x) & (pattern & np.uint32(1) == 0) & np.isfinite(x)
        toward = np.where(x > near, np.float32(np.inf), np.float32(-np.inf))
        x = np.where(inexact, np.nextafter(near, toward), near)
    u = x.view(np.uint32)
    out = (u + (np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    out = np.where(np.isnan(x), np.uint32(0x7FFF), out)
    return unbox(out)


def narrow_f16(x: npt.ArrayLike) -> Value:
    """Floating-point values to fp16 bits, nearest even; NaN becomes 0x7fff."""
    x = np.asarray(x)
    out = np.where(np.isnan(x), np.uint16(0x7FFF), x.astype(np.float16).view(np.uint16)).astype(np.uint32)
    return unbox(out)


def narrow_double(x: npt.ArrayLike, name: str) -> Value:
    """cvt.rn from fp64 to f16 or bf16 bits: a NaN keeps its sign and the top of its payload."""
    x = np.asarray(x)
    out = np.asarray({"f16": narrow_f16, "bf16": narrow_bf16}[name](x), np.uint32)
    whole, fraction = x.view(np.uint64), {"f16": 10, "bf16": 7}[name]
    quiet = whole >> np.uint64(48) & np.uint64(0x8000) | np.uint64(0x7FFF & -1 << fraction - 1)
    quiet |= whole >> np.uint64(52 - fraction) & np.uint64((1 << fraction) - 1)
    out = np.where(np.isnan(x), quiet.astype(np.uint32), out)
    return unbox(out)


def pair(high: Value, low: Value) -> Value:
    """Two 16-bit patterns as one 32-bit register."""
    return high << 16 | low


def bf16x2(a: Value, b: Value) -> Value:
    """cvt.rn.bf16x2.f32 d, a, b: a in the high half; fast, since every epilogue uses it."""
    if a.__class__ is ND and b.__class__ is ND:
        probe = a.view(np.float32).dot(b.view(np.float32))
        if probe == probe:  # no NaN in either
            high, low = _rounded_half(a), _rounded_half(b)
            high &= _UPPER
            low >>= _HALF
            high |= low
            return high
    return pair(narrow_bf16(f32(a)), narrow_bf16(f32(b)))


def _rounded_half(u: Vector) -> Vector:
    """fp32 patterns rounded to nearest even in their upper 16 bits; the lower bits are arbitrary."""
    half = u >> _HALF
    half &= _ONE
    half += _NEARLY
    half += u
    return half


def extreme(a: Real, b: Real, largest: bool, keep_nan: bool) -> Real:
    """min and max, with -0 < +0; NaN is ignored unless `keep_nan`, which gives the canonical NaN."""
    if keep_nan:
        out = np.maximum(a, b) if largest else np.minimum(a, b)
    else:
        out = np.fmax(a, b) if largest else np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    if np.any(zeros):
        signs = np.signbit(a) & np.signbit(b) if largest else np.signbit(a) | np.signbit(b)
        out = np.where(zeros, np.where(signs, -0.0, 0.0).astype(np.asarray(out).dtype), out)[()]
    return out


def compare(a: Real, b: Real, relation: str) -> Value:
    """setp for floating point; the `u` relations are true if an operand is NaN."""
    nan = np.isnan(a) | np.isnan(b)
    out = {
        "num": ~nan,
        "nan": nan,
        "eq": a == b,
        "ne": (a != b) & ~nan,
        "lt": a < b,
        "le": a <= b,
        "gt": a > b,
        "ge": a >= b,
    }
    return unbox(out[relation] if relation in out else out[relation.removesuffix("u")] | nan)


APPROXIMATE: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda x: 1.0 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}


def unary(name: str, x: Real) -> Real:
    """A special function: computed in fp64, rounded once to the operand's type."""
    return APPROXIMATE[name](np.asarray(x, np.float64)).astype(x.dtype)[()]
