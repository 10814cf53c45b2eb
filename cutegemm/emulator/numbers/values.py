# SPDX-License-Identifier: Apache-2.0
"""Register values and integer arithmetic on them.

A register of a group of warps is a Python int (a bool for a predicate) if all lanes agree. Otherwise it is a NumPy
vector with one element per lane: uint16, uint32, uint64 or bool. Values are bit patterns, ints in [0, 2**bits); signed
and floating-point numbers are views of them. Translated kernels call these functions by name.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.8 (logic and shift), 9.7.9.7 (prmt).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast, overload

import numpy as np

from cutegemm.emulator.numbers.types import Kind, Mask, Value, Vector
from cutegemm.emulator.numbers.undefined import Register, Undefined

ND = np.ndarray
M32, M64 = 0xFFFFFFFF, (1 << 64) - 1
UINT: dict[int, type[np.unsignedinteger[Any]]] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SINT: dict[int, type[np.signedinteger[Any]]] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT: dict[int, type[np.floating[Any]]] = {16: np.float16, 32: np.float32, 64: np.float64}
# integer reductions, by their names in atom, red and redux
REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def lane_of(value: Value, lane: int) -> int:
    """One lane's value as a Python int."""
    # isinstance would tell the type checker that the other case is an int, but it is slower
    return int(value[lane]) if value.__class__ is ND else value  # type: ignore[return-value]


def unbox(out: Any) -> Value:
    """A vector unchanged, a scalar as a Python number."""
    value: Value = out if out.ndim else out.item()
    return value


def signed(x: Any, bits: int) -> Any:
    """A pattern of `bits` as a signed number."""
    return x.view(SINT[bits]) if x.__class__ is ND else (x ^ (1 << bits - 1)) - (1 << bits - 1)


@overload
def wrap(x: Value, bits: int) -> Value: ...
@overload
def wrap(x: Undefined | None, bits: int) -> Value | Undefined: ...
def wrap(x: Any, bits: int) -> Value | Undefined:
    """An integer as an unsigned pattern of `bits`, truncated or zero-extended."""
    if x.__class__ is ND:
        if x.dtype.kind == "i" and x.dtype.itemsize * 8 == bits:
            return x.view(UINT[bits])
        return x.astype(UINT[bits])
    if x.__class__ is Undefined:
        return x.each(lambda part: wrap(part, bits))
    return int(x) & ((1 << bits) - 1)


def extend(x: Any, width: int, bits: int) -> Value:
    """Sign-extend the low `width` bits to an unsigned pattern of `bits`."""
    if x.__class__ is ND:
        return x.astype(UINT[width]).view(SINT[width]).astype(SINT[bits]).view(UINT[bits])
    pattern: int = signed(x & (1 << width) - 1, width) & ((1 << bits) - 1)
    return pattern


def mrg(mask: Vector, new: Register, old: Register, dtype: Kind) -> Register:
    """`new` in the lanes of `mask`, `old` in the others; a register without any write becomes `new` in all lanes."""
    if old is None or old is new:
        return new
    if isinstance(new, int) and isinstance(old, int) and new == old:
        return new
    return sel(mask, new, old, dtype)


def lane_mask(p: Value, negate: bool, mask: Mask) -> Mask | Literal[False]:
    """Lanes that execute a guarded instruction: None for all, False for none, else a vector."""
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
    """Not, for predicates."""
    return ~p if p.__class__ is ND else not p


def sel(p: Value, a: Register, b: Register, dtype: Kind) -> Register:
    """selp: a if p, else b."""
    if p.__class__ is not ND:
        return a if p else b
    if a is None or b is None or a.__class__ is Undefined or b.__class__ is Undefined:
        one, other = (Undefined.of(x, dtype().itemsize * 8) for x in (a, b))
        value = np.where(p, np.asarray(one.value, dtype), np.asarray(other.value, dtype))
        undefined = np.where(p, np.asarray(one.bits, dtype), np.asarray(other.bits, dtype))
        return Undefined(value, undefined).defined()
    return np.where(p, a if a.__class__ is ND else dtype(a), b if b.__class__ is ND else dtype(b))


