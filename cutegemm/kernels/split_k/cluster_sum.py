# SPDX-License-Identifier: Apache-2.0
"""Split-K within a cluster: the CTAs that store a tile add the partial sums, in order, over distributed shared memory.

Every CTA sends its accumulators, still in fragment order, to the CTAs that store the tile. With SLICES of those,
each receives and stores its own share of the tile's columns. A storing CTA adds the partial sums in split order, so
that a result has the same bits on every run, and runs the epilogue.

Barriers, per CTA:
    full    the partial sums have arrived. Arrivals: one, with the byte count of all of them, which st.async
            delivers -> the consumers wait.
    free    the partial sums that this CTA sent have been read. Arrivals: one per consumer warp of every storing CTA ->
            the consumers wait before they send the next work tile's.
Both complete one phase per work, so one parity is enough. Source: PTX ISA 9.0, st.async.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.work import OutputTile, Work
from cutegemm.kernels.split_k.partial_sums import VECTOR, aligned


@dataclass(frozen=True)
class ClusterSum:
    """The buffer of partial sums that a CTA receives, and its barriers."""

    config: KernelConfig
    place: Place
    sPartials: Any  # (VECTOR, WARPGROUP, vectors, CONSUMERS, SPLITS) fp32
    shared: Shared
    full: Any
    free: Any

    @staticmethod
    def create(config: KernelConfig, place: Place, shared: Shared) -> ClusterSum:
        """Take the buffer and the barriers."""
        vectors = config.slice_values // VECTOR
        layout = cute.make_layout((VECTOR, hw.WARPGROUP, vectors, config.consumers, config.cluster_splits))
        sPartials = shared.tensor("partial sums", NUMERIC[config.sums], layout)
        full, free = shared.barriers("partials written"), shared.barriers("partials read")
        return ClusterSum(config, place, sPartials, shared, full, free)

    def init(self) -> None:
        """Initialise the barriers; from one thread."""
        self.shared.init("partials written", self.full)
        self.shared.init("partials read", self.free)

    def tile(self, work: Work) -> OutputTile:
        """The slice that this CTA stores of a work tile, if it stores one."""
        return work.slice(self.place.split, self.config.slices)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Send this CTA's partial sum to the CTAs that store it; whether this is one of them."""
        config, place = self.config, self.place
        mine = place.split < config.slices
        cute.arch.mbarrier_wait(self.free, phase ^ 1)  # until the partial sums sent before have been read
        if role.slot == 0 and mine:
            if role.thread // hw.WARP == 0:
                with cute.arch.elect_one():
                    size = config.cluster_splits * config.consumers * hw.WARPGROUP * config.slice_values * 4
                    cute.arch.mbarrier_arrive_and_expect_tx(self.full, size)
        rI = cute.recast_tensor(acc, cutlass.Int32)
        for split in cutlass.range_constexpr(config.slices):
            rank = place.rank_of_split(split)
            for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
                first, step = config.slice_index(vector * VECTOR)
                first += split * step
                target = self.sPartials[None, role.thread, vector, role.slot, place.split]
                values = tuple(rI[first + i] for i in range(VECTOR))
                cute.arch.store_async_dsmem(target.iterator.align(4 * VECTOR), values, self.full, rank)
        return mine

    @cute.jit
    def receive(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any
    ) -> None:
        """The sum of all partial sums of this CTA's slice, in order; frees the buffer for the next work tile."""
        config = self.config
        cute.arch.mbarrier_wait(self.full, phase)  # until every partial sum is here
        for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
            value = self._partial(role, vector, 0)
            for split in cutlass.range_constexpr(1, config.cluster_splits):
                value = value + self._partial(role, vector, split)
            for i in cutlass.range_constexpr(VECTOR):
                total[vector * VECTOR + i] = value[i]
        cute.arch.sync_warp()
        lane = cute.arch.lane_idx()
        if lane < config.cluster_splits:
            cute.arch.mbarrier_arrive(self.free, self.place.rank_of_split(lane))

    def _partial(self, role: Role, vector: int, split: int) -> Any:
        return aligned(self.sPartials[None, role.thread, vector, role.slot, split]).load()
