# SPDX-License-Identifier: Apache-2.0
"""Partial sums of one output tile, held by several slices of a CTA and several CTAs of a cluster, into one.

Every thread writes its accumulators to its CTA's shared memory (over the pipeline, which nobody reads any more);
the slices' are added in place; then patches of four by four accumulators a lane are distributed over the warps
of the cluster, which add the CTAs' sums in order of rank through distributed shared memory. The order is fixed,
so results are equal bit for bit from run to run; there is no workspace and no counter.

Synchronisation:
    before writing   CTA barrier: every thread has read all of the pipeline.
    before adding    CTA barrier: the slices' accumulators are written.
    before reading   cluster barrier (CTA barrier without a cluster): every CTA's sums are written.
    before leaving   cluster barrier: nobody reads this CTA's shared memory any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import SimtConfig
from cutegemm.kernels.cuda_cores.simt_tile import GROUP, four, read


@dataclass(frozen=True)
class SharedSums:
    """The sums of one tile: (SLICE, GROUPS, 4, OWNERS) vectors of four fp32 in the shared memory of each CTA.

    A group is four rows (two, `SimtTile.group`) by four columns of what one thread owns.
    """

    config: SimtConfig
    # of this CTA, fp32
    sX: Any
    # of this CTA in its cluster
    rank: Any

    @property
    def vectors(self) -> int:
        """Vectors of one slice."""
        return self.config.tile[0] * self.config.tile[1] // GROUP

    @property
    def patches(self) -> int:
        """Patches of a tile that one warp finishes at once."""
        rows, columns = self.config.finished
        return self.config.tile[0] * self.config.tile[1] // (rows * columns * hw.WARP)

    @property
    def turns(self) -> int:
        """Patches of the warp that has most."""
        warps = self.config.split * (self.config.threads // hw.WARP)
        return (self.patches + warps - 1) // warps

    def patch_of(self, turn: int, warp: Any) -> Any:
        """The number of a warp's turn-th patch; there is none if it is not below `patches`."""
        warps = self.config.threads // hw.WARP
        return self.rank + self.config.split * (warp + warps * turn)

    def collect(self, acc: cute.Tensor, thread: Any) -> None:
        """Write this thread's accumulators, (THREAD_M * THREAD_N,) row by row, and add the CTA's slices."""
        config = self.config
        across = config.thread_tile[1] // GROUP
        owner, slice_ = thread % config.owners, thread // config.owners
        cute.arch.sync_threads()  # every thread has read all of the pipeline
        for i in range(config.thread_tile[0]):
            for j in range(across):
                line = (i // config.group * across + j) * config.group + i % config.group
                values = [acc[i * config.thread_tile[1] + j * GROUP + x] for x in range(GROUP)]
                self._store(slice_ * self.vectors + line * config.owners + owner, values)
        if config.slices > 1:
            cute.arch.sync_threads()  # the slices' accumulators are written
            for i in range(self.vectors // config.threads):
                at = thread + i * config.threads
                total = _read(self.sX, at)
                for other in range(1, config.slices):
                    more = _read(self.sX, other * self.vectors + at)
                    total = [x + y for x, y in zip(total, more, strict=True)]
                self._store(at, total)
        self._barrier()  # every CTA's sums are written

    def gather(self, acc: cute.Tensor, group: Any, owner: Any) -> None:
        """acc = the whole sums of patch `group` of thread `owner`, (GROUP * 4 * GATES,) row by row."""
        config = self.config
        totals: list = []
        for rank in range(config.split):
            source = self.sX if config.split == 1 else cute.arch.map_dsmem_ptr(self.sX, cutlass.Int32(rank))
            part = []
            for x in range(config.group):
                for gate in range(config.gates):
                    line = (group * config.gates + gate) * config.group + x
                    part += _read(source, line * config.owners + owner)
            totals = part if rank == 0 else [x + y for x, y in zip(totals, part, strict=True)]
        for x, value in enumerate(totals):
            acc[x] = value

    def leave(self) -> None:
        """Wait until nobody reads this CTA's shared memory any more."""
        if self.config.split > 1:
            self._barrier()

    def _barrier(self) -> None:
        if self.config.split > 1:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def _store(self, at: Any, values: list[Any]) -> None:
        rX = cute.make_rmem_tensor(GROUP, cutlass.Float32)
        for x, value in enumerate(values):
            rX[x] = value
        cute.autovec_copy(rX, four(self.sX, at * GROUP))


def _read(source: Any, at: Any) -> list[Any]:
    """The at-th vector of four."""
    return read(four(source, at * GROUP))
