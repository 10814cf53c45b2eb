# SPDX-License-Identifier: Apache-2.0
"""A staged subtile's lines to global memory, where they begin at any element.

A line is what a subtile holds of a row of a row-major output, or of a column of a column-major one. L2 takes part of a
sector of 32 bytes two to three times as long as a whole one (an H200, by tiles of subtiles of 64 and 32 columns), so
lines leave in whole sectors: neighbouring lanes take neighbouring words of four bytes from a sector's start on, and put
each together from elements, which lie in shared memory as far off a word's start as the line begins off one. What is
left of a row behind its last whole sector waits for the row's next subtile (`kept`, `carried`). Only where a tile
begins and ends, elements go out one by one, those of a sector by one access.

A warp stores lines of its own number, all it reads of them before the first store. Where a line lies in shared memory
`KernelConfig.row_pitch` says: what the subtile before left comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import SECTOR, OutputConfig
from cutegemm.kernels.load.operand_rows import divided
from cutegemm.kernels.memory_views import (
    BITS,
    REGISTER,
    WORD,
    act_if,
    elements_at,
    put_element,
    word_at,
    zero_word,
)

WARPS = hw.WARPGROUP // hw.WARP


@dataclass(frozen=True)
class SubtileRows:
    """The lines of one subtile.

    Attributes:
        matrix: the output, of unit stride along M or N.
        shape: (WGMMA_M, EPI_N), of the subtile.
        mD: (m, n, l) in global memory.
        start, pitch: where the first line begins in shared memory, Int32, and from one to the next; bytes.
        extents: (m, n) of the output from which on nothing is stored.
        origin: (m, n, l) of the subtile's first element.
        held: bytes of the same rows that lie before them, of subtiles before: up to a sector.
        kept: whether what is left behind the last whole sector waits for the next subtile.
    """

    matrix: OutputConfig
    shape: tuple[int, int]
    mD: Any
    start: Any
    pitch: int
    extents: tuple[Any, Any]
    origin: tuple[Any, Any, Any]
    held: int
    kept: bool

    @property
    def axis(self) -> int:
        """Along which lines run: 0 is M, 1 is N."""
        return 0 if self.matrix.major == "m" else 1

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.matrix.dtype.bytes

    @property
    def width(self) -> int:
        """Bytes of a line."""
        return self.shape[self.axis] * self.size

    @property
    def per_warp(self) -> int:
        """Lines of a warp."""
        return self.shape[1 - self.axis] // WARPS

    @property
    def left(self) -> tuple[Any, Any]:
        """(lines, bytes of a line) of the output from the subtile's first element on; none where not positive."""
        across, along = (self.extents[x] - self.origin[x] for x in (1 - self.axis, self.axis))
        return across, along * self.size

    def address(self, line: Any) -> Any:
        """Where a line begins in global memory; Int64."""
        m, n = (0, line) if self.axis == 0 else (line, 0)
        index = cute.crd2idx((self.origin[0] + m, self.origin[1] + n, self.origin[2]), self.mD.layout)
        return self.mD.iterator.toint() + cutlass.Int64(index) * self.size

    def staged(self, line: Any, at: Any) -> Any:
        """Where byte `at` of a line lies in shared memory."""
        return self.start + line * self.pitch + at

    def store(self, thread: Any) -> None:
        """Store the lines that are the thread's warp's."""
        warp, lane = thread // hw.WARP, thread % hw.WARP
        self._sectors(warp * self.per_warp, lane)
        if self.held < SECTOR:
            self._head(warp * self.per_warp, lane)
        self._tail(warp * self.per_warp, lane)

    def rest(self, thread: Any) -> cute.Tensor:
        """The end of the rows, a chunk of 16 bytes a thread, for `carry`."""
        rX = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
        cute.autovec_copy(self._chunk(thread, self.width - SECTOR), rX)
        return rX

    def carry(self, thread: Any, rest: cute.Tensor | None) -> None:
        """Put the end of the rows of the subtile before, or zeros, before this subtile's rows."""
        cute.autovec_copy(zero_word() if rest is None else rest, self._chunk(thread, -SECTOR))

    def _chunk(self, thread: Any, at: int) -> cute.Tensor:
        """The thread's of two chunks of a row, of those from byte `at` on."""
        line, within = divided(thread * WORD, SECTOR)
        return word_at(self.staged(line, at + within), shared=True)

    def _sectors(self, first: Any, lane: Any) -> None:
        """Store the whole sectors, each from its start on, of which the first may begin in the subtile before."""
        lines, length = self.left
        width = max(self.width, SECTOR)
        lanes = min(hw.WARP, width // REGISTER)
        together = hw.WARP // lanes
        line, at = divided(lane * REGISTER, lanes * REGISTER)
        line += first
        steps, across = range(0, self.per_warp, together), range(0, width, lanes * REGISTER)
        address, addresses, found = self.address(line), [], []
        for i in steps:
            addresses.append(address)
            # bytes of the line's first sector that are not the line's: so far before the lane's place its word begins
            before = cutlass.Int32(address) & (SECTOR - 1)
            found.append([self._word(line + i, at + j - before) for j in across])
            # written out, lest the compiler recompute every line's address
            address = cute.arch.inline_ptx(
                "add.s64 {$w0}, {$r0}, {$r1};",
                write_only_types=[cutlass.Int64],
                read_only_args=[address, together * self._pitch],
            )
        # of the lane's sector
        start = at & -SECTOR
        end = cutlass.min(length, self.width)
        for i, of, address in zip(steps, found, addresses, strict=True):
            before = cutlass.Int32(address) & (SECTOR - 1)
            for j, value in zip(across, of, strict=True):
                wanted = cutlass.Boolean(line + i < lines)
                wanted &= cutlass.Boolean(start + (j + SECTOR) - before <= end)
                if self.held < SECTOR:
                    wanted &= cutlass.Boolean(before <= start + (j + self.held))
                _store_word((address & -SECTOR) + (at + j), value, wanted)

    def _word(self, line: Any, at: Any) -> Any:
        """The word of elements from byte `at` of a line on; before the line lies what the subtile before left."""
        # what is not stored is not asked for either
        if self.held < SECTOR:
            at = cutlass.max(at, -self.held)
        if self.width < SECTOR:
            at = cutlass.min(at, self.width - REGISTER)
        numeric, count = BITS[self.size], REGISTER // self.size
        rX = cute.make_rmem_tensor(count, numeric)
        sX = elements_at(numeric, self.staged(line, at), count, shared=True)
        for x in range(count):
            rX[x] = sX[x]
        return cute.recast_tensor(rX, cutlass.Uint32)[0]

    def _head(self, first: Any, lane: Any) -> None:
        """Store the elements before each line's first whole sector."""
        lines, length = self.left
        for line, at in self._edge(first, lane):
            start = self.address(line)
            end = cutlass.min(cutlass.min(self._first_sector(start), length), self.width)
            wanted = self._own(line, first, lines) & cutlass.Boolean(at < end)
            self._store_element(wanted, line, at, start)

    @cute.jit
    def _tail(self, first: Any, lane: Any) -> None:
        """Store the elements behind each line's last whole sector, unless the next subtile does."""
        lines, length = self.left
        if cutlass.const_expr(not self.kept):
            self._last(first, lane, lines, cutlass.min(length, self.width))
        elif length <= self.width:
            self._last(first, lane, lines, length)

    def _last(self, first: Any, lane: Any, lines: Any, length: Any) -> None:
        """Store the elements behind the last whole sector of lines of so many bytes."""
        for line, back in self._edge(first, lane):
            start = self.address(line)
            at = length - self.size - back
            behind = (cutlass.Int32(start) + length) & (SECTOR - 1)
            wanted = self._own(line, first, lines) & cutlass.Boolean(back < behind)
            wanted &= cutlass.Boolean(length > 0)
            if self.held < SECTOR:
                # what is before the first whole sector has left
                wanted &= cutlass.Boolean(at >= self._first_sector(start))
            self._store_element(wanted, line, at, start)

    def _first_sector(self, start: Any) -> Any:
        """The first byte of a line, which begins at `start`, that is in a sector which the tile's row fills."""
        return ((self.held - cutlass.Int32(start)) & (SECTOR - 1)) - self.held

    def _own(self, line: Any, first: Any, lines: Any) -> Any:
        """Whether a line is one of the `lines` of the output and of the warp's, of which there is a `first`."""
        inside = cutlass.Boolean(line < lines)
        return inside & cutlass.Boolean(line < first + self.per_warp) if self.per_warp % self.size else inside

    def _edge(self, first: Any, lane: Any) -> list[tuple[Any, Any]]:
        """(line, byte) of the elements of a sector, of all of a warp's lines: of every step of the lane.

        Where a warp has fewer than its lanes take at once, some are not its own.
        """
        line, at = divided(lane * self.size, SECTOR)
        return [(first + i + line, at) for i in range(0, self.per_warp, self.size)]

    @property
    def _pitch(self) -> Any:
        """Bytes from one line to the next in global memory; Int64."""
        return cutlass.Int64(self.mD.stride[1 - self.axis]) * self.size

    def _store_element(self, wanted: Any, line: Any, at: Any, start: Any) -> None:
        """Store the element at byte `at` of the line that begins at `start`."""
        numeric = BITS[self.size]

        def store() -> None:
            source = elements_at(numeric, self.staged(line, at), shared=True)
            put_element(numeric, start + at, source[0])

        act_if(wanted, store)


def _store_word(address: Any, value: Any, wanted: Any) -> None:
    """Store a word at an aligned address of global memory, if `wanted`: without a branch."""
    cute.arch.inline_ptx(
        "@{$r2} st.global.b32 [{$r0}], {$r1};", read_only_args=[address, value, cutlass.Boolean(wanted)]
    )
