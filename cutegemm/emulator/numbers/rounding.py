# SPDX-License-Identifier: Apache-2.0
"""Rounding to a format in a direction, and conversions that NumPy lacks.

All is computed in fp64, which represents fp32, fp16, bf16, tf32 and fp8 exactly.

Source: PTX ISA 9.0, 9.7.9.21 (cvt), 5.2.3 (alternate formats); OCP 8-bit floating point specification 1.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.floats import narrow_f16, to_odd
from cutegemm.emulator.numbers.types import Real, Value, Vector
from cutegemm.emulator.numbers.values import ND, UINT, as_wide, signed, unbox, wrap


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: mantissa bits, least exponent of a normal number, greatest value."""

    mantissa: int
    least: int
    greatest: float


FORMATS = {
    "f32": Format(23, -126, (2 - 2.0**-23) * 2.0**127),
    "tf32": Format(10, -126, (2 - 2.0**-10) * 2.0**127),
    "bf16": Format(7, -126, (2 - 2.0**-7) * 2.0**127),
    "f16": Format(10, -14, 65504.0),
    "e5m2": Format(2, -14, 57344.0),
    "e4m3": Format(3, -6, 448.0),
}
_DIRECTIONS: dict[str, Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]] = {
    "rn": np.rint,
    "rz": np.trunc,
    "rm": np.floor,
    "rp": np.ceil,
    "rna": lambda q: np.trunc(q + np.copysign(0.5, q)),
}


def round_to(x: npt.ArrayLike, name: str, mode: str, finite: bool = False) -> npt.NDArray[np.float64]:
    """`x` rounded to a format in the direction `mode` (rn, rna, rz, rm, rp), in fp64.

    `finite` is .satfinite: values that overflow, and infinities, become the greatest value.
    """
    to = FORMATS[name]
    x = np.asarray(x, np.float64)
    _, exponent = np.frexp(x)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, to.least) - to.mantissa)
    out = _DIRECTIONS[mode](x / quantum) * quantum
    out = np.where(np.isfinite(x), np.copysign(out, x), x)
    over = np.abs(out) > to.greatest
    if finite:
        stays = over
    else:  # a finite number overflows to infinity, unless it is rounded toward zero
        back = {"rz": over, "rm": over & (x > 0), "rp": over & (x < 0)}.get(mode, np.zeros_like(over))
        stays = back & np.isfinite(x)
        out = np.where(over, np.copysign(np.inf, x), out)
    return np.where(stays, np.copysign(to.greatest, x), out)


def rounded(name: str, mode: str, *operands: Real) -> Real:
    """An fp32 instruction rounded in a direction (rz, rm, rp).

    The fp64 result, with sums rounded to odd, is on the same side of each fp32 number as the exact one.
    """
    a, b, *c = (np.asarray(x, np.float64) for x in (*operands, 1.0)[:3])
    if name in ("add", "sub", "fma", "mad"):
        x, y = (a * b, c[0]) if name in ("fma", "mad") else (a, -b if name == "sub" else b)
        exact = to_odd(x, y)
        if mode == "rm":
            exact = np.where((exact == 0) & (np.signbit(x) != np.signbit(y)), -0.0, exact)
    else:
        exact = {"mul": a * b, "div": a / b, "rcp": b / a, "sqrt": np.sqrt(a)}[name]
    return round_to(exact, "f32", mode).astype(np.float32)[()]


def directed(x: npt.ArrayLike, name: str, mode: str, finite: bool) -> Value:
    """cvt to f32, tf32, f16 or bf16 with a rounding mode; returns bits (of fp32 for tf32).

    A NaN becomes canonical. For tf32 only its low 13 bits are cleared; from fp64 its top is kept and quieted.
    """
    value = round_to(x, name, mode, finite)
    if name == "f16":
        return narrow_f16(value)
    bits = value.astype(np.float32).view(np.uint32)
    if name == "tf32":
        nan: Any = np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    else:
        nan = bits if np.asarray(x).dtype == np.float64 else np.uint32(0x7FFFFFFF)
    quiet: Vector = np.where(np.isnan(value), nan, bits)
    return unbox(quiet >> np.uint32(16) if name == "bf16" else quiet)


