# SPDX-License-Identifier: Apache-2.0
"""From aligned words to a pipeline stage: a tile's lines, which begin anywhere, shifted into the swizzled stage.

A chunk of 16 bytes of a line lies in two of its words. A thread reads both, shifts them together in registers and
writes the chunk. How far is the same for all lines of a class (`config.Words`), and a warp works on one class at a
time: which registers to take is a branch of the whole warp, and no select of each lane.

Words of a warp's own classes are brought by that warp, which waits for nobody else. What lies beyond a line's end or
the matrix is zero in the words already.
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
from cutegemm.kernels.load.unaligned_words import REGISTER, WORD
from cutegemm.kernels.mainloop.shared_storage import Shared

WARPS = hw.WARPGROUP // hw.WARP
# chunks that a thread reads before it writes the first: their latencies overlap
TOGETHER = 4


@dataclass(frozen=True)
class Shifting:
    """An operand's words in shared memory, and the way into its stages."""

    lines: Lines
    words: Words
    start: Any  # shared-memory address of the words, Int32
    stages: int
    # of a thread of the producer
    warp: Any
    lane: Any

    @staticmethod
    def create(lines: Lines, words: Words, stages: int, shared: Shared) -> Shifting:
        """Take the words (`StageItem.beside`), of a gated pair those of one half."""
        skipped = (lines.gate or 0) * words.bytes * stages
        held = shared.array(f"{lines.operand.role.upper()} words", cutlass.Uint8, skipped)
        thread, _, _ = cute.arch.thread_idx()
        # once, not in the loop over tiles: a shuffle stays where it is written
        warp = cute.arch.make_warp_uniform(thread // hw.WARP)
        return Shifting(lines, words, held.toint(), stages, warp, thread % hw.WARP)

    @property
    def own(self) -> int:
        """Classes of a warp."""
        return self.words.classes // WARPS

    def steps(self, chunks: int) -> int:
        """Chunks that a thread has of a class, where a line falls into so many."""
        return -(-self.words.per_class * chunks // hw.WARP)

    def chunk(self, chunks: int, step: int) -> tuple[Any, Any]:
        """(line of the class, chunk of it) of a thread's step; neighbouring lanes have neighbouring chunks."""
        return divided(self.lane + step * hw.WARP, chunks)

    def there(self, kind: Any, at: Any, chunks: int) -> Any:
        """Whether line `at` of class `kind` is one of the tile's; None where all are."""
        words = self.words
        if words.count % words.classes == 0 and words.per_class * chunks % hw.WARP == 0:
            return None
        return at * words.classes + kind < words.count

    def word(self, kind: Any, at: Any, word: Any, stage: Any) -> Any:
        """The address of a word of line `at` of class `kind`; Int32."""
        words = self.words
        return self.start + stage * words.bytes + kind * words.block + (at * words.pitch + word * WORD)

    def offsets(self, place: Any, pitch: Any) -> tuple:
        """Bytes into a word at which the lines of each of the warp's classes begin.

        Args:
            place: the address of a tile's first element in global memory, of which only the byte within a word
                matters; pitch: bytes from line to line. Both Int32.
        """
        kinds = (self.warp * self.own + i for i in range(self.own))
        return tuple(cute.arch.make_warp_uniform((place + kind * pitch) & (WORD - 1)) for kind in kinds)

    @cute.jit
    def shift(self, offsets: Any, stage: Any):
        """Shift the words of a tile, whose lines have these `offsets`, into `stage`."""
        steps = self.steps(self.words.chunks)
        # (class, step) of the thread's chunks
        chunks = [(i, step) for i in range(self.own) for step in range(steps)]
        for first in cutlass.range_constexpr(0, len(chunks), TOGETHER):
            self._shift(chunks[first : first + TOGETHER], offsets, stage)

    @cute.jit
    def _shift(self, chunks: cutlass.Constexpr, offsets: Any, stage: Any):
        """Read some chunks of a thread, and then write them."""
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
        """Write chunks whose first register is `bits[0]`, plus those that the other bits of `offset` say.

        A branch for each bit: from one on all four ptxas makes a jump through a table, which waits for constant memory.
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
        there = self.there(kind, at, self.words.chunks)
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
        there = self.there(kind, at, self.words.chunks)
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
        """`chunk`, of chunks, as the first step's and a constant where that is the same."""
        chunks = self.words.chunks
        if hw.WARP % chunks:
            return self.chunk(chunks, step)
        at, chunk = self.chunk(chunks, 0)
        return at + step * (hw.WARP // chunks), chunk

    def _target(self, kind: Any, step: int, stage: Any) -> Any:
        """The address in the stage of a thread's chunk."""
        words, each = self.words, WORD // self.words.size
        # of lines so far apart the swizzle is the same
        apart = hw.WARP // words.chunks * words.classes * self.lines.width * words.size
        constant = hw.WARP % words.chunks == 0 and apart % hw.SMEM_ALIGN == 0
        at, chunk = self.chunk(words.chunks, 0 if constant else step)
        target = self.lines.target(at * words.classes + kind, chunk * each, 0)
        return target + (step * apart if constant else 0) + stage * self.lines.stage_bytes
