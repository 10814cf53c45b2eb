# SPDX-License-Identifier: Apache-2.0
"""Rounding to a named format in a named direction, and conversions of the formats NumPy lacks.

Everything goes through fp64, which holds fp32, fp16, bf16, tf32 and fp8 values exactly.

Source: PTX ISA 9.0, 9.7.9.21 (cvt), 5.2.3 (alternate formats); OCP 8-bit floating point specification 1.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Real, Value, Vector
from cutegemm.emulator.numbers.values import ND, SINT, UINT


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: stored mantissa bits, least exponent of a normal number, greatest value."""

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
    """`x` as the nearest value of a format in the direction `mode` (rn, rna, rz, rm, rp), in fp64.

    `finite` is .satfinite: what would overflow, infinities included, becomes the greatest value.
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
    else:  # a finite number overflows to infinity unless the direction points back
        back = {"rz": over, "rm": over & (x > 0), "rp": over & (x < 0)}.get(mode, np.zeros_like(over))
        stays = back & np.isfinite(x)
        out = np.where(over, np.copysign(np.inf, x), out)
    return np.where(stays, np.copysign(to.greatest, x), out)


def _int_or_vector(out: Vector) -> Value:
    return out if out.ndim else int(out)


def directed(x: npt.ArrayLike, name: str, mode: str, finite: bool) -> Value:
    """cvt to f32, tf32, f16 or bf16 with a rounding mode: bit patterns (of the fp32 that holds a tf32).

    The NaN of a tf32 is the operand with its low 13 bits cleared, that of fp64 its quieted top; else it is canonical.
    """
    value = round_to(x, name, mode, finite)
    if name == "f16":
        out = np.where(np.isnan(value), np.uint16(0x7FFF), value.astype(np.float16).view(np.uint16))
        return _int_or_vector(out.astype(np.uint32))
    bits = value.astype(np.float32).view(np.uint32)
    if name == "tf32":
        nan: Any = np.asarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    else:
        nan = bits if np.asarray(x).dtype == np.float64 else np.uint32(0x7FFFFFFF)
    quiet: Vector = np.where(np.isnan(value), nan, bits)
    return _int_or_vector(quiet >> np.uint32(16) if name == "bf16" else quiet)


@functools.cache
def fp8_values(name: str) -> np.ndarray:
    """fp64 values of the 128 patterns of e4m3 or e5m2 without sign."""
    to = FORMATS[name]
    pattern = np.arange(128)
    exponent, fraction = pattern >> to.mantissa, pattern & (1 << to.mantissa) - 1
    steps = np.where(exponent == 0, fraction, fraction + (1 << to.mantissa))
    out = np.ldexp(steps.astype(np.float64), np.maximum(exponent, 1) + to.least - 1 - to.mantissa)
    if name == "e5m2":
        out[0x7C] = np.inf
    return np.where(pattern > (0x7E if name == "e4m3" else 0x7C), np.nan, out)


def narrow_fp8(x: npt.ArrayLike, name: str) -> Value:
    """cvt.rn.satfinite to e4m3 or e5m2, as 8-bit patterns; NaN becomes 0x7f."""
    value = round_to(x, name, "rn", True)
    known = fp8_values(name)[: int(np.searchsorted(fp8_values(name), FORMATS[name].greatest)) + 1]
    pattern = np.searchsorted(known, np.abs(np.nan_to_num(value))) | np.where(np.signbit(value), 0x80, 0)
    return _int_or_vector(np.where(np.isnan(value), 0x7F, pattern).astype(np.uint32))


def widen_fp8(x: Value, name: str) -> Value:
    """Patterns of e4m3 or e5m2 (the low 8 bits) as fp16 patterns, exact; NaN becomes 0x7fff."""
    x = np.asarray(x & 0xFF)
    value = np.where(x & 0x80, -1.0, 1.0) * fp8_values(name)[x & 0x7F]
    out = np.where(np.isnan(value), np.uint16(0x7FFF), value.astype(np.float16).view(np.uint16))
    return _int_or_vector(out.astype(np.uint32))


def to_integer(
    x: npt.ArrayLike, source_bits: int, width: int, signed: bool, mode: str, reg_bits: int
) -> Value:
    """cvt from a float to an integer: rounded as `mode` (rni, rzi, rmi, rpi) and clamped.

    NaN gives 0, or the pattern of the top bit alone where source or target has 64 bits.
    """
    act = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode]
    rounded = act(np.asarray(x, np.float64))
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    nan = 1 << width - 1 if 64 in (source_bits, width) else 0
    mask = (1 << reg_bits) - 1

    def one(v: float) -> int:
        if v != v:
            return nan & mask
        return (int(min(max(v, low), high)) if abs(v) < 2.0**70 else (high if v > 0 else low)) & mask

    if rounded.ndim == 0:
        return one(float(rounded))
    return np.array([one(v) for v in rounded.tolist()], UINT[reg_bits])


def to_float(x: Value, width: int, signed: bool, kind: type[np.floating[Any]]) -> Real:
    """cvt.rn from an integer to fp32 or fp64, as values: the hot case, left to NumPy."""
    if x.__class__ is not ND:
        x = (x ^ (1 << width - 1)) - (1 << width - 1) if signed else x
        return kind(np.int64(x) if signed else np.uint64(x))
    x = x.astype(UINT[width])
    return (x.view(SINT[width]) if signed else x).astype(kind)


def from_integer(x: Value, width: int, signed: bool, name: str, mode: str) -> Value:
    """cvt from an integer to f16, bf16, f32 or f64 in a direction, rounded once: bit patterns."""
    flat = [int(v) for v in np.asarray(x).reshape(-1).tolist()]
    if signed:
        flat = [((v & (1 << width) - 1) ^ 1 << width - 1) - (1 << width - 1) for v in flat]
    if name == "f64":
        if mode != "rn" and any(abs(v) > 1 << 53 for v in flat):
            raise ValueError("a directed conversion of more than 53 bits is not emulated")
        whole = np.array(flat).astype(np.float64).view(np.uint64)
        return whole if x.__class__ is ND else int(whole[0])
    kept = np.array([_odd(v) for v in flat], np.float64)  # fp64, such that rounding again rounds once
    out = np.asarray(directed(kept, name, mode, False))
    return out if x.__class__ is ND else int(out[0])


def _odd(v: int) -> float:
    """An integer in 53 bits, rounded to odd."""
    drop = max(abs(v).bit_length() - 53, 0)
    kept = abs(v) >> drop
    kept |= bool(abs(v) & (1 << drop) - 1)
    return float(kept << drop) * (-1 if v < 0 else 1)
