# SPDX-License-Identifier: Apache-2.0
"""A tile's sum over the CTAs of a cluster that each added up a part of K: in order, over distributed shared memory.

Every CTA sends its accumulators, still in fragment order, to the CTAs that store the tile. With SLICES of those,
each gets and stores its own share of the tile's columns. A storing CTA adds the parts in their order, so that a
result has the same bits on every run, and goes on with its epilogue.

Barriers, per CTA:
    full    the parts are here.      Arrivals: one, with the byte count of all parts, which st.async delivers ->
            the consumers wait.
    free    the parts that this CTA sent have been read. Arrivals: one per consumer warp of every storing CTA ->
            the consumers wait before they send the next work's.
Both have completed a phase per work, so one parity serves both. Source: PTX ISA 9.0, st.async.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.cluster import Place
from cutegemm.kernels.operands import NUMERIC
from cutegemm.kernels.pieces import Role
from cutegemm.kernels.shared import Shared
from cutegemm.kernels.work import OutputTile, Work

VECTOR = 4  # fp32 numbers of one st.async


@dataclass(frozen=True)
class ClusterSum:
    """The buffer of parts that a CTA receives, and its barriers."""

    config: KernelConfig
    place: Place
    sParts: Any  # (VECTOR, WARPGROUP, vectors, CONSUMERS, PARTS) fp32
    shared: Shared
    full: Any
    free: Any

    @staticmethod
    def create(config: KernelConfig, place: Place, shared: Shared) -> ClusterSum:
        """Take the buffer and the barriers."""
        vectors = config.slice_values // VECTOR
        layout = cute.make_layout((VECTOR, hw.WARPGROUP, vectors, config.consumers, config.cluster_parts))
        sParts = shared.tensor("parts of K", NUMERIC[config.sums], layout)
        full, free = shared.barriers("parts here"), shared.barriers("parts read")
        return ClusterSum(config, place, sParts, shared, full, free)

    def init(self) -> None:
        """Initialise the barriers; from one thread."""
        self.shared.init("parts here", self.full)
        self.shared.init("parts read", self.free)

    def tile(self, work: Work) -> OutputTile:
        """The slice that this CTA stores of a work, if it stores one."""
        return work.slice(self.place.part, self.config.slices)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Hand this CTA's part of the sum to the CTAs that store it; whether this is one of them."""
        config, place = self.config, self.place
        mine = place.part < config.slices
        cute.arch.mbarrier_wait(self.free, phase ^ 1)  # until the parts sent before have been read
        if role.slot == 0 and mine:
            if role.thread // hw.WARP == 0:
                with cute.arch.elect_one():
                    size = config.cluster_parts * config.consumers * hw.WARPGROUP * config.slice_values * 4
                    cute.arch.mbarrier_arrive_and_expect_tx(self.full, size)
        rI = cute.recast_tensor(acc, cutlass.Int32)
        for part in cutlass.range_constexpr(config.slices):
            rank = place.rank_of_part(part)
            for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
                first, step = config.slice_index(vector * VECTOR)
                first += part * step
                target = self.sParts[None, role.thread, vector, role.slot, place.part]
                values = tuple(rI[first + i] for i in range(VECTOR))
                cute.arch.store_async_dsmem(target.iterator.align(4 * VECTOR), values, self.full, rank)
        return mine

    @cute.jit
    def receive(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any
    ) -> None:
        """The sum of all parts of this CTA's slice, in their order; frees the buffer for the next work."""
        config = self.config
        cute.arch.mbarrier_wait(self.full, phase)  # until every part is here
        for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
            value = self._part(role, vector, 0)
            for part in cutlass.range_constexpr(1, config.cluster_parts):
                value = value + self._part(role, vector, part)
            for i in cutlass.range_constexpr(VECTOR):
                total[vector * VECTOR + i] = value[i]
        cute.arch.sync_warp()
        lane = cute.arch.lane_idx()
        if lane < config.cluster_parts:
            cute.arch.mbarrier_arrive(self.free, self.place.rank_of_part(lane))

    def _part(self, role: Role, vector: int, part: int) -> Any:
        source = self.sParts[None, role.thread, vector, role.slot, part]
        return cute.make_tensor(source.iterator.align(4 * VECTOR), cute.make_layout(VECTOR)).load()
