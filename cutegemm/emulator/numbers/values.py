# SPDX-License-Identifier: Apache-2.0
"""Register values and the arithmetic on them.

A register of a group of warps is a Python int while it is uniform over the group (a bool for a predicate), and
else a NumPy vector with one element per lane: uint16, uint32, uint64 or bool. Values are bit patterns; signed and
float readings are views. Integers stay inside [0, 2**bits). The translated kernels (`program.py`) call these
functions by name.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.3 and 9.7.4 (floating point), 9.7.8 (logic and shift), 9.7.9.22 (cvt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, overload

import numpy as np

from cutegemm.emulator.numbers.types import Kind, Mask, Value, Vector
from cutegemm.emulator.numbers.undefined import Register, Undefined

ND = np.ndarray
M16, M32, M64 = 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1
UINT: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SINT: dict[int, type[np.signedinteger[Any]]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
# of whole numbers, by the name that atom, red and redux give them
REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
FLOAT: dict[int, type[np.floating[Any]]] = {16: np.float16, 32: np.float32, 64: np.float64}


def _chosen(p: Value, a: Register, b: Register, bits: int) -> Value | Undefined:
    """a where p, else b, of which one is not wholly defined."""
    one, other = Undefined.of(a, bits), Undefined.of(b, bits)
    kind = UINT[bits]

    def pick(x: Value, y: Value) -> Vector:
        return np.where(p, np.asarray(x, kind), np.asarray(y, kind))

    return Undefined(pick(one.value, other.value), pick(one.bits, other.bits)).defined()


def lane_of(value: Value, lane: int) -> int:
    """One lane's value as a Python int."""
    # The type checker does not see that what is no vector is an int: it narrows by isinstance, which is slower.
    return int(value[lane]) if value.__class__ is ND else value  # type: ignore[return-value]


def s16(x: Value) -> Value:
    """Signed reading of 16 bits."""
    return x.view(np.int16) if x.__class__ is ND else (x ^ 0x8000) - 0x8000


def s32(x: Value) -> Value:
    """Signed reading of 32 bits."""
    return x.view(np.int32) if x.__class__ is ND else (x ^ 0x80000000) - 0x80000000


def s64(x: Value) -> Value:
    """Signed reading of 64 bits."""
    return x.view(np.int64) if x.__class__ is ND else (x ^ (1 << 63)) - (1 << 63)


@overload
def wrap(x: Value, bits: int) -> Value: ...
@overload
def wrap(x: Undefined | None, bits: int) -> Value | Undefined: ...
def wrap(x: Any, bits: int) -> Value | Undefined:
    """Back to an unsigned pattern of `bits` from any integer reading, dropping or zero-filling high bits."""
    if x.__class__ is ND:
        if x.dtype.kind == "i" and x.dtype.itemsize * 8 == bits:
            return x.view(UINT[bits])
        return x.astype(UINT[bits])
    if x.__class__ is Undefined:
        return x.each(lambda part: wrap(part, bits))
    return int(x) & ((1 << bits) - 1)


def extend(x: Value, width: int, bits: int) -> Value:
    """Sign-extend the low `width` bits to an unsigned pattern of `bits`."""
    if x.__class__ is ND:
        return x.astype(UINT[width]).view(SINT[width]).astype(SINT[bits]).view(UINT[bits])
    x &= (1 << width) - 1
    return (x ^ (1 << width - 1)) - (1 << width - 1) & ((1 << bits) - 1)


def mrg(mask: Vector, new: Register, old: Register, dtype: Kind) -> Register:
    """`new` in the lanes of `mask`, `old` elsewhere; an unset old register becomes new everywhere."""
    if old is None or old is new:
        return new
    if new is None or new.__class__ is Undefined or old.__class__ is Undefined:
        return _chosen(mask, new, old, dtype().itemsize * 8)
    if new.__class__ is not ND and old.__class__ is not ND and new == old:
        return new
    return np.where(
        mask, new if new.__class__ is ND else dtype(new), old if old.__class__ is ND else dtype(old)
    )


