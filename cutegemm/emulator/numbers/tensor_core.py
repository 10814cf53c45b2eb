# SPDX-License-Identifier: Apache-2.0
"""The sums of Hopper's tensor cores, bit for bit, for wgmma, mma.sync and wmma.

One instruction adds K products and the accumulator at once, for each element of D:

1. Every term is a significand and an exponent: a product has the product of the significands, in [1, 4) unless an
   operand is subnormal, and the sum of the exponents; nothing is rounded or normalised. Zeros have no exponent.
2. All terms are aligned to the greatest exponent and truncated to `Unit.fraction` bits below it.
3. The aligned terms are added exactly.
4. The sum is truncated to fp32 (rounded to nearest even for fp16 accumulators). A sum of zero is +0.

An instruction with 16-bit operands has K = 16, with tf32 K = 8. With fp8 operands wgmma keeps 13 bits in steps 2 and 4.
A NaN, or infinities with different signs, give the canonical NaN.

Source: the model of MMA-Sim (arXiv 2511.10909, section IV), checked against recordings of an H200
(`benchmarks/emulator_record.py`, tests/emulator/fixtures).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.floats import f16, f32
from cutegemm.emulator.numbers.rounding import FORMATS
from cutegemm.emulator.numbers.tensor_core_jit import NO_EXPONENT, Split, add
from cutegemm.emulator.numbers.types import Floats, Vector

_NAN = {"f32": f32(0x7FFFFFFF), "f16": f16(0x7FFF)}


@dataclass(frozen=True)
class Unit:
    """The adder of an instruction: operand and accumulator types, products per instruction."""

    kind: str
    out: str
    depth: int

    @property
    def fraction(self) -> int:
        """Bits that are kept below the greatest exponent; a normal fp32 result has at most 23."""
        return 13 if self.kind in ("e4m3", "e5m2") else 25


def accumulate(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: Unit, b_kind: str = "") -> np.ndarray:
    """D (P, M, N) of A (P, M, K) B (P, N, K)^T + C (P, M, N) for P independent problems.

    A and B are operand values in fp32; C and D have type `unit.out`. K is a multiple of `unit.depth`, the K of one
    instruction. `b_kind` is B's type if it differs from A's.
    """
    left, right = split(a, unit.kind), split(b, b_kind or unit.kind)
    if unit.out == "f32" and max(left[1].max(), right[1].max()) < 128:
        by_columns = [np.ascontiguousarray(x.swapaxes(-1, -2)) for x in right]  # (P, K, N)
        d = add([np.ascontiguousarray(x) for x in left], by_columns, c, unit.depth, unit.fraction)
        if d is not None:
            return d
    for k in range(0, a.shape[-1], unit.depth):
        at = slice(k, k + unit.depth)
        c = _step(a[..., at], b[..., at], c, [x[..., at] for x in (*left, *right)], unit)
    return c


def accumulate_fp8(a: np.ndarray, b: np.ndarray, c: np.ndarray, out: str) -> np.ndarray:
    """D of mma.sync with fp8 operands, which sm_90 computes in fp16.

    ptxas converts the operands. The first instruction multiplies the lower two bytes of each register, the second the
    upper two; C is added to their sum.
    """
    k = a.shape[-1]
    columns = np.arange(k).reshape(-1, 2, 2).swapaxes(0, 1).reshape(2, -1)
    total = np.zeros_like(c)
    for half in columns:
        total = accumulate(a[..., half], b[..., half], total, Unit("f16", out, k // 2))
    total = total + c
    return np.where(np.isnan(total), _NAN[out], total)


def accumulate_integers(
    a: Floats, b: Floats, c: npt.NDArray[np.int32], depth: int, saturates: bool
) -> npt.NDArray[np.int32]:
    """D (..., M, N) of A (..., M, K) B (..., N, K)^T + C, for 8-bit integers in fp32; K is at most eight times `depth`.

    A sum of 256 products of bytes is exact in fp32. A sum beyond 32 bits wraps, or saturates in each instruction.
    """
    total = c.astype(np.int64)
    width = a.shape[-1]
    may_saturate = saturates and np.abs(total).max() + width * 255 * 255 >= 1 << 31
    step = depth if may_saturate else width
    for k in range(0, width, step):
        total += (a[..., k : k + step] @ b[..., k : k + step].swapaxes(-1, -2)).astype(np.int64)
        if may_saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.int32)


def split(x: np.ndarray, kind: str) -> Split:
    """Significands and exponents of values of a type; infinities and NaNs have exponent 128."""
    pattern = np.ascontiguousarray(x, np.float32).view(np.uint32)
    exponent = (pattern >> np.uint32(23) & np.uint32(255)).view(np.int32)
    exponent -= 127
    significand = (pattern & np.uint32(0x807FFFFF) | np.uint32(0x3F800000)).view(np.float32)
    least = FORMATS[kind].least
    if exponent.size and exponent.min() < least:
        small = exponent < least
        significand[small] = x[small] * np.float32(2.0**-least)
        exponent[small] = least
        exponent[x == 0] = NO_EXPONENT
    return significand, exponent


def _step(a: Floats, b: Floats, c: Floats, operands: list[Vector], unit: Unit) -> np.ndarray:
    """One instruction in NumPy, for special values and fp16 accumulators too."""
    rows = [x[..., :, None, :] for x in operands[:2]]  # (P, M, 1, K)
    columns = [x[..., None, :, :] for x in operands[2:]]  # (P, 1, N, K)
    terms = [split(c.astype(np.float32), unit.out)]
    terms += [
        (rows[0][..., k] * columns[0][..., k], rows[1][..., k] + columns[1][..., k])
        for k in range(a.shape[-1])
    ]
    top = functools.reduce(np.maximum, (exponent for _, exponent in terms))
    total = np.zeros(c.shape)
    for significand, exponent in terms:
        down = np.maximum(exponent - top, -1000) + unit.fraction
        total += np.trunc(np.ldexp(significand.astype(np.float64), down))
    d = _rounded(np.ldexp(total, np.maximum(top, -500) - unit.fraction), unit)
    rows_fine, columns_fine = (np.asarray(np.isfinite(x).all(-1)) for x in (a, b))
    special = ~(rows_fine[..., :, None] & columns_fine[..., None, :] & np.isfinite(c))
    if special.any():
        plain = np.einsum("...mk,...nk->...mn", a.astype(np.float64), b.astype(np.float64)) + c
        d = np.where(special, np.where(np.isnan(plain), _NAN[unit.out], plain.astype(d.dtype)), d)
    return d


def _rounded(value: np.ndarray, unit: Unit) -> np.ndarray:
    """fp64 sums to the accumulator's type; adding zero turns -0 into +0."""
    if unit.out == "f16":
        return value.astype(np.float16) + np.float16(0)
    _, exponent = np.frexp(value)
    quantum = np.maximum(exponent - 1, FORMATS["f32"].least) - min(unit.fraction, 23)
    kept: Floats = np.ldexp(np.trunc(np.ldexp(value, -quantum)), quantum).astype(np.float32)
    return kept + np.float32(0)
