# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile from rows at any address: cp.async copies aligned words, threads shift them into the stage.

A word is 16 bytes. `begin` copies the words of a tile beside its stage while earlier tiles are computed. `end` shifts
them into the stage once they have arrived (`kernels/load/unaligned_rows.py`). Rows, batches and halves of gated pairs
may begin at any address; where TMA can load the words, `BoxLoad` does.

No byte outside the matrix's span is read. Of a row's last word only the bytes before the row's end are copied and the
others are zero. The word that begins before the matrix's first element is assembled from single elements.

Synchronisation: lanes read words that other lanes of their warp copied, after each lane has waited for its own copies.
No warp reads another's rows, so `bar.warp.sync` is enough. The words of a stage are replaced once the stage is empty,
that is, after every thread has read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config.parts import Words
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load import unaligned_words as words
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.unaligned_rows import Shifting
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.memory_views import WORD, elements_at


@dataclass(frozen=True)
class ShiftLoad:
    """One operand shifted by the producer's threads."""

    lines: Lines
    shifting: Shifting

    @staticmethod
    def create(lines: Lines, stages: int, shared: Shared) -> ShiftLoad:
        """Take the words' shared memory."""
        held = Words(lines.count, lines.length, lines.size)
        return ShiftLoad(lines, Shifting.create(lines, held, stages, shared))

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Issue the copies of the words of the tile that begins at `corner`, beside an empty `stage`."""
        lines = self.lines
        first, start = lines.origin(corner)
        count, length = lines.extents()
        last, left = count - 1 - first, (length - start) * lines.size
        base, pitch = lines.source(first, start, corner.batch), lines.pitch
        low, high = lines.span()
        end = base + cutlass.Int64(lines.count - 1) * pitch + self.shifting.words.pitch
        # nearly every tile lies inside the matrix, and its words need no checks
        inside = cutlass.Boolean(left >= self.shifting.words.pitch) & cutlass.Boolean(end <= high)
        inside &= cutlass.Boolean((base & -WORD) >= low)
        if inside & cutlass.Boolean(last >= lines.count - 1):
            self._copy_all((base, pitch), None, stage)
        else:
            self._copy_all((base, pitch), (last, left, low), stage)

    @cute.jit
    def _copy_all(self, lines: Any, limits: Any, stage: Any) -> None:
        """Copy a thread's words.

        Args:
            lines: (address of the first row, bytes from row to row).
            limits: (the last row of the matrix, bytes from the first element to a row's end, the matrix's first
                byte); None is no limit.
        """
        shifting, (base, pitch) = self.shifting, lines
        chunks, classes = shifting.words.chunks + 1, shifting.words.classes
        for i in cutlass.range_constexpr(shifting.own):
            kind = shifting.warp * shifting.own + i
            place = base + cutlass.Int64(kind) * pitch
            for step in cutlass.range_constexpr(shifting.steps(chunks)):
                at, word = shifting.chunk(chunks, step)
                address = (place & -WORD) + cutlass.Int64(at) * (pitch * classes) + word * WORD
                used = None
                if cutlass.const_expr(limits is not None):
                    line = at * classes + kind
                    # the first word includes bytes before the row
                    wanted = limits[1] + cutlass.Int32(place & (WORD - 1)) - word * WORD
                    wanted = cutlass.max(cutlass.min(wanted, WORD), 0)
                    used = cutlass.select_(line <= limits[0], wanted, cutlass.Int32(0))
                    # an address inside the matrix even if nothing is read
                    address = cutlass.select_(used > 0, address, limits[2] & -WORD)
                target = shifting.word(kind, at, word, stage)
                there = shifting.there(kind, at, chunks, step)
                low = None if cutlass.const_expr(limits is None) else limits[2]
                if cutlass.const_expr(there is None):
                    self._copy(address, target, used, low)
                elif there:
                    self._copy(address, target, used, low)

    @cute.jit
    def _copy(self, address: Any, target: Any, used: Any, low: Any) -> None:
        """Copy the first `used` bytes of a word, all if that is None, from address `low` on."""
        if cutlass.const_expr(used is None):
            self._issue(address, target, used)
        elif cutlass.Boolean(address >= low) | cutlass.Boolean(used == 0):
            self._issue(address, target, used)
        else:
            self._first_word(address, target, used, low)

    @cute.jit
    def _first_word(self, address: Any, target: Any, used: Any, low: Any) -> None:
        """Assemble the word that holds the matrix's first element, from that element on."""
        numeric, size = NUMERIC[self.lines.operand.dtype], self.lines.size
        sX = elements_at(numeric, target, WORD // size, WORD, shared=True)
        for x in cutlass.range_constexpr(WORD // size):
            at = address + x * size
            if at >= low and x * size < used:
                sX[x] = elements_at(numeric, at)[0]
            else:
                sX[x] = numeric(0.0)

    def _issue(self, address: Any, target: Any, used: Any) -> None:
        source = cute.make_ptr(cutlass.Uint32, address, cute.AddressSpace.gmem, assumed_align=WORD)
        place = cute.make_ptr(cutlass.Uint32, target, cute.AddressSpace.smem, assumed_align=WORD)
        words.copy_async(source, place, WORD, used)

    @cute.jit
    def end(self, corner: cutlass.Constexpr, stage: Any, phase: Any, thread: Any):
        """Shift the words of the tile that begins at `corner` into `stage`; this thread's copies have arrived."""
        lines = self.lines
        place = cutlass.Int32(lines.source(*lines.origin(corner), corner.batch) & (WORD - 1))
        cute.arch.sync_warp()  # every lane's copies have arrived
        offsets = self.shifting.offsets(place, cutlass.Int32(lines.pitch & (WORD - 1)))
        self.shifting.shift(offsets, stage)
