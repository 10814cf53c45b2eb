# SPDX-License-Identifier: Apache-2.0
"""Register values and the arithmetic on them.

A register of a group of warps is a Python int while it is uniform over the group (a bool for a predicate), and
else a NumPy vector with one element per lane: uint16, uint32, uint64 or bool. Values are bit patterns; signed and
float readings are views. Integers stay inside [0, 2**bits). The translated kernels (`program.py`) call these
functions by name.

Source: PTX ISA 9.0, 9.7.1 (integer), 9.7.3 and 9.7.4 (floating point), 9.7.8 (logic and shift), 9.7.9.22 (cvt).
"""

from __future__ import annotations

import numpy as np

ND = np.ndarray
M16, M32, M64 = 0xFFFF, 0xFFFFFFFF, (1 << 64) - 1
UINT = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SINT = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}


class Undefined:
    """A register some of whose bits are undefined: `bits` marks them (an int, or a vector where lanes differ).

    They may travel through moves, masks, shifts and permutations. Anything else (arithmetic, comparison, use as an
    address or a predicate, a store) is a TypeError, which the machine reports with its place. A register that nothing
    has written is None.
    """

    __slots__ = ("value", "bits")
    __array_ufunc__ = None  # NumPy leaves operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value, bits):
        self.value, self.bits = value, bits

    @staticmethod
    def of(x, bits: int) -> Undefined:
        """Any register of so many bits, as an Undefined."""
        if x is None:
            return Undefined(0, (1 << bits) - 1)
        return x if x.__class__ is Undefined else Undefined(x, 0)

    def defined(self):
        """The plain value where no bit is undefined any more."""
        return self if np.any(self.bits) else self.value

    def each(self, f):
        """The same rearrangement of bits, applied to the value and to the marks."""
        return Undefined(f(self.value), f(self.bits)).defined()

    def __and__(self, other):
        if other.__class__ is Undefined:
            return Undefined(self.value & other.value, self.bits | other.bits)
        return Undefined(self.value & other, self.bits & other).defined()

    def __or__(self, other):
        if other.__class__ is Undefined:
            return Undefined(self.value | other.value, self.bits | other.bits)
        low = (
            (1 << 64) - 1
            if other.__class__ is not ND
            else other.dtype.type(-1 % 2 ** (8 * other.dtype.itemsize))
        )
        return Undefined(self.value | other, self.bits & (other ^ low)).defined()

    def __xor__(self, other):
        if other.__class__ is Undefined:
            return Undefined(self.value ^ other.value, self.bits | other.bits)
        return Undefined(self.value ^ other, self.bits)

    def __lshift__(self, other):
        return self.each(lambda x: x << other)

    def __rshift__(self, other):
        return self.each(lambda x: x >> other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def _use(self, *_: object):
        raise TypeError("use of Undefined bits")

    __int__ = __index__ = __bool__ = __float__ = __array__ = __len__ = _use
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _use  # type: ignore[assignment]


def _chosen(p, a, b, bits: int):
    """a where p, else b, of which one is not wholly defined."""
    a, b = Undefined.of(a, bits), Undefined.of(b, bits)
    kind = UINT[bits]
    pick = lambda x, y: np.where(p, np.asarray(x, kind), np.asarray(y, kind))  # noqa: E731
    return Undefined(pick(a.value, b.value), pick(a.bits, b.bits)).defined()


def s16(x):
    """Signed reading of 16 bits."""
    return x.view(np.int16) if x.__class__ is ND else (x ^ 0x8000) - 0x8000


def s32(x):
    """Signed reading of 32 bits."""
    return x.view(np.int32) if x.__class__ is ND else (x ^ 0x80000000) - 0x80000000


def s64(x):
    """Signed reading of 64 bits."""
    return x.view(np.int64) if x.__class__ is ND else (x ^ (1 << 63)) - (1 << 63)


def wrap(x, bits):
    """Back to an unsigned pattern of `bits` from any integer reading, dropping or zero-filling high bits."""
    if x.__class__ is ND:
        if x.dtype.kind == "i" and x.dtype.itemsize * 8 == bits:
            return x.view(UINT[bits])
        return x.astype(UINT[bits])
    if x.__class__ is Undefined:
        return x.each(lambda part: wrap(part, bits))
    return int(x) & ((1 << bits) - 1)


def extend(x, width, bits):
    """Sign-extend the low `width` bits to an unsigned pattern of `bits`."""
    if x.__class__ is ND:
        return x.astype(UINT[width]).view(SINT[width]).astype(SINT[bits]).view(UINT[bits])
    x &= (1 << width) - 1
    return (x ^ (1 << width - 1)) - (1 << width - 1) & ((1 << bits) - 1)


def mrg(mask, new, old, dtype):
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


def lane_mask(p, negate, mask):
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


def pnot(p):
    """Predicate not."""
    return ~p if p.__class__ is ND else not p


def sel(p, a, b, dtype):
    """selp: a where p, else b."""
    if p.__class__ is ND:
        if a is None or b is None or a.__class__ is Undefined or b.__class__ is Undefined:
            return _chosen(p, a, b, dtype().itemsize * 8)
        return np.where(p, a if a.__class__ is ND else dtype(a), b if b.__class__ is ND else dtype(b))
    return a if p else b


def shl(a, b, bits):
    """Shift left; amounts of `bits` and more give 0."""
    if a.__class__ is not ND and b.__class__ is not ND:
        return (a << b) & ((1 << bits) - 1) if b < bits else 0
    kind = UINT[bits]
    amount = np.minimum(b, bits - 1) if b.__class__ is ND else min(b, bits - 1)
    out = (a if a.__class__ is ND else kind(a)) << (
        amount.astype(kind) if b.__class__ is ND else kind(amount)
    )
    return (
        np.where(b < bits, out, kind(0)) if b.__class__ is ND else (out if b < bits else np.zeros_like(out))
    )


def shr(a, b, bits, signed):
    """Shift right, arithmetic when `signed`; amounts of `bits` and more give the sign or 0."""
    if a.__class__ is not ND and b.__class__ is not ND:
        if signed:
            a = (a ^ (1 << bits - 1)) - (1 << bits - 1)
        return (a >> min(b, bits)) & ((1 << bits) - 1)
    kind = SINT[bits] if signed else UINT[bits]
    amount = np.minimum(b, bits - 1).astype(kind) if b.__class__ is ND else kind(min(b, bits - 1))
    base = (
        a.view(kind) if a.__class__ is ND else kind((a ^ (1 << bits - 1)) - (1 << bits - 1) if signed else a)
    )
    out = (base >> amount).view(UINT[bits])
    if signed:
        return out
    return (
        np.where(b < bits, out, UINT[bits](0))
        if b.__class__ is ND
        else (out if b < bits else np.zeros_like(out))
    )


def as_wide(x, bits, signed):
    """Operand as int64/uint64 vector or int, in its signed or unsigned reading."""
    if x.__class__ is ND:
        return x.view(SINT[bits]).astype(np.int64) if signed else x.astype(np.uint64)
    return (x ^ (1 << bits - 1)) - (1 << bits - 1) if signed else x


def mul_wide(a, b, bits, signed):
    """mul.wide: the full product in twice the bits."""
    a, b = as_wide(a, bits, signed), as_wide(b, bits, signed)
    return wrap(a * b, 2 * bits)


def mul_hi(a, b, bits, signed):
    """mul.hi: the high half of the full product; exact for 64 bits too."""
    if bits == 64 and (a.__class__ is ND or b.__class__ is ND):
        n = len(a) if a.__class__ is ND else len(b)
        a, b = (as_wide(np.broadcast_to(np.asarray(v, np.uint64), n), 64, signed).tolist() for v in (a, b))
        return np.array([(x * y >> 64) & M64 for x, y in zip(a, b, strict=True)], np.uint64)
    a, b = as_wide(a, bits, signed), as_wide(b, bits, signed)
    return wrap(a * b >> bits, bits)


def divide(a, b, bits, signed, remainder):
    """div and rem, truncating toward zero; division by zero gives all ones (as the hardware sequence does)."""
    if a.__class__ is not ND and b.__class__ is not ND:
        x, y = as_wide(a, bits, signed), as_wide(b, bits, signed)
        if y == 0:
            return a if remainder else (1 << bits) - 1
        q = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (x - q * y if remainder else q) & ((1 << bits) - 1)
    n = len(a) if a.__class__ is ND else len(b)
    x, y = (np.broadcast_to(np.asarray(v, UINT[bits]), n) for v in (a, b))
    if signed or bits == 64:  # exact, lane by lane; the quotient of the least integer by -1 wraps
        out = [divide(u, v, bits, signed, remainder) for u, v in zip(x.tolist(), y.tolist(), strict=True)]
        return np.array(out, UINT[bits])
    safe = np.where(y == 0, y.dtype.type(1), y)
    out = x % safe if remainder else x // safe
    return np.where(y == 0, x if remainder else ~np.zeros_like(x), out)


def bit_reverse(x):
    """brev.b32."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        x = (x >> shift & mask) | ((x & mask) << shift)
    return x


def popcount(x):
    """popc: number of ones, as u32."""
    return np.bitwise_count(x).astype(np.uint32) if x.__class__ is ND else x.bit_count()


def clz(x, bits):
    """Leading zeros, as u32."""
    if x.__class__ is not ND:
        return bits - x.bit_length()
    out = np.zeros(len(x), np.uint32)
    x = x.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        big = x >> np.uint64(step) != 0
        out += np.where(big, np.uint32(step), np.uint32(0))
        x = np.where(big, x >> np.uint64(step), x)
    return (bits - out - (x != 0)).astype(np.uint32)


def bfe(a, pos, length, bits, signed):
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


def bfi(field, base, pos, length, bits):
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


def _lanes(*values):
    return next(len(v) for v in values if v.__class__ is ND)


_LUT_TERMS = tuple((bool(i & 4), bool(i & 2), bool(i & 1)) for i in range(8))


def lop3(a, b, c, lut):
    """lop3.b32: any function of three bits; bit i of `lut` answers for (a, b, c) = the bits of i."""
    out = 0
    for i, (pa, pb, pc) in enumerate(_LUT_TERMS):
        if lut >> i & 1:
            out = out | ((a if pa else a ^ M32) & (b if pb else b ^ M32) & (c if pc else c ^ M32))
    return out


def byte_permute(a, b, selector):
    """prmt.b32 in its default mode: each nibble of the selector picks a byte of {b, a}, bit 3 its sign."""
    if a is None or b is None:
        a, b = (Undefined.of(x, 32) if x is None else x for x in (a, b))
    out = 0
    both = [(v >> 8 * i) & 0xFF for v in (a, b) for i in range(4)]
    if selector.__class__ is not ND:
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
        nibble = (selector >> np.uint32(4 * i)) & np.uint32(15)
        byte = table[nibble & 7, np.arange(n)]
        byte = np.where(nibble & 8, (byte >> 7) * np.uint32(0xFF), byte)
        result |= byte << np.uint32(8 * i)
    return result


def funnel(low, high, shift, left, clamp):
    """shf.l/r: the 64 bits {high, low} shifted by wrapped or clamped `shift`; the upper or lower half."""
    amount = (
        np.minimum(shift, 32) if clamp and shift.__class__ is ND else min(shift, 32) if clamp else shift & 31
    )
    both = pack([low, high], 32)
    out = shr(shl(both, amount, 64), 32, 64, False) if left else shr(both, amount, 64, False)
    return wrap(out, 32)


def pack(parts, bits):
    """mov.b64 {a, b}: parts of `bits` each, the first in the low bits."""
    total = bits * len(parts)
    if any(p is None or p.__class__ is Undefined for p in parts):
        parts = [Undefined.of(p, bits) for p in parts]
        return Undefined(pack([p.value for p in parts], bits), pack([p.bits for p in parts], bits)).defined()
    if all(p.__class__ is not ND for p in parts):
        return sum(p << bits * i for i, p in enumerate(parts))
    out = None
    for i, p in enumerate(parts):
        p = p.astype(UINT[total]) if p.__class__ is ND else UINT[total](p)
        p = p << UINT[total](bits * i) if i else p
        out = p if out is None else out | p
    return out


def unpack(x, bits, index):
    """Part `index` of `bits` of a wider register."""
    if x.__class__ is Undefined:
        part = x.each(lambda whole: unpack(whole, bits, index))
        return None if part.__class__ is Undefined and np.all(part.bits == (1 << bits) - 1) else part
    if x is None:
        return None
    if x.__class__ is not ND:
        return (x >> bits * index) & ((1 << bits) - 1)
    return (x >> x.dtype.type(bits * index)).astype(UINT[bits]) if index else x.astype(UINT[bits])
