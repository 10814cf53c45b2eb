# SPDX-License-Identifier: Apache-2.0
"""Split-K through workspace: the last CTA of a tile to arrive reduces the partial sums, in order.

Every CTA writes its accumulators to workspace (`partial_sums`) and then increments the tile's counter. The CTA that
finds all others counted reads every partial sum, adds them in split order and runs the epilogue. No CTA waits for
another, so it does not matter which CTAs run at once. Counters are zero on entry and reset on exit. Where a cluster
has reduced its own splits first, each CTA that holds a slice of the tile does this for its slice, with its own counter.

Order of memory (PTX ISA 9.0, memory consistency model): each thread's partial sum, its fence at gpu scope, the
consumers' barrier, one thread's atomic add; in the last CTA that add, the barrier after it, each thread's fence, its
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.mainloop.shared_storage import Shared, wait_named
from cutegemm.kernels.memory_views import elements_at
from cutegemm.kernels.schedule.launch_counters import count_up
from cutegemm.kernels.schedule.tile_scheduler import TileScheduler
from cutegemm.kernels.schedule.work import OutputTile, Work
from cutegemm.kernels.split_k.partial_sums import PartialSums


@dataclass(frozen=True)
class WorkspaceSum:
    """Parts and counters in workspace, and the count that a CTA's consumers share."""

    config: KernelConfig
    partials: PartialSums
    share: Any  # which slice of a tile this CTA adds up
    counters: Any  # (COUNTS_KEPT, SLICES, tiles) Int32
    sCount: Any  # (1) Int32: CTAs that had counted themselves before this one

    @classmethod
    def create(
        cls, config: KernelConfig, scheduler: TileScheduler, addresses: dict[str, Any], shared: Shared
    ) -> WorkspaceSum:
        """Views of the workspace."""
        counters = elements_at(cutlass.Int32, addresses["split.counters"]).iterator
        sCount = shared.tensor("count", cutlass.Int32, cute.make_layout(config.counts_kept))
        partials = PartialSums(config, scheduler, addresses["split.partials"])
        return cls(config, partials, scheduler.place.split, counters, sCount)

    def init(self) -> None:
        """Nothing: the launch before has left the counters zero."""

    def tile(self, work: Work) -> OutputTile:
        """What this CTA stores of a work tile, if it does."""
        return work.slice(self.share, self.config.slices)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Write this CTA's partial sum to workspace; whether this CTA is the tile's last."""
        last = cutlass.Boolean(True)
        if self.partials.count(work) > 1:
            last = self._leave(acc, role, work)
        return last

    @cute.jit
    def _leave(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        partials = self.partials
        partials.put(acc, role, work, self.share)
        return self._counted(role, work)

    @cute.jit
    def _counted(self, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        """Count this CTA, whose partial sum is written; whether it is the last."""
        partials = self.partials
        cute.arch.fence_acq_rel_gpu()
        self._barrier()  # every consumer's partial sum is written
        sCount, counter = self.sCount, self.counter(work)
        if role.slot == 0 and role.thread == 0:
            sCount[0] = count_up(counter, partials.count(work) - 1, "acq_rel")
        self._barrier()  # the count is known to every consumer
        last = cutlass.Boolean(sCount[0] == partials.count(work) - 1)
        cute.arch.fence_acq_rel_gpu()
        return last

    @cute.jit
    def receive(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any
    ) -> None:
        """The sum of all partial sums in their order; of one partial sum, what `total` holds already."""
        if self.partials.count(work) > 1:
            self.partials.add(total, role, work, self.share)

    def counter(self, work: Work) -> Any:
        """The first of those of this CTA's slice of a work tile's tile of D."""
        slot = self.partials.scheduler.number(work) * self.config.slices + self.share
        return self.counters + slot * self.config.counts_kept

    def _barrier(self) -> None:
        """Wait for the CTA's other consumers."""
        wait_named(self.config, "count")
