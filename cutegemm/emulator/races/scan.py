# SPDX-License-Identifier: Apache-2.0
"""The race detector's two compiled loops: list the segments in some cells, and put a word into cells.

A cell's word is 64 bits: the segment in the low half, the PTX line of its access in the high half (`word`); -1 is an
empty cell. Rows store the complement, so that an empty row is zeros, whose pages the system gives on first write. Cells
come as `Where.runs`: 64-bit words (number of runs, cells of each, first cell of each run).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from llvmlite import ir

from cutegemm.emulator.numbers.native import I32, I64, Loop, Native

MOST = 64  # different segments that `found` lists

_I1 = ir.IntType(1)
_OUT = (ctypes.c_int32 * MOST)()
_OUT_AT = ctypes.addressof(_OUT)


def word(segment: int, line: int) -> int:
    """What a cell holds of an access by a segment at a PTX line."""
    return segment | line << 32


def access_of(cell: int) -> tuple[int, int]:
    """Segment and PTX line in a cell."""
    return cell & 0xFFFFFFFF, cell >> 32


def found(row: int, runs: int) -> list[int] | None:
    """The different segments in the cells `runs` of the row at an address; None when there are many."""
    count = _functions()[0](row, runs, _OUT_AT)
    return _OUT[:count] if count >= 0 else None


def put(row: int, runs: int, cell: int) -> None:
    """Set the cells `runs` of a row."""
    _functions()[1](row, runs, cell)


@functools.cache
def _functions() -> tuple[Any, Any]:
    module = ir.Module()
    _found(module)
    _put(module)
    native = Native(module)
    address = ctypes.c_void_p
    return (
        native.function("found", ctypes.PYFUNCTYPE(ctypes.c_int32, address, address, address)),
        native.function("put", ctypes.PYFUNCTYPE(None, address, address, ctypes.c_int64)),
    )


def _cells(b: ir.IRBuilder, row: Any, runs: Any) -> Iterator[Any]:
    """Loops over the cells of all runs; yields each cell's place."""

    def word(index: Any) -> Any:
        return b.load(b.gep(runs, [index]))

    count, length = word(I64(0)), word(I64(1))
    with Loop(b, count, 1) as run:
        first = b.gep(row, [word(b.add(run, I64(2)))])
        with Loop(b, length, 1) as cell:
            yield b.gep(first, [cell])


def _found(module: ir.Module) -> None:
    """int found(int64 *row, int64 *runs, int32 *out): number of values written to `out`, -1 beyond MOST."""
    kind = ir.FunctionType(I32, [I64.as_pointer(), I64.as_pointer(), I32.as_pointer()])
    function = ir.Function(module, kind, "found")
    row, runs, out = function.args
    b = ir.IRBuilder(function.append_basic_block())
    last, listed, seen = b.alloca(I32), b.alloca(I64), b.alloca(_I1)
    b.store(I32(-2), last)
    b.store(I64(0), listed)
    for place in _cells(b, row, runs):
        value = b.trunc(b.not_(b.load(place)), I32)
        with b.if_then(b.icmp_signed("!=", value, b.load(last)), likely=False):
            b.store(value, last)
            b.store(_I1(0), seen)
            count = b.load(listed)
            with Loop(b, count, 1) as index:  # runs once if nothing is listed
                same = b.icmp_signed("==", b.load(b.gep(out, [index])), value)
                same = b.and_(same, b.icmp_signed("<", index, count))
                b.store(b.or_(b.load(seen), same), seen)
            with b.if_then(b.not_(b.load(seen))):
                with b.if_then(b.icmp_signed(">=", count, I64(MOST))):
                    b.ret(I32(-1))
                b.store(value, b.gep(out, [count]))
                b.store(b.add(count, I64(1)), listed)
    b.ret(b.trunc(b.load(listed), I32))


def _put(module: ir.Module) -> None:
    """void put(int64 *row, int64 *runs, int64 word)."""
    kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64.as_pointer(), I64])
    function = ir.Function(module, kind, "put")
    row, runs, cell = function.args
    b = ir.IRBuilder(function.append_basic_block())
    for place in _cells(b, row, runs):
        b.store(b.not_(cell), place)
    b.ret_void()