@functools.cache
def fp8_values(name: str) -> np.ndarray:
    """fp32 values of all 256 patterns of e4m3 or e5m2."""
    to = FORMATS[name]
    pattern = np.arange(128)
    exponent, fraction = pattern >> to.mantissa, pattern & (1 << to.mantissa) - 1
    steps = np.where(exponent == 0, fraction, fraction + (1 << to.mantissa))
    out = np.ldexp(steps.astype(np.float64), np.maximum(exponent, 1) + to.least - 1 - to.mantissa)
    if name == "e5m2":
        out[0x7C] = np.inf
    out[0x7F if name == "e4m3" else 0x7D :] = np.nan
    return np.concatenate((out, -out)).astype(np.float32)


def narrow_fp8(x: npt.ArrayLike, name: str) -> Value:
    """cvt.rn.satfinite to e4m3 or e5m2, as 8-bit patterns; NaN becomes 0x7f."""
    value = round_to(x, name, "rn", True)
    positive = fp8_values(name)[:128]
    finite = positive[np.isfinite(positive)]
    pattern = np.searchsorted(finite, np.abs(np.nan_to_num(value))) | np.where(np.signbit(value), 0x80, 0)
    return unbox(np.where(np.isnan(value), 0x7F, pattern).astype(np.uint32))


def widen_fp8(x: Value, name: str) -> Value:
    """e4m3 or e5m2 in the low 8 bits to fp16 bits, exact; NaN becomes 0x7fff."""
    return narrow_f16(fp8_values(name)[x & 0xFF])


def integral(x: Any, mode: str) -> Any:
    """Round to an integer in floating point: rni, rzi, rmi or rpi."""
    return _DIRECTIONS[mode[:2]](x)


def to_integer(
    x: npt.ArrayLike, source_bits: int, width: int, is_signed: bool, mode: str, reg_bits: int
) -> Value:
    """cvt from floating point to integer: rounded as `mode` (rni, rzi, rmi, rpi) and clamped.

    NaN gives 0; if source or target has 64 bits it gives the top bit.
    """
    rounded = _DIRECTIONS[mode[:2]](np.asarray(x, np.float64))
    low, high = integer_range(width, is_signed)
    nan = 1 << width - 1 if 64 in (source_bits, width) else 0
    mask = (1 << reg_bits) - 1

    def one(v: float) -> int:
        if v != v:
            return nan & mask
        return (int(min(max(v, low), high)) if abs(v) < 2.0**70 else (high if v > 0 else low)) & mask

    if rounded.ndim == 0:
        return one(float(rounded))
    return np.array([one(v) for v in rounded.tolist()], UINT[reg_bits])


def integer_range(width: int, is_signed: bool) -> tuple[int, int]:
    """The least and the greatest integer of `width` bits."""
    return (-(1 << width - 1), (1 << width - 1) - 1) if is_signed else (0, (1 << width) - 1)


def saturate_integer(x: Value, source: str, to: str, bits: int) -> Value:
    """cvt.sat between integers: clamp to the target's range."""
    wide = as_wide(x, int(source[1:]), source[0] == "s")
    clamped: Value = np.clip(wide, *integer_range(int(to[1:]), to[0] == "s"))
    return wrap(clamped, bits)


def to_float(x: Value, width: int, is_signed: bool, kind: type[np.floating[Any]]) -> Real:
    """cvt.rn from an integer to fp32 or fp64; returns values."""
    x = signed(wrap(x, width), width) if is_signed else wrap(x, width)
    if x.__class__ is ND:
        return x.astype(kind)
    return kind(np.int64(x) if is_signed else np.uint64(x))


def from_integer(x: Value, width: int, is_signed: bool, name: str, mode: str) -> Value:
    """cvt from an integer to f16, bf16, f32 or f64 in a direction, rounded once; returns bits."""
    flat = [int(v) for v in np.asarray(x).reshape(-1).tolist()]
    if is_signed:
        flat = [signed(v & (1 << width) - 1, width) for v in flat]
    kept = np.array([_in_53_bits(v, mode if name == "f64" else "odd") for v in flat], np.float64)
    out: Any = kept.view(np.uint64) if name == "f64" else np.asarray(directed(kept, name, mode, False))
    return out if x.__class__ is ND else int(out[0])


def _in_53_bits(v: int, mode: str) -> float:
    """An integer of at most 64 bits, rounded in a direction, or to odd so that rounding it again is correct."""
    drop = max(abs(v).bit_length() - 53, 0)
    kept, rest = abs(v) >> drop, abs(v) & (1 << drop) - 1
    half = (1 << drop) // 2
    up = {
        "odd": not kept & 1,
        "rn": rest > half or (rest == half and bool(kept & 1)),
        "rp": v > 0,
        "rm": v < 0,
    }
    kept += bool(rest) and up.get(mode, False)
    return float(kept << drop) * (-1 if v < 0 else 1)
