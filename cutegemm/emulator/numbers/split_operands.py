# SPDX-License-Identifier: Apache-2.0
"""Operands of the tensor cores taken apart by one compiled loop: from chunks of memory to values and exponents.

What `tensor_core.parts` says in NumPy, for operands whose exponents are narrow (`tensor_core_jit.NARROW`), which is the
usual case: fp16, bf16, tf32 and fp8, gathered by 16-byte chunks and laid as the tensor cores' loop reads them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
from llvmlite import ir

from cutegemm.emulator.numbers.native import Loop, Native
from cutegemm.emulator.numbers.tensor_core_jit import NARROW, NO_EXPONENT

ITEM_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1}
LEAST_EXPONENT = {"f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14, "f32": -126}
CHUNK = 16  # bytes

Split = tuple[np.ndarray, np.ndarray]  # values (fp32) and exponents (int32; NO_EXPONENT of zeros)

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F16, _F32 = ir.HalfType(), ir.FloatType()


def split(memory: int, chunks: np.ndarray, kind: str, across: bool) -> Split | None:
    """An operand whose chunks (ROWS, CHUNKS), contiguous int64, lie at an address; None when it is not narrow.

    `across`: the result is transposed, (elements of a row, ROWS), else (ROWS, elements of a row).
    """
    rows, per_row = chunks.shape
    elements = per_row * CHUNK // ITEM_BYTES[kind]
    shape = (elements, rows) if across else (rows, elements)
    values, exponents = np.empty(shape, np.float32), np.empty(shape, np.int32)
    place = (chunks.ctypes.data, values.ctypes.data, exponents.ctypes.data, rows, per_row)
    return None if _compiled(kind, across)(memory, *place) else (values, exponents)


@functools.cache
def _compiled(kind: str, across: bool) -> Any:
    native = Native(_module(kind, across))
    kinds = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 2
    return native.function("split", ctypes.PYFUNCTYPE(ctypes.c_int32, *kinds))


def _values(b: ir.IRBuilder, raw: Any, kind: str, width: int) -> tuple[Any, Any]:
    """fp32 values of `width` patterns, and which of them are no numbers although their exponent is not the top one."""
    words, halves = ir.VectorType(_I32, width), ir.VectorType(_F16, width)
    short, floats = ir.VectorType(_I16, width), ir.VectorType(_F32, width)

    def each(t: ir.Type, x: float) -> ir.Constant:
        return ir.Constant(t, [x] * width)

    nothing = ir.Constant(ir.VectorType(ir.IntType(1), width), [0] * width)
    if kind == "bf16":
        return b.bitcast(b.shl(b.zext(raw, words), each(words, 16)), floats), nothing
    if kind == "tf32":
        return b.bitcast(b.and_(raw, each(words, 0xFFFFE000)), floats), nothing
    if kind == "f16":
        return b.fpext(b.bitcast(raw, halves), floats), nothing
    pattern = b.zext(raw, short)
    if kind == "e5m2":
        return b.fpext(b.bitcast(b.shl(pattern, each(short, 8)), halves), floats), nothing
    magnitude = b.and_(pattern, each(short, 0x7F))  # e4m3: exponents are 8 less than those of fp16
    sign = b.shl(b.and_(pattern, each(short, 0x80)), each(short, 8))
    half = b.bitcast(b.or_(b.shl(magnitude, each(short, 7)), sign), halves)
    value = b.fmul(b.fpext(half, floats), each(floats, 256.0))
    return value, b.icmp_unsigned("==", magnitude, each(short, 0x7F))


def _module(kind: str, across: bool) -> ir.Module:
    """int split(char *memory, long *chunks, float *values, int *exponents, long rows, long per_row): 0 if narrow."""
    module = ir.Module()
    item = ITEM_BYTES[kind]
    width = CHUNK // item
    words = ir.VectorType(_I32, width)
    items = ir.VectorType({1: _I8, 2: _I16, 4: _I32}[item], width)

    def each(x: int) -> ir.Constant:
        return ir.Constant(words, [x] * width)

    pointers = [_I8.as_pointer(), _I64.as_pointer(), _F32.as_pointer(), _I32.as_pointer()]
    function = ir.Function(module, ir.FunctionType(_I32, [*pointers, _I64, _I64]), "split")
    memory, chunks, values, exponents, rows, per_row = function.args
    b = ir.IRBuilder(function.append_basic_block())
    greatest = ir.Function(module, ir.FunctionType(words, [words, words]), f"llvm.smax.v{width}i32")
    wide = b.alloca(words)
    b.store(each(0), wide)
    with Loop(b, rows, 1) as row, Loop(b, per_row, 1) as chunk:
        number = b.load(b.gep(chunks, [b.add(b.mul(row, per_row), chunk)]))
        at = b.bitcast(b.gep(memory, [b.mul(number, _I64(CHUNK))]), items.as_pointer())
        raw = b.load(at)
        raw.align = CHUNK
        value, odd = _values(b, raw, kind, width)
        pattern = b.bitcast(value, words)
        field = b.and_(b.lshr(pattern, each(23)), each(255))
        exponent = b.call(greatest, [b.sub(field, each(127)), each(LEAST_EXPONENT[kind])])
        zero = b.icmp_signed("==", b.and_(pattern, each(0x7FFFFFFF)), each(0))
        far = b.icmp_unsigned(">", b.add(exponent, each(NARROW)), each(2 * NARROW))
        far = b.or_(b.and_(far, b.not_(zero)), odd)
        b.store(b.or_(b.load(wide), b.sext(far, words)), wide)
        exponent = b.select(zero, each(NO_EXPONENT), exponent)
        first = b.mul(chunk, _I64(width))
        for x, out in ((value, values), (exponent, exponents)):
            if not across:
                place = b.gep(out, [b.add(b.mul(row, b.mul(per_row, _I64(width))), first)])
                b.store(x, b.bitcast(place, x.type.as_pointer())).align = 4
                continue
            for lane in range(width):
                place = b.add(b.mul(b.add(first, _I64(lane)), rows), row)
                b.store(b.extract_element(x, _I32(lane)), b.gep(out, [place]))
    seen = b.load(wide)
    b.ret(functools.reduce(b.or_, (b.extract_element(seen, _I32(lane)) for lane in range(width))))
    return module
