# SPDX-License-Identifier: Apache-2.0
"""fp32 a * b + c rounded once, in a compiled loop over the bits of registers; NumPy has no fma."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np
from llvmlite import ir

from cutegemm.emulator.numbers.floats import CANONICAL_NAN
from cutegemm.emulator.numbers.native import F32, I32, I64, Native, load_vector, loop, splat, store_vector
from cutegemm.emulator.numbers.types import Value
from cutegemm.emulator.numbers.values import ND

WIDTH = 8  # lanes per iteration; divides those of any group of warps


class _Scratch(threading.local):
    """A thread's memory for a, b, c and the result, by number of lanes, with its address."""

    def __init__(self) -> None:
        self.of = functools.cache(self._made)

    @staticmethod
    def _made(lanes: int) -> tuple[Any, int]:
        rows = np.empty((4, lanes), np.uint32)
        return rows, rows.ctypes.data


_SCRATCH = _Scratch()


def fused(a: Value, b: Value, c: Value) -> Value:
    """fp32 a * b + c rounded once; operands and result are bits."""
    vector = next((x for x in (a, b, c) if x.__class__ is ND), None)
    lanes = WIDTH if vector is None else len(vector)
    rows, address = _SCRATCH.of(lanes)
    rows[0], rows[1], rows[2] = a, b, c
    _loop()(address, lanes)
    return int(rows[3, 0]) if vector is None else rows[3].copy()


@functools.cache
def _loop() -> Any:
    """void fused(int32 *rows, int64 lanes)."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I32.as_pointer(), I64]), "fused")
    rows, lanes = function.args
    b = ir.IRBuilder(function.append_basic_block())
    floats, words = ir.VectorType(F32, WIDTH), ir.VectorType(I32, WIDTH)
    multiply = ir.Function(module, ir.FunctionType(floats, [floats] * 3), f"llvm.fma.v{WIDTH}f32")
    with loop(b, lanes, WIDTH) as lane:
        places = [b.add(b.mul(lanes, I64(row)), lane) for row in range(4)]
        total = b.call(multiply, [load_vector(b, rows, place, floats) for place in places[:3]])
        nan = b.fcmp_unordered("uno", total, total)
        pattern = b.select(nan, splat(words, CANONICAL_NAN), b.bitcast(total, words))
        store_vector(b, pattern, rows, places[3])
    b.ret_void()
    return Native(module).function("fused", ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64))
