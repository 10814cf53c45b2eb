# SPDX-License-Identifier: Apache-2.0
"""The end of a group along K: elements of its last stage that belong to the next group, or to nothing, are zeroed.

The consumers do so when the stage is full, however it was loaded. WGMMA reads through the async proxy, hence the fence
before their barrier (PTX ISA, fence.proxy.async).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.load.operand_rows import Lines, divided
from cutegemm.kernels.mainloop.shared_storage import wait_named
from cutegemm.kernels.memory_views import BITS, WORD, put_element, word_at, zero_word


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
    def zero(self, stage: Any, rest: Any) -> None:
        """Zero a full stage from element `rest` along K on; all consumers of a tile call it."""
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
        """Zero one operand in words of 16 bytes; in a word that straddles the end, only the elements beyond it."""
        each, bits = WORD // lines.size, BITS[lines.size]
        words, threads = lines.length // each, self.config.team * hw.WARPGROUP
        first = self.role.band * hw.WARPGROUP + self.role.thread
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
