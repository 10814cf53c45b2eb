# SPDX-License-Identifier: Apache-2.0
"""A staged piece's lines to global memory, where they begin at any element.

A line is what a piece holds of a row of a row-major output, or of a column of a column-major one. Its elements go out
in aligned words of four bytes, neighbouring words by neighbouring lanes, so that an access of a warp is 128 bytes in a
row. Where a line begins within a word, each lane shifts its word and the next lane's together; how far is the same all
along a line, and differs from line to line. What lies before the first whole word and after the last one goes out
element by element, of all of a warp's lines at once.

A warp stores the lines of its own number, and reads them all from shared memory before it stores the first. No lane
branches: stores outside the output are predicated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import OutputConfig
from cutegemm.kernels.lines import index_in, swizzled
from cutegemm.kernels.words import REGISTER
from cutegemm.layouts.sm90 import SWIZZLE_SPANS

WARPS = hw.WARPGROUP // hw.WARP


@dataclass(frozen=True)
class PieceLines:
    """The lines of one piece.

    Attributes:
        matrix: the output, of unit stride along M or N.
        swizzle: of the piece in shared memory.
        shape: (WGMMA_M, EPI_N), of the piece.
        mD: (m, n, l) in global memory.
        start: where the piece begins in shared memory, Int32.
        extents: (m, n) of the output.
        origin: (m, n, l) of the piece's first element.
    """

    matrix: OutputConfig
    swizzle: str
    shape: tuple[int, int]
    mD: Any
    start: Any
    extents: tuple[Any, Any]
    origin: tuple[Any, Any, Any]

    @property
    def axis(self) -> int:
        """Along which lines run: 0 is M, 1 is N."""
        return 0 if self.matrix.major == "m" else 1

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.matrix.dtype.bytes

    @property
    def each(self) -> int:
        """Elements of a word."""
        return REGISTER // self.size

    @property
    def words(self) -> int:
        """Words of a line."""
        return self.shape[self.axis] // self.each

    @property
    def per_warp(self) -> int:
        """Lines of a warp."""
        return self.shape[1 - self.axis] // WARPS

    @property
    def lanes(self) -> int:
        """Lanes side by side along a line."""
        return min(hw.WARP, self.words)

    @property
    def left(self) -> tuple[Any, Any]:
        """(lines, elements of a line) of the output from the piece's first element on; none where not positive."""
        across, along = (self.extents[x] - self.origin[x] for x in (1 - self.axis, self.axis))
        return across, cutlass.min(along, self.shape[self.axis])

    def address(self, line: Any) -> Any:
        """Where a line begins in global memory; Int64."""
        m, n = (0, line) if self.axis == 0 else (line, 0)
        index = cute.crd2idx((self.origin[0] + m, self.origin[1] + n, self.origin[2]), self.mD.layout)
        return self.mD.iterator.toint() + cutlass.Int64(index) * self.size

    @property
    def pitch(self) -> Any:
        """Bytes from one line to the next in global memory; Int64."""
        return cutlass.Int64(self.mD.stride[1 - self.axis]) * self.size

    def store(self, thread: Any) -> None:
        """Store the lines that are the thread's warp's."""
        first = thread // hw.WARP * self.per_warp
        self._whole_words(first, thread % hw.WARP)
        if self.each > 1:
            self._edges(first, thread % hw.WARP)

    def _whole_words(self, first: Any, lane: Any) -> None:
        """Store the words that lie in the lines as a whole."""
        lines, length = self.left
        # lines that a warp stores at once
        together = hw.WARP // self.lanes
        line, word = first + lane // self.lanes, lane % self.lanes
        steps = range(0, self.per_warp, together)
        across = range(0, self.words, self.lanes)
        found = [
            [self._staged(line + i, (word + j) * self.each, cutlass.Uint32) for j in across] for i in steps
        ]
        # of the lane's word: one byte before the next, so that rounding down gives the first that starts in the line
        cursor = self.address(line) + word * REGISTER + (REGISTER - 1)
        # bytes of the line behind the lane's word, if that starts where the line does
        room = length * self.size - (word + 1) * REGISTER
        for i, of in zip(steps, found, strict=True):
            skipped = ~cutlass.Int32(cursor)
            for j, value in zip(across, of, strict=True):
                if self.each > 1:
                    value = cute.arch.shf(value, cute.arch.shuffle_sync_down(value, 1), skipped << 3, "r")
                wanted = cutlass.Boolean(line + i < lines)
                wanted &= cutlass.Boolean((skipped & (REGISTER - 1)) <= room - j * REGISTER)
                _store_word((cursor & -REGISTER) + j * REGISTER, value, wanted)
            # written out, lest the compiler work every line's address out anew
            cursor = cute.arch.inline_ptx(
                "add.s64 {$w0}, {$r0}, {$r1};",
                write_only_types=[cutlass.Int64],
                read_only_args=[cursor, together * self.pitch],
            )

    def _staged(self, line: Any, element: Any, numeric: Any) -> Any:
        """What lies in shared memory where an element does."""
        index = index_in(line, element, self.shape[1 - self.axis], SWIZZLE_SPANS[self.swizzle] // self.size)
        place = swizzled(self.start + index * self.size, self.swizzle)
        ptr = cute.make_ptr(numeric, place, cute.AddressSpace.smem, assumed_align=numeric.width // 8)
        return cute.make_tensor(ptr, 1)[0]

    def _edges(self, first: Any, lane: Any) -> None:
        """Store the elements before the first whole word of each line, and behind the last."""
        lines, length = self.left
        most = self.each - 1
        count = self.per_warp * 2 * most
        for i in range(0, count, hw.WARP):
            number = i + lane
            line, edge = first + number % self.per_warp, number // self.per_warp
            start = self.address(line)
            before = (-cutlass.Int32(start) & (REGISTER - 1)) // self.size
            # of the first or, counted from the end, of the last
            at = edge % most
            is_first = edge < most
            behind = cutlass.max(length - before, 0) & most
            element = cutlass.select_(is_first, at, length - 1 - at)
            wanted = cutlass.Boolean(at < cutlass.select_(is_first, cutlass.min(before, length), behind))
            wanted &= cutlass.Boolean(line < lines)
            if count % hw.WARP:
                wanted &= cutlass.Boolean(number < count)
            self._store_element(wanted, line, element, start)

    @cute.jit
    def _store_element(self, wanted: Any, line: Any, element: Any, start: Any) -> None:
        """Store an element of the line that begins at `start`."""
        if wanted:
            numeric, address = self.mD.element_type, start + element * self.size
            ptr = cute.make_ptr(numeric, address, cute.AddressSpace.gmem, assumed_align=self.size)
            cute.make_tensor(ptr, 1)[0] = self._staged(line, element, numeric)


def _store_word(address: Any, value: Any, wanted: Any) -> None:
    """Store a word at an aligned address of global memory, if `wanted`: without a branch."""
    cute.arch.inline_ptx(
        "@{$r2} st.global.b32 [{$r0}], {$r1};", read_only_args=[address, value, cutlass.Boolean(wanted)]
    )
