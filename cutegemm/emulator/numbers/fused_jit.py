# SPDX-License-Identifier: Apache-2.0
"""fp32 a * b + c rounded once, on the bits of whole registers: the processor's own fma, in one compiled loop.

NumPy has no fma, and takes some twenty passes to get one out of fp64 (`floats.fma32`).
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np
from llvmlite import ir

from cutegemm.emulator.numbers.floats import bits, f32, fma32
from cutegemm.emulator.numbers.native import Loop, Native
from cutegemm.emulator.numbers.types import Value
from cutegemm.emulator.numbers.values import ND

WIDTH = 8  # lanes of a step
NAN = 0x7FFFFFFF  # the only NaN that fp32 units give

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


class _Rows(threading.local):
    """A thread's room for the operands and the result of so many lanes, and where it lies."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Any, Any, Any, Any, int]] = {}

    def of(self, lanes: int) -> tuple[Any, Any, Any, Any, int]:
        """Rows of A, B, C and D, and the address of the first."""
        found = self.made.get(lanes)
        if found is None:
            room = np.empty((4, lanes), np.uint32)
            found = self.made[lanes] = (*room, room.ctypes.data)
        return found


_ROWS = _Rows()


def fused(a: Value, b: Value, c: Value) -> Value:
    """Bits of fp32 a * b + c rounded once, of bits: ints, or registers of as many lanes as the group has."""
    lanes = next((len(x) for x in (a, b, c) if x.__class__ is ND), 0)
    if not lanes or lanes % WIDTH:
        return bits(fma32(f32(a), f32(b), f32(c)))
    left, right, add, result, at = _ROWS.of(lanes)
    left[:], right[:], add[:] = a, b, c
    _loop()(at, lanes)
    out: Value = result.copy()
    return out


@functools.cache
def _loop() -> Any:
    """void fused(int32 *rows, int64 lanes)."""
    return Native(_module()).function("fused", ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64))


def _module() -> ir.Module:
    module = ir.Module()
    kind = ir.FunctionType(ir.VoidType(), [_I32.as_pointer(), _I64])
    function = ir.Function(module, kind, "fused")
    rows, lanes = function.args
    b = ir.IRBuilder(function.append_basic_block())
    floats, words = ir.VectorType(_F32, WIDTH), ir.VectorType(_I32, WIDTH)
    multiply = ir.Function(module, ir.FunctionType(floats, [floats] * 3), f"llvm.fma.v{WIDTH}f32")
    with Loop(b, lanes, WIDTH) as lane:
        operands = []
        for row in range(3):
            place = b.gep(rows, [b.add(b.mul(lanes, _I64(row)), lane)])
            operand = b.load(b.bitcast(place, floats.as_pointer()))
            operand.align = 4
            operands.append(operand)
        total = b.call(multiply, operands)
        nan = b.fcmp_unordered("uno", total, total)
        pattern = b.select(nan, ir.Constant(words, [NAN] * WIDTH), b.bitcast(total, words))
        place = b.gep(rows, [b.add(b.mul(lanes, _I64(3)), lane)])
        b.store(pattern, b.bitcast(place, words.as_pointer())).align = 4
    b.ret_void()
    return module
