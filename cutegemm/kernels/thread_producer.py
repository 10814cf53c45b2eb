# SPDX-License-Identifier: Apache-2.0
"""A producer whose threads load: they begin a tile's loads some tiles before they end them.

Two positions move over the same works: one begins tiles in empty stages, and, `KernelConfig.ahead` tiles behind it,
one ends them: waits for this thread's copies of the tile, finishes what is left to do, and arrives on the stage's full
barrier. Each begun tile is one group of cp.async, empty where nothing is copied so.

The threads' stores and copies are made visible to WGMMA, which reads by the async proxy, before they arrive (PTX ISA,
fence.proxy.async).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.frame import Frame
from cutegemm.kernels.ring import advance
from cutegemm.kernels.work import Work


@dataclass(frozen=True)
class ThreadProducer:
    """The producer's way over a CTA's works."""

    frame: Frame
    thread: Any

    @cute.jit
    def run(self) -> Any:
        """Fill the ring, work after work; the position of the stage after the last."""
        frame, ahead = self.frame, self.frame.config.ahead
        begun, ended = self._first(), self._first()
        lead = cutlass.Int32(0)
        while ended[2] > 0:
            begun = self._begin(begun)
            lead += 1
            if lead > ahead:
                if cutlass.const_expr(frame.config.copies_async):
                    cute.arch.cp_async_wait_group(ahead)
                frame.end(self._work(ended), 0, ended[3], self.thread)
                ended = self._next(ended)
                lead = cutlass.Int32(ahead)
        return ended[3]

    @cute.jit
    def _begin(self, begun: Any) -> Any:
        """Begin the next tile, if there is one left; where the one after it is."""
        frame = self.frame
        if begun[2] > 0:
            frame.ring.wait_empty(*begun[3])  # until the consumers released the stage
            frame.begin(self._work(begun), 0, begun[3][0], self.thread)
            begun = self._next(begun)
        if cutlass.const_expr(frame.config.copies_async):
            cute.arch.cp_async_commit_group()
        return begun

    @cute.jit
    def _first(self) -> Any:
        """Where the first tile is: (walk's state, (m, n, l, k tile), k tiles left of the work, position).

        Without a work none is left.
        """
        walk = self.frame.walk
        state, zero = walk.start(), cutlass.Int32(0)
        at, left = (zero, zero, zero, zero), zero
        if walk.more(state):
            work = walk.work(state)
            at, left = (work.m, work.n, work.l, work.first), work.k_tiles
        return state, at, left, (zero, zero)

    @cute.jit
    def _next(self, where: Any) -> Any:
        """Where the tile after one is."""
        walk = self.frame.walk
        state, (m, n, batch, k_tile), left, position = where
        at, left = (m, n, batch, k_tile + 1), left - 1
        if left == 0:
            state = walk.next(state)
            if walk.more(state):
                work = walk.work(state)
                at, left = (work.m, work.n, work.l, work.first), work.k_tiles
        return state, at, left, advance(*position, self.frame.config.stages)

    def _work(self, where: Any) -> Work:
        """What loads ask of the work that a tile belongs to."""
        m, n, batch, k_tile = where[1]
        return self.frame.walk.share((m, n, batch), k_tile, where[2], 0, 1)
