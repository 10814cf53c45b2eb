# SPDX-License-Identifier: Apache-2.0
"""The race detector's two compiled loops: which segments are found in some cells, and a word put into cells.

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

from cutegemm.emulator.numbers.native import Loop, Native

SEGMENT = 0xFFFFFFFF  # of a cell's word
MOST = 64  # different segments that `found` lists

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_OUT = (ctypes.c_int32 * MOST)()
_OUT_AT = ctypes.addressof(_OUT)


def word(segment: int, line: int) -> int:
    """What a cell holds of an access by a segment at a PTX line."""
    return segment | line << 32


def access_of(cell: int) -> tuple[int, int]:
    """Segment and PTX line in a cell."""
    return cell & SEGMENT, cell >> 32


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

    count, length = word(_I64(0)), word(_I64(1))
    with Loop(b, count, 1) as run:
        first = b.gep(row, [word(b.add(run, _I64(2)))])
        with Loop(b, length, 1) as cell:
            yield b.gep(first, [cell])


def _found(module: ir.Module) -> None:
    """int found(int64 *row, int64 *runs, int32 *out): number of values written to `out`, -1 beyond MOST."""
    kind = ir.FunctionType(_I32, [_I64.as_pointer(), _I64.as_pointer(), _I32.as_pointer()])
    function = ir.Function(module, kind, "found")
    row, runs, out = function.args
    b = ir.IRBuilder(function.append_basic_block())
    last, listed = b.alloca(_I32), b.alloca(_I64)
    b.store(_I32(-2), last)
    b.store(_I64(0), listed)
    full = function.append_basic_block("full")
    with ir.IRBuilder.goto_block(b, full):
        b.ret(_I32(-1))
    for place in _cells(b, row, runs):
        value = b.trunc(b.not_(b.load(place)), _I32)
        with b.if_then(b.icmp_signed("!=", value, b.load(last)), likely=False):
            b.store(value, last)
            _list(b, value, out, listed, full)
    b.ret(b.trunc(b.load(listed), _I32))


def _list(b: ir.IRBuilder, value: Any, out: Any, listed: Any, full: Any) -> None:
    """Append a value unless it is listed."""
    search, known, new = (b.append_basic_block(name) for name in ("search", "known", "new"))
    count = b.load(listed)
    before = b.block
    compare = b.append_basic_block("compare")
    b.branch(search)
    b.position_at_end(search)
    index = b.phi(_I64)
    index.add_incoming(_I64(0), before)
    b.cbranch(b.icmp_signed("<", index, count), compare, new)
    b.position_at_end(compare)
    following = b.add(index, _I64(1))
    index.add_incoming(following, compare)
    b.cbranch(b.icmp_signed("==", b.load(b.gep(out, [index])), value), known, search)
    b.position_at_end(new)
    append = b.append_basic_block("append")
    b.cbranch(b.icmp_signed(">=", count, _I64(MOST)), full, append)
    b.position_at_end(append)
    b.store(value, b.gep(out, [count]))
    b.store(b.add(count, _I64(1)), listed)
    b.branch(known)
    b.position_at_end(known)


def _put(module: ir.Module) -> None:
    """void put(int64 *row, int64 *runs, int64 word)."""
    kind = ir.FunctionType(ir.VoidType(), [_I64.as_pointer(), _I64.as_pointer(), _I64])
    function = ir.Function(module, kind, "put")
    row, runs, cell = function.args
    b = ir.IRBuilder(function.append_basic_block())
    for place in _cells(b, row, runs):
        b.store(b.not_(cell), place)
    b.ret_void()
