# SPDX-License-Identifier: Apache-2.0
"""The largest magnitudes of rows, columns and all of a CTA's elements, from the bits of what threads hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import QuantizeConfig
from cutegemm.config.helpers import CHUNK, TILE
from cutegemm.kernels.eight_bits.scales import INFINITE, across, halves, key, number, top
from cutegemm.kernels.epilogue.element_functions import where
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.memory_views import store_if

ACROSS = TILE // CHUNK  # threads of a row of a tile
WARPS = 8  # of a CTA that transposes a tile
LANES = tuple(ACROSS >> i for i in range(1, 5))  # bits of the numbers of a row's lanes


@dataclass(frozen=True)
class Maxima:
    """The maxima of a `QuantizeConfig`'s kernel, whose threads hold `steps` chunks of neighbours."""

    config: QuantizeConfig

    @property
    def steps(self) -> int:
        """Chunks of a thread."""
        return self.config.chunks

    @property
    def numeric(self) -> Any:
        """The elements' type."""
        return NUMERIC[self.config.source]

    @property
    def width(self) -> int:
        """Bits of an element."""
        return self.config.source.bits

    @property
    def each(self) -> int:
        """Keys of a word."""
        return 32 // self.width

    @cute.jit
    def found(self, rX: cute.Tensor, rows: cutlass.Constexpr = False, columns: cutlass.Constexpr = False):
        """A thread's largest keys: of its rows, two in a word where keys have 16 bits; of its columns; of neither: one.

        What is not finite does not count for fp8.
        """
        count = (self.steps if rows else 0) // self.each + (CHUNK if columns else 0) // self.each
        rI = cute.recast_tensor(rX, cutlass.Uint32)  # (CHUNK's words, STEP)
        rF = cute.make_rmem_tensor(max(count, 1), cutlass.Uint32)
        self._fold(rI, rF, rows, columns, False)
        if cutlass.const_expr(not self.config.dtype.whole):
            most = halves(top([rF[i] for i in range(cute.size(rF))], self.width), self.width)
            if (most >> (32 - self.width)) >= cutlass.Uint32(INFINITE[self.numeric]):
                self._fold(rI, rF, rows, columns, True)
        return rF

    def _fold(self, rI: cute.Tensor, rF: cute.Tensor, rows: bool, columns: bool, finite: bool) -> None:
        """The largest of a thread's keys, as `_found` gives them."""
        words, width = CHUNK // self.each, self.width
        word = lambda j, i: key(rI[j, i], self.numeric, finite)
        line = lambda i: top([word(j, i) for j in range(words)], width)
        found = []
        if rows:
            found = [halves(line(i), width) for i in range(self.steps)]
            if width == 16:
                pairs = zip(found[::2], found[1::2])
                found = [x & cutlass.Uint32(0xFFFF) | y & cutlass.Uint32(0xFFFF_0000) for x, y in pairs]
        if columns:
            found += [top([word(j, i) for i in range(self.steps)], width) for j in range(words)]
        if not found:
            found = [halves(top([line(i) for i in range(self.steps)], width), width)]
        for i, most in enumerate(found):
            rF[i] = most

    def _number(self, key: Any) -> Any:
        return number(key, self.numeric, self.config.dtype)

    def _key(self, word: Any, half: Any) -> Any:
        """A key of a word: of two in it one."""
        return word if self.width == 32 else word >> cutlass.Uint32(half * 16) & cutlass.Uint32(0xFFFF)

    def row_most(self, rF: cute.Tensor, lane: Any) -> Any:
        """The largest magnitude of the row whose number among the thread's is the lane's."""
        count = self.steps // self.each
        found = [across(rF[i], self.width, *LANES) for i in range(count)]
        word = found[0]
        for i, other in enumerate(found[1:], 1):
            word = cutlass.Uint32(where(lane // self.each == i, other, word))
        return self._number(self._key(word, lane % self.each))

    def column_most(self, rF: cute.Tensor, sC: cute.Tensor) -> Any:
        """The largest magnitude of the thread's column of 128."""
        thread, _, _ = cute.arch.thread_idx()
        first = self.steps // self.each if self.config.plain else 0
        for j in range(CHUNK // self.each):
            word = across(rF[first + j], self.width, ACROSS)
            for half in range(self.each):
                self._note(sC, thread % ACROSS * CHUNK + j * self.each + half, self._key(word, half))
        cute.arch.sync_threads()  # every warp's maxima are there
        column = thread % TILE
        return self._number(top([sC[column, warp] for warp in range(WARPS)], 32))

    @cute.jit
    def _note(self, sC: cute.Tensor, column: Any, key: Any) -> None:
        """Write a warp's maximum of a column."""
        thread, _, _ = cute.arch.thread_idx()
        if thread % hw.WARP < ACROSS:
            sC[column, thread // hw.WARP] = key

    def whole(self, rX: cute.Tensor, sM: cute.Tensor) -> Any:
        """The largest magnitude of all threads of the CTA."""
        most = across(self.found(rX)[0], self.width, *(hw.WARP >> i for i in range(1, 6)))
        thread, _, _ = cute.arch.thread_idx()
        store_if(thread % hw.WARP == 0, sM, thread // hw.WARP, self._key(most, 0))
        cute.arch.sync_threads()
        return self._number(top([sM[warp] for warp in range(self.config.threads // hw.WARP)], 32))