def lane_mask(p: Value, negate: bool, mask: Mask) -> Mask | Literal[False]:
    """Lanes where a guarded instruction acts: None for all of them, False for none, else a vector."""
    if p.__class__ is not ND:
        return mask if bool(p) != negate else False
    if negate:
        p = ~p
    if mask is not None:
        p = p & mask
    count = np.count_nonzero(p)
    if count == 0:
        return False
    return None if count == len(p) else p


def pnot(p: Value) -> Value:
    """Predicate not."""
    return ~p if p.__class__ is ND else not p


def sel(p: Value, a: Register, b: Register, dtype: Kind) -> Register:
    """selp: a where p, else b."""
    if p.__class__ is ND:
        if a is None or b is None or a.__class__ is Undefined or b.__class__ is Undefined:
            return _chosen(p, a, b, dtype().itemsize * 8)
        return np.where(p, a if a.__class__ is ND else dtype(a), b if b.__class__ is ND else dtype(b))
    return a if p else b


def shl(a: Value, b: Value, bits: int) -> Value:
    """Shift left; amounts of `bits` and more give 0."""
    if a.__class__ is not ND and b.__class__ is not ND:
        return (a << b) & ((1 << bits) - 1) if b < bits else 0
    kind = UINT[bits]
    amount = np.minimum(b, bits - 1) if b.__class__ is ND else min(b, bits - 1)
    out: Any = (a if a.__class__ is ND else kind(a)) << (
        np.asarray(amount).astype(kind) if b.__class__ is ND else kind(amount)
    )
    return (
        np.where(b < bits, out, kind(0)) if b.__class__ is ND else (out if b < bits else np.zeros_like(out))
    )


def shr(a: Value, b: Value, bits: int, signed: bool) -> Value:
    """Shift right, arithmetic when `signed`; amounts of `bits` and more give the sign or 0."""
    if a.__class__ is not ND and b.__class__ is not ND:
        if signed:
            a = (a ^ (1 << bits - 1)) - (1 << bits - 1)
        return (a >> min(b, bits)) & ((1 << bits) - 1)
    kind: type[np.integer[Any]] = SINT[bits] if signed else UINT[bits]
    amount = np.minimum(b, bits - 1).astype(kind) if b.__class__ is ND else kind(min(b, bits - 1))
    base = (
        a.view(kind) if a.__class__ is ND else kind((a ^ (1 << bits - 1)) - (1 << bits - 1) if signed else a)
    )
    out: Vector = (base >> amount).view(UINT[bits])
    if signed:
        return out
    return (
        np.where(b < bits, out, UINT[bits](0))
        if b.__class__ is ND
        else (out if b < bits else np.zeros_like(out))
    )


def as_wide(x: Value, bits: int, signed: bool) -> Value:
    """Operand as int64/uint64 vector or int, in its signed or unsigned reading."""
    if x.__class__ is ND:
        return x.view(SINT[bits]).astype(np.int64) if signed else x.astype(np.uint64)
    return (x ^ (1 << bits - 1)) - (1 << bits - 1) if signed else x


def mul_wide(a: Value, b: Value, bits: int, signed: bool) -> Value:
    """mul.wide: the full product in twice the bits."""
    a, b = as_wide(a, bits, signed), as_wide(b, bits, signed)
    return wrap(a * b, 2 * bits)


def mul_hi(a: Value, b: Value, bits: int, signed: bool) -> Value:
    """mul.hi: the high half of the full product; exact for 64 bits too."""
    if bits == 64 and (a.__class__ is ND or b.__class__ is ND):
        n = _lanes(a, b)
        wide = (as_wide(np.broadcast_to(np.asarray(v, np.uint64), n), 64, signed) for v in (a, b))
        left, right = (cast("Vector", v).tolist() for v in wide)
        return np.array([(x * y >> 64) & M64 for x, y in zip(left, right, strict=True)], np.uint64)
    a, b = as_wide(a, bits, signed), as_wide(b, bits, signed)
    product: Any = a * b
    high: Value = wrap(product >> bits, bits)
    return high