def least(a: Value, b: Value) -> Value:
    """Smaller of two integers."""
    return np.minimum(a, b) if a.__class__ is ND or b.__class__ is ND else min(a, b)


def most(a: Value, b: Value) -> Value:
    """Larger of two integers."""
    return np.maximum(a, b) if a.__class__ is ND or b.__class__ is ND else max(a, b)


def low(x: Value) -> Value:
    """Low half of a 32-bit register."""
    return x & 0xFFFF


def high(x: Value) -> Value:
    """High half of a 32-bit register."""
    return x >> 16


def shl(a: Any, b: Any, bits: int) -> Value:
    """Shift left; amounts of `bits` and more give 0."""
    kind = UINT[bits]
    if b.__class__ is ND:
        out = np.asarray(a, kind) << np.minimum(b, bits - 1).astype(kind)
        return np.where(b < bits, out, kind(0))
    if a.__class__ is ND:
        return a << kind(b) if b < bits else np.zeros_like(a)
    return (a << b) & ((1 << bits) - 1) if b < bits else 0


def shr(a: Any, b: Any, bits: int, arithmetic: bool) -> Value:
    """Shift right; amounts of `bits` and more give the sign if `arithmetic`, else 0."""
    uniform, by_vector = a.__class__ is not ND, b.__class__ is ND
    if arithmetic:
        a = signed(a, bits)
    if uniform and not by_vector:
        return int(a >> min(b, bits)) & ((1 << bits) - 1)
    kind: type[np.integer[Any]] = SINT[bits] if arithmetic else UINT[bits]
    amount = np.minimum(b, bits - 1).astype(kind) if by_vector else kind(min(b, bits - 1))
    out: Vector = ((kind(a) if uniform else a) >> amount).view(UINT[bits])
    if arithmetic or (not by_vector and b < bits):
        return out
    return np.where(b < bits, out, UINT[bits](0))


def as_wide(x: Any, bits: int, is_signed: bool) -> Any:
    """A pattern as an int, or as an int64 or uint64 vector."""
    if is_signed:
        x = signed(x, bits)
    return x.astype(np.int64 if is_signed else np.uint64) if x.__class__ is ND else x


