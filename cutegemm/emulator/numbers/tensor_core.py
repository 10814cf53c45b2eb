# SPDX-License-Identifier: Apache-2.0
"""How Hopper's tensor cores add: bit for bit what wgmma, mma.sync and wmma leave in the accumulators.

One instruction adds K products and the accumulator at once, for each element of D:

1. Every term is a significand and an exponent: a product has the product of the significands, in [1, 4) unless an
   operand is subnormal, and the sum of the exponents; nothing is rounded or normalised. Zeros have no exponent.
2. All terms are aligned to the greatest exponent and truncated to `FRACTION` bits below it.
3. The aligned terms are added exactly.
4. The sum is truncated to fp32 (rounded to nearest even for fp16 accumulators). A sum of zero is +0.

K is the instruction's own: 16 terms of 16-bit operands, 8 of tf32. With fp8 operands wgmma keeps 13 bits in both
places. A NaN, or infinities that do not agree, give the canonical NaN.

Source: this is the model of MMA-Sim (arXiv 2511.10909, section IV); it is checked against recordings of an H200
(`benchmarks/emulator_record.py`, tests/emulator/fixtures).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers import tensor_core_jit
from cutegemm.emulator.numbers.split_operands import LEAST_EXPONENT, Split
from cutegemm.emulator.numbers.types import Floats, Vector

FP8 = ("e4m3", "e5m2")
_NAN = {
    "f32": np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0],
    "f16": np.array([0x7FFF], np.uint16).view(np.float16)[0],
}


@dataclass(frozen=True)
class Unit:
    """The adder an instruction uses: operand and accumulator types, products per instruction, fraction bits kept."""

    kind: str
    out: str
    depth: int

    @property
    def fraction(self) -> int:
        """Bits kept below the greatest exponent, and of the result."""
        return 13 if self.kind in FP8 else 25

    @property
    def result_fraction(self) -> int:
        """Fraction bits of a normal fp32 result."""
        return min(self.fraction, 23)


def accumulate(a: np.ndarray, b: np.ndarray, c: np.ndarray, unit: Unit, b_kind: str = "") -> np.ndarray:
    """D (P, M, N) of A (P, M, K) B (P, N, K)^T + C (P, M, N) for P independent problems.

    A and B hold operand values as fp32, C and D fp32 or fp16 as `unit.out` says. K is a multiple of `unit.depth`:
    one instruction after another. `b_kind` is B's type where it is not A's.
    """
    left, right = parts(a, unit.kind), parts(b, b_kind or unit.kind)
    if unit.out == "f32" and max(left[1].max(), right[1].max()) < 128:
        d = None
        if _narrow(left[1]) and _narrow(right[1]):
            values = ((a, left[1]), (b, right[1]))
            d = tensor_core_jit.accumulate(*values, c, unit.depth, unit.fraction, True)
        if d is None:
            d = tensor_core_jit.accumulate(left, right, c, unit.depth, unit.fraction)
        if d is not None:
            return d
    for k in range(0, a.shape[-1], unit.depth):
        at = slice(k, k + unit.depth)
        c = _step(a[..., at], b[..., at], c, [x[..., at] for x in (*left, *right)], unit)
    return c


def accumulate_split(left: Split, right: Split, c: np.ndarray, unit: Unit) -> np.ndarray | None:
    """`accumulate` of one problem whose operands are split already and narrow; None where a sum is not finite."""
    return tensor_core_jit.add(left, right, c, unit.depth, unit.fraction, True)


def accumulate_integers(
    a: Floats, b: Floats, c: npt.NDArray[np.int32], depth: int, saturates: bool
) -> npt.NDArray[np.int32]:
    """D (M, N) of A (M, K) B (N, K)^T + C, of 8-bit integers held as fp32; K is `depth` or at most eight times that.

    fp32 holds 256 products of bytes exactly. A sum beyond 32 bits wraps, or saturates in each instruction.
    """
    total = c.astype(np.int64)
    if saturates and np.abs(total).max() + a.shape[1] * 255 * 255 >= 1 << 31:
        for k in range(0, a.shape[1], depth):
            total += (a[:, k : k + depth] @ b[:, k : k + depth].T).astype(np.int64)
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    else:
        total += (a @ b.T).astype(np.int64)
    return total.astype(np.int32)


def _narrow(exponents: np.ndarray) -> bool:
    """Whether the exponents that are some lie within `tensor_core_jit.NARROW` of 0."""
    some = exponents[exponents != tensor_core_jit.NO_EXPONENT]
    return bool((np.abs(some) <= tensor_core_jit.NARROW).all())


def parts(x: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Significands (fp32, below 2) and exponents (int32; 128 of infinities and NaNs) of values of a type."""
    pattern = np.ascontiguousarray(x, np.float32).view(np.uint32)
    exponent = (pattern >> np.uint32(23) & np.uint32(255)).view(np.int32)
    exponent -= 127
    significand = (pattern & np.uint32(0x807FFFFF) | np.uint32(0x3F800000)).view(np.float32)
    least = LEAST_EXPONENT[kind]
    if exponent.size and exponent.min() < least:
        small = exponent < least
        significand[small] = x[small] * np.float32(2.0**-least)
        exponent[small] = least
        exponent[x == 0] = tensor_core_jit.NO_EXPONENT
    return significand, exponent


def _step(a: Floats, b: Floats, c: Floats, operands: list[Vector], unit: Unit) -> np.ndarray:
    """One instruction in plain NumPy: the definition, with special values and fp16 accumulators."""
    rows = [x[..., :, None, :] for x in operands[:2]]  # (P, M, 1, K)
    columns = [x[..., None, :, :] for x in operands[2:]]  # (P, 1, N, K)
    terms = [parts(c.astype(np.float32), unit.out)]
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
    """fp64 sums to the accumulator's type; adding zero makes -0 +0."""
    if unit.out == "f16":
        return value.astype(np.float16) + np.float16(0)
    _, exponent = np.frexp(value)
    quantum = np.maximum(exponent - 1, LEAST_EXPONENT["f32"]) - unit.result_fraction
    kept: Floats = np.ldexp(np.trunc(np.ldexp(value, -quantum)), quantum).astype(np.float32)
    return kept + np.float32(0)
