# SPDX-License-Identifier: Apache-2.0
"""A tile's sum over CTAs that each added up a part of K: in order, by the last of them to arrive.

Every CTA writes its accumulators, still in fragment order, to its own place in workspace and then counts itself at
the tile's counter. Who finds all others counted reads every part, adds them in their order, whoever it is, so that
a result has the same bits on every run, and goes on with the epilogue. Nobody waits for another CTA, so it does not
matter which CTAs run at once. A launch before this one has zeroed the counters (`clear`).

Order of memory (PTX ISA 9.0, memory consistency model): each thread's part, its fence at gpu scope, the consumers'
barrier, one thread's atomic add; in the last CTA that add, the barrier after it, each thread's fence, its reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.pieces import FIRST_BARRIER, Role
from cutegemm.kernels.scheduler import Walk, Work

VECTOR = 4  # fp32 numbers of one access


@dataclass(frozen=True)
class WorkspaceSum:
    """Parts and counters in workspace, and the count that a CTA's consumers share."""

    config: KernelConfig
    walk: Walk
    parts: Any  # address of (VECTOR, WARPGROUP, vectors, CONSUMERS, PARTS, tiles) fp32
    counters: Any  # (tiles) Int32
    sCount: Any  # (1) Int32: CTAs that had counted themselves before this one

    @staticmethod
    def create(config: KernelConfig, walk: Walk, addresses: dict[str, Any], smem: Any) -> WorkspaceSum:
        """Views of the workspace."""
        ptr = cute.make_ptr(
            cutlass.Int32, addresses["split.counters"], cute.AddressSpace.gmem, assumed_align=4
        )
        sCount = smem.allocate_tensor(cutlass.Int32, cute.make_layout(1), 16)
        return WorkspaceSum(config, walk, addresses["split.parts"], ptr, sCount)

    def init(self) -> None:
        """Nothing: the launch before has zeroed the counters."""

    def tile(self, work: Work) -> tuple[Any, Any, Any]:
        """(m, n, l) of what this CTA stores of a work, if it does."""
        return work.tile

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Leave this CTA's part of the sum in workspace; whether it is the last of the tile's parts."""
        last = cutlass.Boolean(True)
        if work.parts > 1:
            last = self._leave(acc, role, work)
        return last

    @cute.jit
    def _leave(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> Any:
        config = self.config
        mPart = self._part(work, work.part)
        for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
            source = cute.make_tensor(acc.iterator + vector * VECTOR, cute.make_layout(VECTOR))
            cute.autovec_copy(source, self._vector(mPart, role, vector))
        cute.arch.fence_acq_rel_gpu()
        self._barrier()  # every consumer's part is written
        sCount, counter = self.sCount, self.counters + self.walk.number(work)
        if role.slot == 0 and role.thread == 0:
            one = cutlass.Int32(1)
            sCount[0] = cute.arch.atomic_add(counter.llvm_ptr, one, sem="acq_rel", scope="gpu")
        self._barrier()  # the count is known to every consumer
        last = cutlass.Boolean(sCount[0] == work.parts - 1)
        cute.arch.fence_acq_rel_gpu()
        return last

    @cute.jit
    def receive(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any
    ) -> None:
        """The sum of all parts in their order; of one part, what `total` holds already."""
        if work.parts > 1:
            self._take(total, role, work)

    @cute.jit
    def _take(self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr) -> None:
        vectors = self.config.slice_values // VECTOR
        total.fill(0.0)
        part_sum = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        for part in cutlass.range(work.parts, unroll=1):
            mPart = self._part(work, part)
            for vector in cutlass.range_constexpr(vectors):
                cute.autovec_copy(self._vector(mPart, role, vector), part_sum)
                for i in cutlass.range_constexpr(VECTOR):
                    total[vector * VECTOR + i] = total[vector * VECTOR + i] + part_sum[i]

    def _part(self, work: Work, part: Any) -> Any:
        """One part of a work's tile, (VECTOR, WARPGROUP, vectors, CONSUMERS)."""
        config = self.config
        layout = cute.make_layout((VECTOR, hw.WARPGROUP, config.slice_values // VECTOR, config.consumers))
        index = cutlass.Int64(self.walk.slot(work, part))
        address = self.parts + index * (4 * cute.size(layout))
        ptr = cute.make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=4 * VECTOR)
        return cute.make_tensor(ptr, layout)

    def _vector(self, mPart: Any, role: Role, vector: int) -> Any:
        place = mPart[None, role.thread, vector, role.slot]
        return cute.make_tensor(place.iterator.align(4 * VECTOR), cute.make_layout(VECTOR))

    def _barrier(self) -> None:
        """Wait for the CTA's other consumers."""
        count = self.config.consumers * hw.WARPGROUP
        cute.arch.barrier(barrier_id=FIRST_BARRIER + self.config.consumers, number_of_threads=count)
