# SPDX-License-Identifier: Apache-2.0
"""The ends of a group along K: elements of its last stage that belong to the next group, or to nothing, are zeroed.

So are elements of its first stage that belong to the group before, where stages are aligned (`scale_places.aligned`).
The consumers do so when the stage is full, however it was loaded. WGMMA reads through the async proxy, hence the fence
before their barrier (PTX ISA, fence.proxy.async).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, scale_places
from cutegemm.kernels.load.operand_rows import Lines, divided
from cutegemm.kernels.mainloop.shared_storage import wait_named
from cutegemm.kernels.memory_views import BITS, REGISTER, WORD, put_element, word_at, zero_word
from cutegemm.kernels.schedule.work import Work


@dataclass(frozen=True)
class Ends:
    """Where a group begins and ends in its k tiles.

    Attributes:
        last: the number of its last k tile; rest: how many elements of that one do not lie beyond the group's end.
        before: how many elements of k tile 0 lie before the group; read only where stages are aligned.
    """

    last: Any
    rest: Any
    before: Any = None

    @staticmethod
    def of(work: Work) -> Ends:
        """Those of a work tile's group."""
        return Ends(work.k_tiles - 1, work.rest, work.before)

    def after(self, k: Any) -> Ends:
        """The same, numbered from the k-th k tile."""
        return Ends(self.last - k, self.rest)


@dataclass(frozen=True)
class RaggedTail:
    """The stages of all operands, and who zeroes: the consumers that share a tile."""

    config: KernelConfig
    lines: tuple[Lines, ...]
    role: Any

    @staticmethod
    def of(config: KernelConfig, loads: tuple, role: Any) -> RaggedTail | None:
        """The tail of a kernel whose groups lie along K; None for other kernels.

        Args:
            loads: of the frame.
            role: the thread's.
        """
        if config.grouped != "k":
            return None
        lines = tuple(Lines(x.item.operand, None, x.sX, x.item.box, None) for x in loads)
        return RaggedTail(config, lines, role)

    @cute.jit
    def trim(self, k: Any, stage: Any, ends: cutlass.Constexpr) -> None:
        """Zero what a full stage, the k-th k tile, has outside the group; all consumers of a tile call it."""
        depth = self.config.tile[2]
        if cutlass.const_expr(scale_places.aligned(self.config)):
            begin = cutlass.select_(cutlass.Boolean(k == 0), ends.before, cutlass.Int32(0))
            end = cutlass.select_(k == ends.last, ends.rest, cutlass.Int32(depth))
            if (begin > 0) | (end < depth):
                for lines in self.lines:
                    self._keep(lines, stage, begin, end)
                self._zeroed()
        elif k == ends.last:
            if ends.rest < depth:
                for lines in self.lines:
                    self._zero(lines, stage, ends.rest)
                self._zeroed()

    def _zeroed(self) -> None:
        """Let WGMMA read what all consumers of the tile have zeroed."""
        cute.arch.fence_proxy("async.shared", space="cta")
        if self.config.pingpong:
            self.role.barrier()
        else:
            wait_named(self.config, "rest")

    @property
    def _threads(self) -> tuple[Any, int]:
        """The number of this thread among those that share a tile, and how many these are."""
        return self.role.band * hw.WARPGROUP + self.role.thread, self.config.team * hw.WARPGROUP

    @cute.jit
    def _keep(self, lines: cutlass.Constexpr, stage: Any, begin: Any, end: Any) -> None:
        """Zero one operand outside [begin, end) along K; words along K are masked, as both may lie in one."""
        each, size, (first, threads) = WORD // lines.size, lines.size, self._threads
        words = lines.length // each
        for i in cutlass.range(first, lines.count * words, threads, unroll=1):
            line, word = divided(i, words)
            at = word * WORD
            if cutlass.const_expr(not lines.operand.k_major):
                if (line < begin) | (line >= end):
                    cute.autovec_copy(
                        zero_word(), word_at(lines.target(line, word * each, stage), shared=True)
                    )
            elif (at < begin * size) | (at + WORD > end * size):
                sX = word_at(lines.target(line, word * each, stage), shared=True)  # (4)
                rX = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
                cute.autovec_copy(sX, rX)
                for j in cutlass.range_constexpr(WORD // REGISTER):
                    place = at + j * REGISTER
                    rX[j] = rX[j] & _low(end * size - place) & ~_low(begin * size - place)
                cute.autovec_copy(rX, sX)

    @cute.jit
    def _zero(self, lines: cutlass.Constexpr, stage: Any, rest: Any) -> None:
        """Zero one operand in words of 16 bytes; in a word that straddles the end, only the elements beyond it."""
        each, bits, (first, threads) = WORD // lines.size, BITS[lines.size], self._threads
        words = lines.length // each
        if cutlass.const_expr(not lines.operand.k_major):
            first += rest * words  # a line for each element along K
        for i in cutlass.range(first, lines.count * words, threads, unroll=1):
            line, word = divided(i, words)
            place = lines.target(line, word * each, stage)
            if cutlass.const_expr(not lines.operand.k_major):
                cute.autovec_copy(zero_word(), word_at(place, shared=True))
            elif word * each >= rest:
                cute.autovec_copy(zero_word(), word_at(place, shared=True))
            elif word * each + each > rest:
                for j in cutlass.range_constexpr(1, each):
                    if word * each + j >= rest:
                        put_element(bits, place + j * lines.size, bits(0), shared=True)


def _low(count: Any) -> Any:
    """The lowest so many bytes of a register, all ones: none for fewer than one, all from four on."""
    kept = cutlass.max(cutlass.min(count, cutlass.Int32(REGISTER)), cutlass.Int32(0))
    return cutlass.Uint32((cutlass.Uint64(1) << cutlass.Uint64(kept * 8)) - cutlass.Uint64(1))
