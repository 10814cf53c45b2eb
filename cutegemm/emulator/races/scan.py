# SPDX-License-Identifier: Apache-2.0
"""The race detector's two compiled loops: list the accesses in some cells, and set cells.

A cell holds 64 bits: the segment of an access in the low half, its PTX line in the high half (`word`); -1 is an empty
cell. Rows store the complement, so an empty row is zeros, whose pages the system provides on first write. Cells are
given as `CellSet.runs`: 64-bit words (number of runs, cells of each, first cell of each run).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from cutegemm.emulator.numbers.native import I32, I64, Native, loop

SEGMENT = 0xFFFFFFFF  # the bits of a cell's word that are its segment
MOST = 64  # different words that `words_in` lists

_I1 = ir.IntType(1)
_OUT = (ctypes.c_int64 * MOST)()
_OUT_AT = ctypes.addressof(_OUT)


def word(segment: int, line: int) -> int:
    """What a cell holds for an access by a segment at a PTX line."""
    return segment | line << 32


def access_of(cell: int) -> tuple[int, int]:
    """Segment and PTX line in a cell."""
    return cell & SEGMENT, cell >> 32


def words_in(row: int, runs: int) -> list[int] | None:
    """The different words in the cells `runs` of the row at an address; None if there are more than MOST."""
    count = _functions()[0](row, runs, _OUT_AT)
    return _OUT[:count] if count >= 0 else None


def put(row: int, runs: int, cell: int) -> None:
    """Set the cells `runs` of a row."""
    _functions()[1](row, runs, cell)


@functools.cache
def _functions() -> tuple[Any, Any]:
    module = ir.Module()
    _words_in(module)
    _put(module)
    native = Native(module)
    address = ctypes.c_void_p
    return (
        native.function("words_in", ctypes.PYFUNCTYPE(ctypes.c_int32, address, address, address)),
        native.function("put", ctypes.PYFUNCTYPE(None, address, address, ctypes.c_int64)),
    )


@contextmanager
def _each_cell(b: ir.IRBuilder, row: Any, runs: Any) -> Iterator[Any]:
    """A loop over the cells of all runs, with a pointer to the cell."""

    def word(index: Any) -> Any:
        return b.load(b.gep(runs, [index]))

    count, length = word(I64(0)), word(I64(1))
    with loop(b, count, 1) as run:
        first = b.gep(row, [word(b.add(run, I64(2)))])
        with loop(b, length, 1) as cell:
            yield b.gep(first, [cell])


def _words_in(module: ir.Module) -> None:
    """int words_in(int64 *row, int64 *runs, int64 *out): number of words written to `out`, -1 if more than MOST."""
    kind = ir.FunctionType(I32, [I64.as_pointer()] * 3)
    function = ir.Function(module, kind, "words_in")
    row, runs, out = function.args
    b = ir.IRBuilder(function.append_basic_block())
    last, listed, seen = b.alloca(I64), b.alloca(I64), b.alloca(_I1)
    b.store(I64(-2), last)  # no cell holds -2
    b.store(I64(0), listed)
    with _each_cell(b, row, runs) as place:
        value = b.not_(b.load(place))
        with b.if_then(b.icmp_signed("!=", value, b.load(last)), likely=False):
            b.store(value, last)
            b.store(_I1(0), seen)
            count = b.load(listed)
            with loop(b, count, 1) as index:  # runs once if nothing is listed
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
    with _each_cell(b, row, runs) as place:
        b.store(b.not_(cell), place)
    b.ret_void()
