# SPDX-License-Identifier: Apache-2.0
"""Rare arithmetic on register values: carries, packed 16-bit integers, dot products, positions of bits, testp.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.2 (extended precision), 9.7.3.1 (testp), 9.7.9.7 (prmt).
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from cutegemm.emulator.numbers import floats
from cutegemm.emulator.numbers.types import Real, Value
from cutegemm.emulator.numbers.values import (
    ND,
    UINT,
    clz,
    extend,
    pack,
    pnot,
    shl,
    shr,
    signed,
    unbox,
    unpack,
    wrap,
)

_SMALLEST_NORMAL = {2: 2.0**-14, 4: 2.0**-126, 8: 2.0**-1022}  # bytes of the type -> number
_TINY_HALF = 2.0**-14 * (1 - 2.0**-12)  # the least number that is a normal fp16 once rounded to 11 bits


def add_carry(a: Any, b: Any, carry: Any, bits: int) -> tuple[Value, Value]:
    """a + b + carry and the carry out of it."""
    if not any(x.__class__ is ND for x in (a, b, carry)):
        total = a + b + carry
        return total & ((1 << bits) - 1), bool(total >> bits)
    kind = UINT[bits]
    a, b = (np.asarray(x, kind) for x in (a, b))
    before = a + b
    total = before + np.asarray(carry, kind)
    return total, (before < a) | (total < before)


def subtract_carry(a: Any, b: Any, borrow: Any, bits: int) -> tuple[Value, Value]:
    """a - b - borrow and the borrow out of it."""
    total, carry = add_carry(a, b ^ (1 << bits) - 1, pnot(borrow), bits)
    return total, pnot(carry)


def add_saturating(a: Value, b: Value, subtract: bool) -> Value:
    """add.sat.s32 and sub.sat.s32 of signed numbers."""
    wide = np.int64(a) if a.__class__ is not ND else a.astype(np.int64)
    out = np.clip(wide - b if subtract else wide + b, -(1 << 31), (1 << 31) - 1)
    return wrap(out.astype(np.int32) if out.__class__ is ND else int(out), 32)


def _element(x: Value, bits: int, index: int, is_signed: bool) -> Value:
    """Element `index`, of `bits` bits, as an integer of 32 bits."""
    part = wrap(cast("Value", unpack(x, bits, index)), 32)
    return extend(part, bits, 32) if is_signed else part


def act_on_halves(a: Value, b: Value, operation: str, is_signed: bool, relu: bool) -> Value:
    """add, min or max of both 16-bit halves of two registers."""
    out = []
    for i in range(2):
        x, y = (_element(v, 16, i, is_signed) for v in (a, b))
        if is_signed:
            x, y = signed(x, 32), signed(y, 32)
        act = {"add": np.add, "min": np.minimum, "max": np.maximum}[operation]
        z = act(x, y)
        out.append(wrap(np.maximum(z, 0) if relu else z, 16))
    return pack(out, 16)


def dot(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, a_bits: int, first: int) -> Value:
    """dp4a and dp2a: c plus the products of a's elements of `a_bits` and b's bytes, from the `first` on."""
    total = c
    for i in range(32 // a_bits):
        product = _element(a, a_bits, i, a_signed) * _element(b, 8, first + i, b_signed)
        total = total + wrap(product, 32)
    return wrap(total, 32)


def bit_reverse(x: Value, bits: int) -> Value:
    """brev."""
    shift = bits // 2
    while shift:
        mask = ((1 << bits) - 1) // (
            (1 << shift) + 1
        )  # the lower half of each pair of fields of `shift` bits
        x = (x >> shift & mask) | ((x & mask) << shift)
        shift //= 2
    return x


def find_bit(x: Value, bits: int, is_signed: bool, shift: bool) -> Value:
    """bfind: the highest bit that is set (or differs from the sign), or the shift that moves it to the top; else -1."""
    if is_signed:
        x = x ^ shr(x, bits, bits, True)
    above = signed(clz(x, bits), 32)
    return wrap(np.where(above == bits, -1, above)[()] if shift else bits - 1 - above, 32)


def low_24_bits(x: Value, is_signed: bool) -> Value:
    """An operand of mul24 and mad24."""
    return shr(shl(x, 8, 32), 8, 32, is_signed)


_PERMUTES = {  # mode -> selector of the default mode for c & 3 = 0..3
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def permute_selector(c: Value, mode: str) -> Value:
    """The selector of prmt's default mode for another mode with control c."""
    table = _PERMUTES[mode]
    return np.array(table, np.uint32)[c & 3] if c.__class__ is ND else table[c & 3]


def flush_half(x: Real) -> Real:
    """.ftz for fp16: numbers that are subnormal once rounded to 11 bits become zero with the same sign."""
    return np.where(np.abs(x) < _TINY_HALF, np.copysign(x.dtype.type(0), x), x)[()]


def extreme_xorsign(a: Real, b: Real, largest: bool, keep_nan: bool) -> Real:
    """min and max .xorsign.abs: of the magnitudes, with the xor of the signs."""
    out = floats.extreme(np.abs(a), np.abs(b), largest, keep_nan)
    return np.where(np.signbit(a) ^ np.signbit(b), -out, out)[()]


def float_is(x: Real, what: str) -> Value:
    """testp."""
    small = np.abs(x) < _SMALLEST_NORMAL[x.dtype.itemsize]
    out = {
        "finite": np.isfinite(x),
        "infinite": np.isinf(x),
        "number": ~np.isnan(x),
        "notanumber": np.isnan(x),
        "normal": np.isfinite(x) & ~small,
        "subnormal": small & (x != 0),
    }[what]
    return unbox(out)
