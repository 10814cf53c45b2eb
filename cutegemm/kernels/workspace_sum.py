# SPDX-License-Identifier: Apache-2.0
"""A tile's sum over CTAs that each added up a part of K: in order, by the last of them to arrive.

Every CTA writes its accumulators to its own place in workspace (`sum_parts`) and then counts itself at the tile's
counter. Who finds all others counted reads every part, adds them in their order, whoever it is, and goes on with the
epilogue. Nobody waits for another CTA, so it does not matter which CTAs run at once. Counters are zero before a launch
and after it (`counters`). Of a cluster that has added up parts already every CTA that holds a slice of the tile does so
for its slice, with a counter of its own.

Order of memory (PTX ISA 9.0, memory consistency model): each thread's part, its fence at gpu scope, the consumers'
barrier, one thread's atomic add; in the last CTA that add, the barrier after it, each thread's fence, its reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.counters import count_up
from cutegemm.kernels.scheduler import Walk
from cutegemm.kernels.shared import Shared, wait_named
from cutegemm.kernels.sum_parts import SumParts
from cutegemm.kernels.work import OutputTile, Work


@dataclass(frozen=True)
class WorkspaceSum:
    """Parts and counters in workspace, and the count that a CTA's consumers share."""

    config: KernelConfig
    parts: SumParts
    share: Any  # which slice of a tile this CTA adds up
    counters: Any  # (COUNTS_KEPT, SLICES, tiles) Int32
    sCount: Any  # (1) Int32: CTAs that had counted themselves before this one

    @classmethod
    def create(
        cls, config: KernelConfig, walk: Walk, addresses: dict[str, Any], shared: Shared
    ) -> WorkspaceSum:
        """Views of the workspace."""
        ptr = cute.make_ptr(
            cutlass.Int32, addresses["split.counters"], cute.AddressSpace.gmem, assumed_align=4
        )
        sCount = shared.tensor("count", cutlass.Int32, cute.make_layout(config.counts_kept))
        parts = SumParts(config, walk, addresses["split.parts"])
        return cls(config, parts, walk.place.part, ptr, sCount)

    def init(self) -> None:
        """Nothing: the launch before has left the counters zero."""

    def tile(self, work: Work) -> OutputTile:
        """What this CTA stores of a work, if it does."""
        return work.slice(self.share, self.config.slices)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Leave this CTA's part of the sum in workspace; whether it is the last of the tile's parts."""
        last = cutlass.Boolean(True)
        if self.parts.count(work) > 1:
            last = self._leave(acc, role, work)
        return last

    @cute.jit
    def _leave(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        parts = self.parts
        parts.put(acc, role, work, self.share)
        return self._counted(role, work)

    @cute.jit
    def _counted(self, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        """Count this CTA, whose part is written; whether it is the last."""
        parts = self.parts
        cute.arch.fence_acq_rel_gpu()
        self._barrier()  # every consumer's part is written
        sCount, counter = self.sCount, self.counter(work)
        if role.slot == 0 and role.thread == 0:
            sCount[0] = count_up(counter, parts.count(work) - 1, "acq_rel")
        self._barrier()  # the count is known to every consumer
        last = cutlass.Boolean(sCount[0] == parts.count(work) - 1)
        cute.arch.fence_acq_rel_gpu()
        return last

    @cute.jit
    def receive(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any
    ) -> None:
        """The sum of all parts in their order; of one part, what `total` holds already."""
        if self.parts.count(work) > 1:
            self.parts.add(total, role, work, self.share)

    def counter(self, work: Work) -> Any:
        """The first of those of this CTA's slice of a work's tile."""
        slot = self.parts.walk.number(work) * self.config.slices + self.share
        return self.counters + slot * self.config.counts_kept

    def _barrier(self) -> None:
        """Wait for the CTA's other consumers."""
        wait_named(self.config, "count")
