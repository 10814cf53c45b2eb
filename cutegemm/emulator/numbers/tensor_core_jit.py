# SPDX-License-Identifier: Apache-2.0
"""The sums of the tensor cores (`tensor_core.py`) as two compiled loops: `split` for operands, `add` for sums.

Both need finite values; `add` needs fp32 accumulators. NumPy would make about ten passes over all products; `add` keeps
8 or 16 columns of a row in vector registers. A loop is compiled once per process and kind of instruction, in about
30 ms.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from cutegemm.emulator.numbers.native import (
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Native,
    any_lane,
    load_vector,
    loop,
    splat,
    store_vector,
)
from cutegemm.emulator.numbers.rounding import FORMATS
from cutegemm.emulator.numbers.types import Vector

NO_EXPONENT = -20_000  # for zero: even twice this is below the other exponents
LEAST = -100  # a product so far below the greatest exponent does not count
CHUNK = 16  # bytes
ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}

# Significands (fp32, below 2) and exponents (int32).
Split: TypeAlias = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]


def split(memory: int, chunks: np.ndarray, kind: str, across: bool) -> Split | None:
    """Significands and exponents of an operand in memory; None if an element is infinite or NaN.

    chunks: numbers of the operand's 16-byte chunks from address `memory` on, (ROWS, CHUNKS), contiguous int64.
    across: the result is (elements of a row, ROWS) instead of (ROWS, elements of a row).
    """
    rows, per_row = chunks.shape
    elements = per_row * CHUNK // ITEM_BYTES[kind]
    shape = (elements, rows) if across else (rows, elements)
    significands, exponents = np.empty(shape, np.float32), np.empty(shape, np.int32)
    places = (chunks.ctypes.data, significands.ctypes.data, exponents.ctypes.data, rows, per_row)
    return None if _compiled_split(kind, across)(memory, *places) else (significands, exponents)


def add(
    left: Sequence[Vector], right: Sequence[Vector], c: np.ndarray, depth: int, fraction: int
) -> np.ndarray | None:
    """D (P, M, N) of the significands and exponents of A (P, M, K) and of B (P, K, N), and of C; N is a multiple of 8.

    All are contiguous. None if C or an intermediate sum is not finite (the last sum may be infinite).
    """
    m, k = left[0].shape[-2:]
    n = c.shape[-1]
    d = np.array(c, np.float32, order="C")
    pointers = [x.ctypes.data for x in (*left, *right, d)]
    compiled = _compiled_add(depth, fraction, 16 if n % 16 == 0 else 8)
    return None if compiled(*pointers, d.size // (m * n), m, n, k) else d


def _values(b: ir.IRBuilder, raw: Any, kind: str, width: int) -> tuple[Any, Any]:
    """fp32 values of `width` patterns, and which patterns are NaN although their values are finite."""
    words, halves = ir.VectorType(I32, width), ir.VectorType(F16, width)
    short, floats = ir.VectorType(I16, width), ir.VectorType(F32, width)
    none = ir.Constant(ir.VectorType(ir.IntType(1), width), [0] * width)
    if kind == "bf16":
        return b.bitcast(b.shl(b.zext(raw, words), splat(words, 16)), floats), none
    if kind == "tf32":
        return b.bitcast(b.and_(raw, splat(words, 0xFFFFE000)), floats), none
    if kind == "f16":
        return b.fpext(b.bitcast(raw, halves), floats), none
    pattern = b.zext(raw, short)
    if kind == "e5m2":
        return b.fpext(b.bitcast(b.shl(pattern, splat(short, 8)), halves), floats), none
    magnitude = b.and_(pattern, splat(short, 0x7F))  # e4m3: exponents are 8 less than those of fp16
    sign = b.shl(b.and_(pattern, splat(short, 0x80)), splat(short, 8))
    half = b.bitcast(b.or_(b.shl(magnitude, splat(short, 7)), sign), halves)
    value = b.fmul(b.fpext(half, floats), splat(floats, 256.0))
    return value, b.icmp_unsigned("==", magnitude, splat(short, 0x7F))


@functools.cache
def _compiled_split(kind: str, across: bool) -> Any:
    """int split(char *memory, long *chunks, float *significands, int *exponents, long rows, long per_row)."""
    module = ir.Module()
    item = ITEM_BYTES[kind]
    width = CHUNK // item
    words, floats = ir.VectorType(I32, width), ir.VectorType(F32, width)
    items = ir.VectorType({1: I8, 2: I16, 4: I32}[item], width)
    each = functools.partial(splat, words)
    pointers = [I8.as_pointer(), I64.as_pointer(), F32.as_pointer(), I32.as_pointer()]
    function = ir.Function(module, ir.FunctionType(I32, [*pointers, I64, I64]), "split")
    memory, chunks, significands, exponents, rows, per_row = function.args
    b = ir.IRBuilder(function.append_basic_block())
    greatest = ir.Function(module, ir.FunctionType(words, [words, words]), f"llvm.smax.v{width}i32")
    special = b.alloca(words)
    b.store(each(0), special)
    least = FORMATS[kind].least
    with loop(b, rows, 1) as row, loop(b, per_row, 1) as chunk:
        number = b.load(b.gep(chunks, [b.add(b.mul(row, per_row), chunk)]))
        raw = load_vector(b, memory, b.mul(number, I64(CHUNK)), items, CHUNK)
        value, nan = _values(b, raw, kind, width)
        pattern = b.bitcast(value, words)
        field = b.and_(b.lshr(pattern, each(23)), each(255))
        infinite = b.icmp_unsigned("==", field, each(255))
        b.store(b.or_(b.load(special), b.sext(b.or_(infinite, nan), words)), special)
        exponent = b.sub(field, each(127))
        normal = b.or_(b.and_(pattern, each(0x807FFFFF)), each(0x3F800000))
        subnormal = b.fmul(value, splat(floats, 2.0**-least))
        small = b.icmp_signed("<", exponent, each(least))
        significand = b.select(small, subnormal, b.bitcast(normal, floats))
        zero = b.icmp_signed("==", b.and_(pattern, each(0x7FFFFFFF)), each(0))
        exponent = b.select(zero, each(NO_EXPONENT), b.call(greatest, [exponent, each(least)]))
        first = b.mul(chunk, I64(width))
        for x, out in ((significand, significands), (exponent, exponents)):
            if not across:
                store_vector(b, x, out, b.add(b.mul(row, b.mul(per_row, I64(width))), first))
                continue
            for lane in range(width):
                place = b.add(b.mul(b.add(first, I64(lane)), rows), row)
                b.store(b.extract_element(x, I32(lane)), b.gep(out, [place]))
    b.ret(any_lane(b, b.load(special)))
    kinds = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
    return Native(module).function("split", ctypes.PYFUNCTYPE(ctypes.c_int32, *kinds))


class _Lanes:
    """Builds the arithmetic of one instruction for a vector of columns of a row."""

    def __init__(self, module: ir.Module, builder: ir.IRBuilder, width: int, fraction: int) -> None:
        self.b, self.fraction = builder, fraction
        self.v32, self.v64, self.vf, self.vd = (ir.VectorType(t, width) for t in (I32, I64, F32, F64))
        self.int32 = functools.partial(splat, self.v32)

        def declare(name: str, kind: ir.Type, *args: ir.Type) -> ir.Function:
            return ir.Function(module, ir.FunctionType(kind, args), f"llvm.{name}")

        self.smax = declare(f"smax.v{width}i32", self.v32, self.v32, self.v32)
        self.umin = declare(f"umin.v{width}i32", self.v32, self.v32, self.v32)
        self.trunc = declare(f"trunc.v{width}f64", self.vd, self.vd)
        self.fabs = declare(f"fabs.v{width}f64", self.vd, self.vd)

    def most(self, x: ir.Value, y: ir.Value) -> ir.Value:
        """The greater of two integers."""
        return self.b.call(self.smax, [x, y])

    def everywhere(self, pointer: ir.Value, index: ir.Value, kind: ir.VectorType) -> ir.Value:
        """One element in every lane."""
        b, nothing = self.b, ir.Constant(kind, ir.Undefined)
        first = b.insert_element(nothing, b.load(b.gep(pointer, [index])), I32(0))
        return b.shuffle_vector(first, nothing, self.int32(0))

    def note_special(self, flags: ir.Value, x: ir.Value) -> None:
        """Set the flags of the lanes in which x is infinite or NaN."""
        b, top = self.b, self.int32(0x7F800000)
        special = b.icmp_signed("==", b.and_(b.bitcast(x, self.v32), top), top)
        b.store(b.or_(b.load(flags), b.sext(special, self.v32)), flags)

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

    def round(self, total: ir.Value, top: ir.Value) -> ir.Value:
        """A sum in these units as fp32, truncated; overflow gives infinity, and -0 becomes +0."""
        b, i = self.b, self.int32
        kept = min(self.fraction, 23)
        exponent = b.sext(b.add(self.most(top, i(-500)), i(1023 - self.fraction)), self.v64)
        scale = b.bitcast(b.shl(exponent, splat(self.v64, 52)), self.vd)
        value = b.fmul(b.sitofp(total, self.vd), scale)
        mask = splat(self.v64, -1 << 52 - kept)
        normal = b.bitcast(b.and_(b.bitcast(value, self.v64), mask), self.vd)
        step = 2.0 ** (-126 - kept)
        whole = b.call(self.trunc, [b.fmul(value, splat(self.vd, 1 / step))])
        subnormal = b.fmul(whole, splat(self.vd, step))
        small = b.fcmp_ordered("<", b.call(self.fabs, [value]), splat(self.vd, 2.0**-126))
        rounded = b.fptrunc(b.select(small, subnormal, normal), self.vf)
        return b.fadd(rounded, splat(self.vf, 0.0))


@functools.cache
def _compiled_add(depth: int, fraction: int, width: int) -> Callable[..., int]:
    """The loop of `add`; returns 0 if all values were finite."""
    module = ir.Module()
    pointers = [F32.as_pointer(), I32.as_pointer()] * 2 + [F32.as_pointer()]
    function = ir.Function(module, ir.FunctionType(I32, [*pointers, *[I64] * 4]), "add")
    sa, ea, sb, eb, d, count, m, n, k = function.args
    b = ir.IRBuilder(function.append_basic_block())
    v = _Lanes(module, b, width, fraction)
    flags = b.alloca(v.v32)
    b.store(v.int32(0), flags)
    with loop(b, count, 1) as p, loop(b, m, 1) as i, loop(b, n, width) as j:
        row = b.add(b.mul(p, m), i)
        place = b.add(b.mul(row, n), j)
        with loop(b, k, depth) as first:
            steps = [b.add(first, I64(x)) for x in range(depth)]
            left = [b.add(b.mul(row, k), x) for x in steps]
            right = [b.add(b.mul(b.add(b.mul(p, k), x), n), j) for x in steps]
            pairs = list(zip(left, right))
            old = load_vector(b, d, place, v.vf)
            mantissa, exponent, sign = v.addend(old)
            exponents = [b.add(v.everywhere(ea, x, v.v32), load_vector(b, eb, y, v.v32)) for x, y in pairs]
            top = functools.reduce(v.most, exponents, exponent)
            # each sum is at most 8 * 4 * 2**25, so it does not overflow
            sums = [v.align_addend(mantissa, exponent, sign, top), v.int32(0)]
            for number, (x, y) in enumerate(pairs):
                product = b.fmul(v.everywhere(sa, x, v.vf), load_vector(b, sb, y, v.vf))
                aligned = v.align_product(product, exponents[number], top)
                sums[number % 2] = b.add(sums[number % 2], aligned)
            v.note_special(flags, old)
            total = b.add(b.sext(sums[0], v.v64), b.sext(sums[1], v.v64))
            store_vector(b, v.round(total, top), d, place)
    b.ret(any_lane(b, b.load(flags)))
    kinds = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4
    compiled: Callable[..., int] = Native(module).function("add", ctypes.CFUNCTYPE(ctypes.c_int32, *kinds))
    return compiled
