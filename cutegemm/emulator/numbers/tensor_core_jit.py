# SPDX-License-Identifier: Apache-2.0
"""The tensor cores' sum (`tensor_core.py`) as one compiled loop: finite values, fp32 accumulators.

NumPy would pass over every product about ten times; here 8 or 16 columns stay in vector registers. The function is
built once per process and kind of instruction, in some 30 ms.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from cutegemm.emulator.numbers.native import Loop, Native
from cutegemm.emulator.numbers.types import Vector

NO_EXPONENT = -20_000  # of a zero: below any other, twice over
LEAST = -100  # scale exponents below this leave nothing of a product
NARROW = (
    50  # exponents of operands whose products, and these in units of the greatest, are normal fp32 numbers
)

_I32, _I64, _F32, _F64 = (ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType())

Parts: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]  # significands and exponents


def accumulate(
    left: Parts, right: Parts, c: np.ndarray, depth: int, fraction: int, narrow: bool = False
) -> np.ndarray | None:
    """D (P, M, N) of the significands and exponents of A (P, M, K) and B (P, N, K), and C (P, M, N); N in eights.

    None when C or a sum on the way is not finite (the last sum may be infinite). `narrow`: see `add`.
    """
    by_columns = [np.ascontiguousarray(x.swapaxes(-1, -2)) for x in right]  # (P, K, N): columns side by side
    return add([np.ascontiguousarray(x) for x in left], by_columns, c, depth, fraction, narrow)


def add(
    left: Sequence[Vector], right: Sequence[Vector], c: np.ndarray, depth: int, fraction: int, narrow: bool
) -> np.ndarray | None:
    """`accumulate` of contiguous operands, B as (P, K, N).

    `narrow`: operands are values, not significands, and every exponent lies within `NARROW` of 0 or is NO_EXPONENT. A
    product is then an fp32 number, which one multiplication aligns.
    """
    m, k = left[0].shape[-2:]
    n = c.shape[-1]
    d = np.array(c, np.float32, order="C")
    pointers = [x.ctypes.data for x in (*left, *right, d)]
    loop = _compiled(depth, fraction, 16 if n % 16 == 0 else 8, narrow)
    return None if loop(*pointers, d.size // (m * n), m, n, k) else d


@functools.cache
def _compiled(depth: int, fraction: int, width: int, narrow: bool) -> Callable[..., int]:
    kinds = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4
    native = Native(_module(depth, fraction, width, narrow))
    made: Callable[..., int] = native.function("accumulate", ctypes.CFUNCTYPE(ctypes.c_int32, *kinds))
    return made


class _Lanes:
    """The arithmetic of one step on a vector of columns of a row."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, width: int, fraction: int) -> None:
        self.b, self.width, self.fraction = builder, width, fraction
        self.v32, self.v64, self.vf, self.vd = (ir.VectorType(t, width) for t in (_I32, _I64, _F32, _F64))

        def declare(name: str, kind: ir.Type, *args: ir.Type) -> ir.Function:
            return ir.Function(module, ir.FunctionType(kind, args), f"llvm.{name}")

        self.smax = declare(f"smax.v{width}i32", self.v32, self.v32, self.v32)
        self.umin = declare(f"umin.v{width}i32", self.v32, self.v32, self.v32)
        self.trunc = declare(f"trunc.v{width}f64", self.vd, self.vd)
        self.fabs = declare(f"fabs.v{width}f64", self.vd, self.vd)

    def int32(self, value: int) -> ir.Constant:
        return ir.Constant(self.v32, [value] * self.width)

    def float64(self, value: float) -> ir.Constant:
        return ir.Constant(self.vd, [value] * self.width)

    def most(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The greater of two integers."""
        return self.b.call(self.smax, [x, y])

    def everywhere(self, pointer: ir.Value, index: ir.Value, kind: ir.VectorType) -> ir.Value:
        """One element in every lane."""
        b, nothing = self.b, ir.Constant(kind, ir.Undefined)
        first = b.insert_element(nothing, b.load(b.gep(pointer, [index])), _I32(0))
        return b.shuffle_vector(first, nothing, self.int32(0))

    def side_by_side(self, pointer: ir.Value, index: ir.Value, kind: ir.VectorType) -> ir.Value:
        """Elements next to each other."""
        out = self.b.load(self.b.bitcast(self.b.gep(pointer, [index]), kind.as_pointer()))
        out.align = 4
        return out

    def store(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        """The opposite of `side_by_side`."""
        place = self.b.bitcast(self.b.gep(pointer, [index]), value.type.as_pointer())
        self.b.store(value, place).align = 4

    def note_odd(self, flags: ir.Value, x: ir.Value) -> None:
        """Remember the lanes in which x is not finite."""
        b, i = self.b, self.int32
        field = b.and_(b.bitcast(x, self.v32), i(0x7F800000))
        odd = b.sext(b.icmp_signed("==", field, i(0x7F800000)), self.v32)
        b.store(b.or_(b.load(flags), odd), flags)

    def addend(self, d: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """(integer significand, exponent, sign) of the accumulator: 1.0 is 1 << 23; zero has no exponent."""
        b, i = self.b, self.int32
        pattern = b.bitcast(d, self.v32)
        field = b.and_(b.lshr(pattern, i(23)), i(255))
        mantissa = b.and_(pattern, i(0x7FFFFF))
        mantissa = b.select(b.icmp_signed(">", field, i(0)), b.or_(mantissa, i(1 << 23)), mantissa)
        exponent = b.sub(self.most(field, i(1)), i(127))
        nothing = b.icmp_signed("==", mantissa, i(0))
        return mantissa, b.select(nothing, i(NO_EXPONENT), exponent), b.ashr(pattern, i(31))

    def align_addend(self, mantissa: ir.Value, exponent: ir.Value, sign: ir.Value, top: ir.Value) -> ir.Value:
        """The accumulator as an integer in units of 2**(top - fraction), truncated."""
        b, i = self.b, self.int32
        down = b.add(b.sub(top, exponent), i(max(23 - self.fraction, 0)))
        magnitude = b.shl(mantissa, i(max(self.fraction - 23, 0)))
        magnitude = b.lshr(magnitude, b.call(self.umin, [down, i(31)]))
        return b.sub(b.xor(magnitude, sign), sign)

    def align_product(self, product: ir.Value, exponent: ir.Value, top: ir.Value) -> ir.Value:
        """A product in the same units."""
        b, i = self.b, self.int32
        up = b.add(self.most(b.sub(exponent, top), i(LEAST)), i(127 + self.fraction))
        return b.fptosi(b.fmul(product, b.bitcast(b.shl(up, i(23)), self.vf)), self.v32)

    def unit(self, top: ir.Value) -> ir.Value:
        """One over the unit that products of narrow operands are counted in: 2**(fraction - top).

        A nonzero product's exponent is -2 * NARROW at least, so that a lower top means nothing but zeros.
        """
        b, i = self.b, self.int32
        up = b.sub(i(127 + self.fraction), self.most(top, i(-2 * NARROW)))
        return b.bitcast(b.shl(up, i(23)), self.vf)

    def narrow_sum(self, sums: list[ir.Value], top: ir.Value) -> ir.Value:
        """`round` of two sums of 32 bits where the result is no subnormal number: in fp64, where they are exact."""
        b, i = self.b, self.int32
        total = b.fadd(b.sitofp(sums[0], self.vd), b.sitofp(sums[1], self.vd))
        mask = ir.Constant(self.v64, [-1 << 52 - min(self.fraction, 23)] * self.width)
        kept = b.fptrunc(b.bitcast(b.and_(b.bitcast(total, self.v64), mask), self.vd), self.vf)
        scale = b.shl(b.add(self.most(top, i(-2 * NARROW)), i(127 - self.fraction)), i(23))
        return b.fmul(kept, b.bitcast(scale, self.vf))

    def note_small(self, flags: ir.Value, exponent: ir.Value) -> None:
        """Remember the lanes whose accumulator, if it is not zero, lies below all nonzero products."""
        b, i = self.b, self.int32
        small = b.and_(
            b.icmp_signed("<", exponent, i(-2 * NARROW)), b.icmp_signed("!=", exponent, i(NO_EXPONENT))
        )
        b.store(b.or_(b.load(flags), b.sext(small, self.v32)), flags)

    def round(self, total: ir.Value, top: ir.Value) -> ir.Value:
        """A sum in these units as fp32, truncated; overflow gives infinity, and -0 becomes +0."""
        b, i, f = self.b, self.int32, self.float64
        kept = min(self.fraction, 23)
        exponent = b.sext(b.add(self.most(top, i(-500)), i(1023 - self.fraction)), self.v64)
        scale = b.bitcast(b.shl(exponent, ir.Constant(self.v64, [52] * self.width)), self.vd)
        value = b.fmul(b.sitofp(total, self.vd), scale)
        mask = ir.Constant(self.v64, [-1 << 52 - kept] * self.width)
        normal = b.bitcast(b.and_(b.bitcast(value, self.v64), mask), self.vd)
        step = 2.0 ** (-126 - kept)
        subnormal = b.fmul(b.call(self.trunc, [b.fmul(value, f(1 / step))]), f(step))
        small = b.fcmp_ordered("<", b.call(self.fabs, [value]), f(2.0**-126))
        rounded = b.fptrunc(b.select(small, subnormal, normal), self.vf)
        return b.fadd(rounded, ir.Constant(self.vf, [0.0] * self.width))


def _module(depth: int, fraction: int, width: int, narrow: bool) -> ir.Module:
    """For each problem, row, `width` columns and `depth` of K: align, add, round."""
    module = ir.Module()
    kinds = [_F32.as_pointer(), _I32.as_pointer()] * 2 + [_F32.as_pointer()] + [_I64] * 4
    function = ir.Function(module, ir.FunctionType(_I32, kinds), "accumulate")
    sa, ea, sb, eb, d, count, m, n, k = function.args
    b = ir.IRBuilder(function.append_basic_block())
    v = _Lanes(module, b, width, fraction)
    flags = b.alloca(v.v32)
    b.store(v.int32(0), flags)
    with Loop(b, count, 1) as p, Loop(b, m, 1) as i, Loop(b, n, width) as j:
        row = b.add(b.mul(p, m), i)
        place = b.add(b.mul(row, n), j)
        with Loop(b, k, depth) as first:
            steps = [b.add(first, _I64(x)) for x in range(depth)]
            left = [b.add(b.mul(row, k), x) for x in steps]
            right = [b.add(b.mul(b.add(b.mul(p, k), x), n), j) for x in steps]
            pairs = list(zip(left, right))
            old = v.side_by_side(d, place, v.vf)
            mantissa, exponent, sign = v.addend(old)
            exponents = [b.add(v.everywhere(ea, x, v.v32), v.side_by_side(eb, y, v.v32)) for x, y in pairs]
            top = functools.reduce(v.most, exponents, exponent)
            sums = [v.align_addend(mantissa, exponent, sign, top), v.int32(0)]
            unit = v.unit(top) if narrow else None
            for number, (x, y) in enumerate(pairs):  # at most 8 * 4 * 2**25 in either sum: no overflow
                product = b.fmul(v.everywhere(sa, x, v.vf), v.side_by_side(sb, y, v.vf))
                if narrow:
                    aligned = b.fptosi(b.fmul(product, unit), v.v32)
                else:
                    aligned = v.align_product(product, exponents[number], top)
                sums[number % 2] = b.add(sums[number % 2], aligned)
            v.note_odd(flags, old)
            if narrow:
                v.note_small(flags, exponent)
                v.store(v.narrow_sum(sums, top), d, place)
            else:
                total = b.add(b.sext(sums[0], v.v64), b.sext(sums[1], v.v64))
                v.store(v.round(total, top), d, place)
    seen = b.load(flags)
    b.ret(functools.reduce(b.or_, (b.extract_element(seen, _I32(lane)) for lane in range(width))))
    return module
