# SPDX-License-Identifier: Apache-2.0
"""The end of a group along K: what a stage holds of the next group, or of memory behind it, is zeroed.

The consumers do it when the group's last stage is full: whatever loaded it, and whatever lies there. WGMMA reads by the
async proxy, hence the fence before they meet (PTX ISA, fence.proxy.async).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.load.operand_rows import Lines, divided
from cutegemm.kernels.load.unaligned_words import WORD
from cutegemm.kernels.mainloop.shared_storage import wait_named

BITS = {1: cutlass.Uint8, 2: cutlass.Uint16, 4: cutlass.Uint32}


@dataclass(frozen=True)
class RaggedTail:
    """The stages of all operands, and who zeroes: the consumers that share a tile."""

    config: KernelConfig
    lines: tuple[Lines, ...]
    role: Any

    @staticmethod
    def of(config: KernelConfig, loads: tuple, role: Any) -> RaggedTail | None:
        """Of a kernel whose groups lie along K; None of another.

        Args:
            loads: of the frame.
            role: the thread's.
        """
        if config.grouped != "k":
            return None
        lines = tuple(Lines(x.item.operand, None, x.sX, x.item.box, None) for x in loads)
        return RaggedTail(config, lines, role)

    @cute.jit
    def zero(self, stage: Any, rest: Any) -> None:
        """Zero what a full stage holds from the `rest`-th element along K on; all consumers of a tile call it."""
        if rest < self.config.tile[2]:
            for lines in self.lines:
                self._zero(lines, stage, rest)
            cute.arch.fence_proxy("async.shared", space="cta")
            if cutlass.const_expr(self.config.pingpong):
                self.role.barrier()
            else:
                wait_named(self.config, "rest")

    @cute.jit
    def _zero(self, lines: cutlass.Constexpr, stage: Any, rest: Any) -> None:
        """One operand's words of 16 bytes, a few each thread; of a word that the end cuts, the elements behind it."""
        each = WORD // lines.size
        words, threads = lines.length // each, self.config.team * hw.WARPGROUP
        first = self.role.band * hw.WARPGROUP + self.role.thread
        if cutlass.const_expr(not lines.operand.k_major):
            first += rest * words  # a line for each element along K
        for i in cutlass.range(first, lines.count * words, threads, unroll=1):
            line, word = divided(i, words)
            place = lines.target(line, word * each, stage)
            if cutlass.const_expr(not lines.operand.k_major):
                _put(place, cutlass.Uint32, WORD)
            elif word * each >= rest:
                _put(place, cutlass.Uint32, WORD)
            elif word * each + each > rest:
                for j in cutlass.range_constexpr(1, each):
                    if word * each + j >= rest:
                        _put(place + j * lines.size, BITS[lines.size], lines.size)


def _put(place: Any, numeric: Any, size: int) -> None:
    """Zero so many aligned bytes of shared memory."""
    count = size * 8 // numeric.width
    zeros = cute.make_rmem_tensor(count, numeric)
    zeros.fill(numeric(0))
    ptr = cute.make_ptr(numeric, place, cute.AddressSpace.smem, assumed_align=size)
    cute.autovec_copy(zeros, cute.make_tensor(ptr, cute.make_layout(count)))
