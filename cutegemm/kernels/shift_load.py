# SPDX-License-Identifier: Apache-2.0
"""Loading one operand's tile into a ring stage from lines at any address: aligned words, shifted on the way.

Lines of a tile begin anywhere. Their aligned 16-byte words come by cp.async into a buffer beside the stage, one
word more than a line has chunks, while earlier tiles are worked on (`begin`). Once they are there, a thread reads the
two words that hold a chunk of 16 bytes, shifts them together in registers and writes the chunk to the swizzled
stage (`end`), with zeros beyond the line's end and the matrix.

No byte outside the matrix's span is read: words that reach beyond its end are copied in part, and the one that
reaches before its first element is put together from elements.

Synchronisation: a warp's lanes read words that other lanes of it copied, after each has waited for its own copies; and
they have all read before the words are replaced. A warp's lines are its own, so this is `bar.warp.sync`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels import words
from cutegemm.kernels.lines import Lines
from cutegemm.kernels.operands import NUMERIC
from cutegemm.kernels.words import REGISTER, WORD


@dataclass(frozen=True)
class ShiftLoad:
    """One operand shifted by the producer's threads."""

    lines: Lines
    sW: Any  # (WORD / REGISTER, words of a line, lines, STAGE) Uint32

    @staticmethod
    def create(lines: Lines, stages: int, smem: Any) -> ShiftLoad:
        """Allocate the buffer of words (`OperandConfig.word_bytes`)."""
        per_line = lines.length * lines.size // WORD + 1
        layout = cute.make_layout((WORD // REGISTER, per_line, lines.count, stages))
        return ShiftLoad(lines, smem.allocate_tensor(cutlass.Uint32, layout, WORD))

    @cute.jit
    def begin(self, tile: Any, k_tile: Any, batch: Any, stage: Any, thread: Any):
        """Issue the copies of the words of tile (tile, k_tile, batch), beside an empty `stage`."""
        lines, chunks = self.lines, self.chunks
        first, start = lines.origin(tile, k_tile)
        low, high = lines.span()
        last, pitch = lines.extents()[0] - 1 - first, lines.pitch
        base = lines.source(first, start, batch)
        # a tile whose words all lie in the matrix's span, as nearly every one does, asks nothing of each
        end = base + cutlass.Int64(lines.count - 1) * pitch + (chunks + 1) * WORD
        whole = cutlass.Boolean((base & -WORD) >= low) & cutlass.Boolean(end <= high)
        if whole & cutlass.Boolean(last >= lines.count - 1):
            # as many words a line as it has chunks, and then the one beyond
            for pieces in cutlass.range_constexpr(2):
                for step in cutlass.range_constexpr(lines.steps((chunks, 1)[pieces])):
                    line, word, there = lines.piece(thread, (chunks, 1)[pieces], step)
                    address = (base + cutlass.Int64(line) * pitch & -WORD) + (word + pieces * chunks) * WORD
                    if cutlass.const_expr(there is None):
                        self._copy(address, line, word + pieces * chunks, stage)
                    elif there:
                        self._copy(address, line, word + pieces * chunks, stage)
        else:
            for step in cutlass.range(lines.steps(chunks + 1), unroll=1):
                line, word, there = lines.piece(thread, chunks + 1, step)
                place = base + cutlass.Int64(cutlass.min(line, last)) * pitch
                address = (place & -WORD) + word * WORD
                if cutlass.const_expr(there is None):
                    self._copy_some(address, (low, high), line, word, stage)
                elif there:
                    self._copy_some(address, (low, high), line, word, stage)

    @property
    def chunks(self) -> int:
        """Chunks of 16 bytes of a tile's line."""
        return self.lines.length * self.lines.size // WORD

    def _copy(self, address: Any, line: Any, word: Any, stage: Any, used: Any = None) -> None:
        source = cute.make_ptr(cutlass.Uint32, address, cute.AddressSpace.gmem, assumed_align=WORD)
        words.copy_async(source, self.sW[None, word, line, stage].iterator, WORD, used)

    @cute.jit
    def _copy_some(self, address: Any, span: Any, line: Any, word: Any, stage: Any) -> None:
        """Copy what lies in the matrix's span of a word; the rest of it is zero."""
        low, high = span
        if address >= low:
            left = cutlass.Int32(cutlass.max(cutlass.min(high - address, WORD), 0))
            # an address inside, also where nothing is read
            inside = cutlass.select_(left > 0, address, low & -WORD)
            self._copy(inside, line, word, stage, left)
        else:
            self._first_word(address, low, high, self.sW[None, word, line, stage])

    @cute.jit
    def _first_word(self, address: Any, low: Any, high: Any, target: Any) -> None:
        """The word that holds the matrix's first element, as far as it belongs to the matrix."""
        numeric = NUMERIC[self.lines.operand.dtype]
        tX = cute.recast_tensor(target, numeric)
        for x in cutlass.range_constexpr(WORD // self.lines.size):
            at = address + x * self.lines.size
            if at >= low and at < high:
                ptr = cute.make_ptr(numeric, at, cute.AddressSpace.gmem, assumed_align=self.lines.size)
                tX[x] = cute.make_tensor(ptr, cute.make_layout(1))[0]
            else:
                tX[x] = numeric(0.0)

    @cute.jit
    def end(self, tile: Any, k_tile: Any, batch: Any, stage: Any, thread: Any):
        """Shift the words of tile (tile, k_tile, batch) into `stage`; this thread's copies are there."""
        lines = self.lines
        each = WORD // lines.size  # elements
        first, start = lines.origin(tile, k_tile)
        count, length = lines.extents()
        # of an address only its place within a word matters
        base = cutlass.Int32(lines.source(first, start, batch) & (WORD - 1))
        pitch = cutlass.Int32(lines.pitch & (WORD - 1))
        last, left = count - 1 - first, length - start
        whole = cutlass.Boolean(last >= lines.count - 1) & cutlass.Boolean(left >= lines.length)
        cute.arch.sync_warp()  # every lane's copies are there
        for step in cutlass.range_constexpr(lines.steps(self.chunks)):
            line, chunk, there = lines.piece(thread, self.chunks, step)
            place = base + cutlass.min(line, last) * pitch
            inside = cutlass.select_(line <= last, left - chunk * each, cutlass.Int32(0))
            target = lines.target(line, chunk * each, stage)
            if cutlass.const_expr(there is None):
                self._shift(place, (line, chunk, stage), target, whole, inside)
            elif there:
                self._shift(place, (line, chunk, stage), target, whole, inside)
        cute.arch.sync_warp()  # every lane has read the words

    @cute.jit
    def _shift(self, place: Any, source: Any, target: Any, whole: Any, inside: Any) -> None:
        """Write one chunk, of whose elements only the first `inside` are the matrix's unless it is `whole`."""
        line, chunk, stage = source
        registers = WORD // REGISTER
        rW = cute.make_rmem_tensor((registers, 2), cutlass.Uint32)
        for x in cutlass.range_constexpr(2):
            held = self.sW[None, chunk + x, line, stage]
            cute.autovec_copy(
                cute.make_tensor(held.iterator.align(WORD), cute.make_layout(registers)), rW[None, x]
            )
        rD = cute.make_rmem_tensor(registers, cutlass.Uint32)
        words.align([rW[x] for x in range(2 * registers)], place, self.lines.size, rD)
        if not whole:
            words.clear(rD, inside, self.lines.size)
        out = cute.make_ptr(cutlass.Uint32, target, cute.AddressSpace.smem, assumed_align=WORD)
        cute.autovec_copy(rD, cute.make_tensor(out, cute.make_layout(registers)))