def mul_wide(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    """mul.wide: the full product in twice the bits."""
    a, b = as_wide(a, bits, is_signed), as_wide(b, bits, is_signed)
    return wrap(a * b, 2 * bits)


def mul_hi(a: Value, b: Value, bits: int, is_signed: bool) -> Value:
    """mul.hi: the high half of the full product; exact for 64 bits too."""
    if bits == 64 and (a.__class__ is ND or b.__class__ is ND):
        n = _lanes(a, b)
        wide = (as_wide(np.broadcast_to(np.asarray(v, np.uint64), n), 64, is_signed) for v in (a, b))
        left, right = (cast("Vector", v).tolist() for v in wide)
        return np.array([(x * y >> 64) & M64 for x, y in zip(left, right, strict=True)], np.uint64)
    a, b = as_wide(a, bits, is_signed), as_wide(b, bits, is_signed)
    product: Any = a * b
    high: Value = wrap(product >> bits, bits)
    return high


def divide(a: Value, b: Value, bits: int, is_signed: bool, remainder: bool) -> Value:
    """div and rem, rounded toward zero; division by zero gives all ones, as on the hardware."""
    if a.__class__ is not ND and b.__class__ is not ND:
        x, y = int(as_wide(a, bits, is_signed)), int(as_wide(b, bits, is_signed))
        if y == 0:
            return a if remainder else (1 << bits) - 1
        q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (x - q * y if remainder else q) & ((1 << bits) - 1)
    n = _lanes(a, b)
    v, w = (np.broadcast_to(np.asarray(value, UINT[bits]), n) for value in (a, b))
    # lane by lane: exact, and the least integer divided by -1 wraps
    if is_signed or bits == 64:
        each = [divide(s, t, bits, is_signed, remainder) for s, t in zip(v.tolist(), w.tolist(), strict=True)]
        return np.array(each, UINT[bits])
    safe = np.where(w == 0, w.dtype.type(1), w)
    out = v % safe if remainder else v // safe
    return np.where(w == 0, v if remainder else ~np.zeros_like(v), out)


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


def bfe(a: Value, pos: Value, length: Value, bits: int, is_signed: bool) -> Value:
    """Bit field extract: `length` bits from `pos`, sign- or zero-extended (PTX ISA 9.7.1.20)."""
    above = bits - least(pos + length, bits)
    field = shr(shl(a, above, bits), above + pos, bits, is_signed)
    return cast("Value", sel(length == 0, 0, field, UINT[bits]))


def bfi(field: Value, base: Value, pos: Value, length: Value, bits: int) -> Value:
    """Bit field insert (PTX ISA 9.7.1.21); position and length uniform or per lane."""
    one = np.ones(len(length), UINT[bits]) if length.__class__ is ND else 1
    mask = shl(wrap(shl(one, length, bits) - 1, bits), pos, bits)
    return (base & (mask ^ ((1 << bits) - 1))) | (shl(field, pos, bits) & mask)


def _lanes(*values: Value) -> int:
    return next(len(v) for v in values if v.__class__ is ND)


_LUT_TERMS = tuple((bool(i & 4), bool(i & 2), bool(i & 1)) for i in range(8))


def lop3(a: Value, b: Value, c: Value, lut: int) -> Value:
    """lop3.b32: any function of three bits; bit i of `lut` is its value for the bits (a, b, c) of i."""
    out: Value = 0
    for i, (pa, pb, pc) in enumerate(_LUT_TERMS):
        if lut >> i & 1:
            out = out | ((a if pa else a ^ M32) & (b if pb else b ^ M32) & (c if pc else c ^ M32))
    return out


def byte_permute(a: Register, b: Register, selector: Value) -> Value:
    """prmt.b32 in its default mode: each nibble of the selector picks a byte of {b, a}; bit 3 picks its sign."""
    if a is None or b is None:
        a, b = (Undefined.of(x, 32) if x is None else x for x in (a, b))
    out: Value = 0
    # an Undefined supports these operators too
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
    amount = least(shift, 32) if clamp else shift & 31
    both = pack([low, high], 32)
    out = shr(shl(both, amount, 64), 32, 64, False) if left else shr(both, amount, 64, False)
    return wrap(out, 32)


@overload
def pack(parts: Sequence[Value], bits: int) -> Value: ...
@overload
def pack(parts: Sequence[Register], bits: int) -> Value | Undefined: ...
def pack(parts: Sequence[Any], bits: int) -> Value | Undefined:
    """mov.b64 {a, b}: several values of `bits` in one register, the first in the low bits."""
    classes = {p.__class__ for p in parts}
    if Undefined in classes or None.__class__ in classes:
        marked = [Undefined.of(p, bits) for p in parts]
        value, undefined = pack([p.value for p in marked], bits), pack([p.bits for p in marked], bits)
        return Undefined(value, undefined).defined()
    kind = UINT[bits * len(parts)] if ND in classes else int
    out: Any = 0
    for i, p in enumerate(parts):
        wide = p.astype(kind) if p.__class__ is ND else kind(p)
        out = out | wide << kind(bits * i) if i else wide
    return cast("Value", out)


def unpack(x: Register, bits: int, index: int) -> Register:
    """Element `index`, of `bits`, of a wider register."""
    if x.__class__ is Undefined:
        part = x.each(lambda whole: cast("Value", unpack(whole, bits, index)))
        return None if part.__class__ is Undefined and np.all(part.bits == (1 << bits) - 1) else part
    if x is None:
        return None
    if not isinstance(x, ND):
        return (x >> bits * index) & ((1 << bits) - 1)
    return (x >> x.dtype.type(bits * index)).astype(UINT[bits]) if index else x.astype(UINT[bits])
