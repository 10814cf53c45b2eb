# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core mainloop for few tiles: a pipeline that cp.async fills, K split among the warps of a CTA.

Synchronisation, with STAGE shared-memory tiles, for k tile t of a CTA:
    every thread waits for its own copies of tile t, then for the CTA's barrier. After it all of tile t may be
    read, and the stage of tile t - 1, which every thread has read, takes the copies of tile t + STAGE - 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import SimtConfig
from cutegemm.kernels.cuda_cores.simt_tile import GROUP, Owned, TileLoad


@dataclass(frozen=True)
class RingLoop:
    """The k loop over a pipeline."""

    config: SimtConfig
    # of A and B
    loads: tuple[TileLoad, TileLoad]
    # the thread's rows and columns
    owned: tuple[Owned, Owned]
    # which of the CTA's slices of every tile's K is this warp's
    slice_: Any

    @cute.jit
    def multiply(self, acc: cute.Tensor, part: cutlass.Constexpr) -> None:
        """acc += A tile @ B tile over the slice of `part`, (columns of the first tile, tiles), of K."""
        first, count = part
        stages, depth = self.config.stages, self.config.tile[2]
        if count > 0:
            for stage in cutlass.range_constexpr(stages - 1):
                if stage < count:
                    for load in self.loads:
                        load.issue(cutlass.Int32(stage), first if stage == 0 else None)
                cute.arch.cp_async_commit_group()
            per_slice = depth // self.config.slices // GROUP
            for t in cutlass.range(count, unroll=1):
                cute.arch.cp_async_wait_group(stages - 2)
                cute.arch.sync_threads()  # tile t has come to every thread, and every thread has read tile t - 1
                if t + (stages - 1) < count:
                    for load in self.loads:
                        load.issue((t + (stages - 1)) % stages)
                cute.arch.cp_async_commit_group()
                places = tuple(t % stages * load.shape.elements for load in self.loads)
                for i in cutlass.range(per_slice, unroll=self.config.unroll):
                    self._step(acc, places, (self.slice_ * per_slice + i) * GROUP)

    def _step(self, acc: cute.Tensor, places: tuple, k: Any) -> None:
        """acc += columns k to k + 3 of A's tile times those of B's.

        The fragment of the side of which a thread owns less is held, the other's comes four rows at a time.

        Args:
            acc: (THREAD_M * THREAD_N,), row by row.
            places: where the stages of A and of B start, elements.
        """
        loads, owned = self.loads, self.owned
        own = self.config.thread_tile
        held = 0 if own[0] < own[1] else 1
        moving = 1 - held
        kept = loads[held].fragment(places[held], k, owned[held])
        for group in range(own[moving] // GROUP):
            come = loads[moving].fragment(places[moving], k, owned[moving].group(group))
            for line in range(GROUP):
                for x in range(GROUP):
                    for y in range(own[held]):
                        i, j = (y, group * GROUP + x) if held == 0 else (group * GROUP + x, y)
                        at = i * own[1] + j
                        acc[at] = cute.math.fma(come[line][x], kept[line][y], acc[at])
