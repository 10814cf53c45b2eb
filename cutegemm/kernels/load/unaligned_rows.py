# SPDX-License-Identifier: Apache-2.0
"""Shift a tile's unaligned rows from aligned words into the swizzled pipeline stage.

A row's chunk of 16 bytes spans two aligned words. A thread reads both, funnel-shifts them in registers and writes the
chunk. The shift is the same for all rows of a class (`config.Words`), and a warp works on one class at a time. So the
choice of registers is a branch of the whole warp, not a select in each lane.

Each warp loads the words of its own classes and waits for no other warp. Elements beyond a row's end or outside the
matrix are already zero in the words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config.parts import Words
from cutegemm.kernels.load import unaligned_words as words
from cutegemm.kernels.load.operand_rows import Lines, divided
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.memory_views import REGISTER, WORD

WARPS = hw.WARPGROUP // hw.WARP
# chunks that a thread reads before it writes the first: their latencies overlap
TOGETHER = 4


@dataclass(frozen=True)
class Shifting:
    """An operand's words in shared memory, and the shifts into its stages."""

    lines: Lines
    words: Words
    start: Any  # shared-memory address of the words, Int32
    stages: int
    # index of a producer thread
    warp: Any
    lane: Any

    @staticmethod
    def create(lines: Lines, words: Words, stages: int, shared: Shared) -> Shifting:
        """Take the words' shared memory (`StageItem.beside`); for a gated pair that of one half."""
        skipped = (lines.gate or 0) * words.bytes * stages
        held = shared.array(f"{lines.operand.role.upper()} words", cutlass.Uint8, skipped)
        thread, _, _ = cute.arch.thread_idx()
        # outside the loop over tiles: the compiler does not hoist a shuffle
        warp = cute.arch.make_warp_uniform(thread // hw.WARP)
        return Shifting(lines, words, held.toint(), stages, warp, thread % hw.WARP)

    @property
    def own(self) -> int:
        """Classes of a warp."""
        return self.words.classes // WARPS

    def steps(self, chunks: int) -> int:
        """Chunks of a class that a thread has, if a row has so many."""
        return -(-self.words.per_class * chunks // hw.WARP)

    def chunk(self, chunks: int, step: int) -> tuple[Any, Any]:
        """(row of the class, chunk of it) of a thread's step; neighbouring lanes have neighbouring chunks."""
        return divided(self.lane + step * hw.WARP, chunks)

    def there(self, kind: Any, at: Any, chunks: int, step: int) -> Any:
        """Whether row `at` of class `kind`, of a thread's step, belongs to the tile; None if every lane's does."""
        words = self.words
        if words.count % words.classes == 0 and (step + 1) * hw.WARP <= words.per_class * chunks:
            return None
        return at * words.classes + kind < words.count

    def word(self, kind: Any, at: Any, word: Any, stage: Any) -> Any:
        """The address of a word of row `at` of class `kind`; Int32."""
        words = self.words
        return self.start + stage * words.bytes + kind * words.block + (at * words.pitch + word * WORD)

    def offsets(self, place: Any, pitch: Any) -> tuple:
        """Bytes into a word at which the rows of each of the warp's classes begin.

        Args:
            place: the address of a tile's first element in global memory; only its byte within a word matters.
            pitch: bytes from row to row. Both are Int32.
        """
        kinds = (self.warp * self.own + i for i in range(self.own))
        return tuple(cute.arch.make_warp_uniform((place + kind * pitch) & (WORD - 1)) for kind in kinds)

    @cute.jit
    def shift(self, offsets: Any, stage: Any):
        """Shift the words of a tile whose rows have these `offsets` into `stage`."""
        steps = self.steps(self.words.chunks)
        # (class, step) of the thread's chunks
        chunks = [(i, step) for i in range(self.own) for step in range(steps)]
        for first in cutlass.range_constexpr(0, len(chunks), TOGETHER):
            self._shift(chunks[first : first + TOGETHER], offsets, stage)

    @cute.jit
    def _shift(self, chunks: cutlass.Constexpr, offsets: Any, stage: Any):
        """Read some chunks of a thread, then write them."""
        read = [self._read(i, step, stage) for i, step in chunks]
        for i in cutlass.range_constexpr(self.own):
            mine = [(step, words) for (x, step), words in zip(chunks, read, strict=True) if x == i]
            if cutlass.const_expr(len(mine) > 0):
                self._write_from(i, mine, (0, 2 * REGISTER, REGISTER), offsets[i], stage)

    @cute.jit
    def _write_from(
        self,
        which: cutlass.Constexpr,
        chunks: cutlass.Constexpr,
        bits: cutlass.Constexpr,
        offset: Any,
        stage: Any,
    ):
        """Write chunks whose first register is `bits[0]` plus what the other bits of `offset` add.

        Branches on one bit each: for a branch on all four, ptxas makes a jump table in constant memory, which is slow.
        """
        first, *left = bits
        if cutlass.const_expr(len(left) == 0):
            for step, words in chunks:
                self._write(which, step, words, first, offset, stage)
        elif (offset & left[0]) != 0:
            self._write_from(which, chunks, (first + left[0] // REGISTER, *left[1:]), offset, stage)
        else:
            self._write_from(which, chunks, (first, *left[1:]), offset, stage)

    @cute.jit
    def _read(self, which: cutlass.Constexpr, step: cutlass.Constexpr, stage: Any) -> cute.Tensor:
        """The two words of a chunk."""
        kind, (at, chunk) = self._kind(which), self._at(step)
        there = self.there(kind, at, self.words.chunks, step)
        rW = cute.make_rmem_tensor(2 * WORD // REGISTER, cutlass.Uint32)
        if cutlass.const_expr(there is None):
            self._words(self.word(kind, at, chunk, stage), rW)
        elif there:
            self._words(self.word(kind, at, chunk, stage), rW)
        return rW

    def _words(self, source: Any, rW: cute.Tensor) -> None:
        ptr = cute.make_ptr(cutlass.Uint32, source, cute.AddressSpace.smem, assumed_align=WORD)
        half = cute.make_layout(WORD // REGISTER)
        for x in range(2):
            words = cute.make_tensor(ptr + x * (WORD // REGISTER), half)
            cute.autovec_copy(words, cute.make_tensor(rW.iterator + x * (WORD // REGISTER), half))

    @cute.jit
    def _write(
        self,
        which: cutlass.Constexpr,
        step: cutlass.Constexpr,
        rW: cute.Tensor,
        first: cutlass.Constexpr,
        offset: Any,
        stage: Any,
    ):
        """Write the chunk that begins in register `first` of two words."""
        kind, (at, _) = self._kind(which), self._at(step)
        there = self.there(kind, at, self.words.chunks, step)
        if cutlass.const_expr(there is None):
            self._chunk(rW, first, offset, self._target(kind, step, stage))
        elif there:
            self._chunk(rW, first, offset, self._target(kind, step, stage))

    def _chunk(self, rW: cute.Tensor, first: int, offset: Any, target: Any) -> None:
        rD = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
        words.chunk(rW, first, offset, self.words.size, rD)
        out = cute.make_ptr(cutlass.Uint32, target, cute.AddressSpace.smem, assumed_align=WORD)
        cute.autovec_copy(rD, cute.make_tensor(out, cute.make_layout(WORD // REGISTER)))

    def _kind(self, which: int) -> Any:
        """The warp's `which`-th class."""
        return self.warp * self.own + which

    def _at(self, step: int) -> tuple[Any, Any]:
        """`chunk` as that of the first step plus a constant, if that is the same."""
        chunks = self.words.chunks
        if hw.WARP % chunks:
            return self.chunk(chunks, step)
        at, chunk = self.chunk(chunks, 0)
        return at + step * (hw.WARP // chunks), chunk

    def _target(self, kind: Any, step: int, stage: Any) -> Any:
        """The address in the stage of a thread's chunk."""
        words, each = self.words, WORD // self.words.size
        # rows so far apart have the same swizzle
        apart = hw.WARP // words.chunks * words.classes * self.lines.width * words.size
        constant = hw.WARP % words.chunks == 0 and apart % hw.SMEM_ALIGN == 0
        at, chunk = self.chunk(words.chunks, 0 if constant else step)
        target = self.lines.target(at * words.classes + kind, chunk * each, 0)
        return target + (step * apart if constant else 0) + stage * self.lines.stage_bytes