def divide(a: Value, b: Value, bits: int, signed: bool, remainder: bool) -> Value:
    """div and rem, truncating toward zero; division by zero gives all ones (as the hardware sequence does)."""
    if a.__class__ is not ND and b.__class__ is not ND:
        x, y = int(as_wide(a, bits, signed)), int(as_wide(b, bits, signed))
        if y == 0:
            return a if remainder else (1 << bits) - 1
        q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (x - q * y if remainder else q) & ((1 << bits) - 1)
    n = _lanes(a, b)
    v, w = (np.broadcast_to(np.asarray(value, UINT[bits]), n) for value in (a, b))
    # Exact, lane by lane; the quotient of the least integer by -1 wraps.
    if signed or bits == 64:
        each = [divide(s, t, bits, signed, remainder) for s, t in zip(v.tolist(), w.tolist(), strict=True)]
        return np.array(each, UINT[bits])
    safe = np.where(w == 0, w.dtype.type(1), w)
    out = v % safe if remainder else v // safe
    return np.where(w == 0, v if remainder else ~np.zeros_like(v), out)


def bit_reverse(x: Value) -> Value:
    """brev.b32."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        x = (x >> shift & mask) | ((x & mask) << shift)
    return x


def popcount(x: Value) -> Value:
    """popc: number of ones, as u32."""
    return np.bitwise_count(x).astype(np.uint32) if isinstance(x, ND) else x.bit_count()


def clz(x: Value, bits: int) -> Value:
    """Leading zeros, as u32."""
    if not isinstance(x, ND):
        return bits - x.bit_length()
    out = np.zeros(len(x), np.uint32)
    x = x.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        big = x >> np.uint64(step) != 0
        out += np.where(big, np.uint32(step), np.uint32(0))
        x = np.where(big, x >> np.uint64(step), x)
    count: Vector = (bits - out - (x != 0)).astype(np.uint32)
    return count


def bfe(a: Value, pos: Value, length: Value, bits: int, signed: bool) -> Value:
    """Bit field extract: `length` bits from `pos`, sign- or zero-extended (PTX ISA 9.7.1.20)."""
    scalar = not any(v.__class__ is ND for v in (a, pos, length))
    n = 1 if scalar else next(len(v) for v in (a, pos, length) if v.__class__ is ND)
    out = []
    for x, p, size in zip(
        *(np.broadcast_to(np.asarray(v), n).tolist() for v in (a, pos, length)), strict=True
    ):
        p, size = p & 0xFF, size & 0xFF
        top = min(p + size - 1, bits - 1)
        field = (x >> p) & ((1 << min(size, bits)) - 1) if p < bits else 0
        if signed and size and x >> top & 1:
            field |= -1 << min(size, max(bits - p, 0))
        out.append(field & ((1 << bits) - 1))
    return out[0] if scalar else np.array(out, UINT[bits])


def bfi(field: Value, base: Value, pos: Value, length: Value, bits: int) -> Value:
    """Bit field insert (PTX ISA 9.7.1.21); position and length uniform or per lane."""
    one = UINT[bits](1) if any(v.__class__ is ND for v in (pos, length)) else 1
    mask = wrap(
        (shl(one if one.__class__ is int else np.full(_lanes(pos, length), 1, UINT[bits]), length, bits) - 1),
        bits,
    )
    mask = shl(mask, pos, bits)
    if mask.__class__ is not ND:
        inverse = ~mask & ((1 << bits) - 1)
        return (base & inverse) | (shl(field, pos, bits) & mask)
    return (base & ~mask) | (shl(field, pos, bits) & mask)


def _lanes(*values: Value) -> int:
    return next(len(v) for v in values if v.__class__ is ND)


_LUT_TERMS = tuple((bool(i & 4), bool(i & 2), bool(i & 1)) for i in range(8))


def lop3(a: Value, b: Value, c: Value, lut: int) -> Value:
    """lop3.b32: any function of three bits; bit i of `lut` answers for (a, b, c) = the bits of i."""
    out: Value = 0
    for i, (pa, pb, pc) in enumerate(_LUT_TERMS):
        if lut >> i & 1:
            out = out | ((a if pa else a ^ M32) & (b if pb else b ^ M32) & (c if pc else c ^ M32))
    return out


def byte_permute(a: Register, b: Register, selector: Value) -> Value:
    """prmt.b32 in its default mode: each nibble of the selector picks a byte of {b, a}, bit 3 its sign."""
    if a is None or b is None:
        a, b = (Undefined.of(x, 32) if x is None else x for x in (a, b))
    out: Value = 0
    # What is not wholly defined takes part in the same operators.
    both = [(v >> 8 * i) & 0xFF for v in cast("tuple[Value, Value]", (a, b)) for i in range(4)]
    if not isinstance(selector, ND):
        for i in range(4):
            nibble = selector >> 4 * i & 15
            byte = both[nibble & 7]
            if nibble & 8:
                byte = (byte >> 7) * 0xFF
            out = out | (byte << 8 * i)
        return out
    n = len(selector)
    table = np.stack([np.broadcast_to(np.asarray(v, np.uint32), n) for v in both])
    result = np.zeros(n, np.uint32)
    for i in range(4):
        chosen = (selector >> np.uint32(4 * i)) & np.uint32(15)
        lanes = table[chosen & 7, np.arange(n)]
        lanes = np.where(chosen & 8, (lanes >> 7) * np.uint32(0xFF), lanes)
        result |= lanes << np.uint32(8 * i)
    return result


def funnel(low: Value, high: Value, shift: Value, left: bool, clamp: bool) -> Value:
    """shf.l/r: the 64 bits {high, low} shifted by wrapped or clamped `shift`; the upper or lower half."""
    amount = (
        np.minimum(shift, 32) if clamp and shift.__class__ is ND else min(shift, 32) if clamp else shift & 31
    )
    both = pack([low, high], 32)
    out = shr(shl(both, amount, 64), 32, 64, False) if left else shr(both, amount, 64, False)
    return wrap(out, 32)


@overload
def pack(parts: Sequence[Value], bits: int) -> Value: ...
@overload
def pack(parts: Sequence[Register], bits: int) -> Value | Undefined: ...
def pack(parts: Sequence[Any], bits: int) -> Value | Undefined:
    """mov.b64 {a, b}: parts of `bits` each, the first in the low bits."""
    total = bits * len(parts)
    if any(p is None or p.__class__ is Undefined for p in parts):
        marked = [Undefined.of(p, bits) for p in parts]
        return Undefined(
            pack([p.value for p in marked], bits), pack([p.bits for p in marked], bits)
        ).defined()
    if all(p.__class__ is not ND for p in parts):
        packed: int = sum(p << bits * i for i, p in enumerate(parts))
        return packed
    kind = UINT[total]
    out: Any = None
    for i, p in enumerate(parts):
        p = p.astype(kind) if p.__class__ is ND else kind(p)
        p = p << kind(bits * i) if i else p
        out = p if out is None else out | p
    return cast("Vector", out)


def unpack(x: Register, bits: int, index: int) -> Register:
    """Part `index` of `bits` of a wider register."""
    if x.__class__ is Undefined:
        part = x.each(lambda whole: cast("Value", unpack(whole, bits, index)))
        return None if part.__class__ is Undefined and np.all(part.bits == (1 << bits) - 1) else part
    if x is None:
        return None
    if not isinstance(x, ND):
        return (x >> bits * index) & ((1 << bits) - 1)
    return (x >> x.dtype.type(bits * index)).astype(UINT[bits]) if index else x.astype(UINT[bits])
