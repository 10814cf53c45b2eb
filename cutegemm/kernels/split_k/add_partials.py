# SPDX-License-Identifier: Apache-2.0
"""Kernel family 7: adds up the partial sums that the launch before left in workspace, and applies the epilogue once.

A CTA takes the rows of one consumer warpgroup of the GEMM and one slice of a tile's columns; the planner makes slices
so narrow that all SMs have work. Registers hold the sums as the GEMM's consumers held them, so the epilogue is that of
every tensor-core kernel. If there are many partial sums, each of several warpgroups adds up neighbouring ones; the
first one adds up their sums, in order, and runs the epilogue. The launch may begin while the GEMM still runs: its
prologue overlaps the GEMM, and every thread waits for the GEMM to end before its first access to memory.

Barrier, per CTA: the sums are in shared memory. Arrivals: every thread -> the first warpgroup waits.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.config.smem_budget import smem_bytes
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.epilogue.tile_epilogue import Epilogue
from cutegemm.kernels.host.launch_arguments import named
from cutegemm.kernels.host.launch_tensors import Atoms, Tensors, launch_tensors
from cutegemm.kernels.host.operand_layouts import NUMERIC, prefetch
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.shared_storage import Shared, arrive_named, wait_named
from cutegemm.kernels.schedule.dependent_launch import Dependence
from cutegemm.kernels.schedule.tile_scheduler import TileScheduler
from cutegemm.kernels.schedule.work import Work
from cutegemm.kernels.split_k.partial_sums import VECTOR, PartialSums, aligned


class AddPartials:
    """The driver of one `KernelConfig` of family "add_partials"."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, schedule, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`, "clusters" the slices of all tiles."""
        tensors, atoms = launch_tensors(self.config, addresses, shape, strides)
        self.kernel(tensors, atoms, shape, numbers, schedule).launch(
            grid=(named(self.config, "schedule", schedule)["clusters"], 1, 1),
            block=(self.config.threads, 1, 1),
            use_pdl=self.config.trigger != "never",
            stream=stream,
            **self._spread(),
        )

    def _spread(self) -> dict[str, int]:
        """So much shared memory that an SM holds `most_on_sm` CTAs.

        While the GEMM ends, SMs become free one by one. The first would otherwise get most CTAs of the launch.
        """
        most, limit = self.config.most_on_sm, self.config.limits.smem_bytes
        return {"smem": max(smem_bytes(self.config), limit // (most + 1))} if most else {}

    @cute.kernel
    def kernel(self, tensors, atoms, shape, numbers, schedule):
        """One CTA's slice."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        dependence = Dependence(config)
        tensors, atoms = Tensors(*tensors), Atoms(*atoms)
        extents, launched = named(config, "shape", shape), named(config, "schedule", schedule)
        shared = Shared.create(config)
        scheduler = TileScheduler.create(config, Place.create((1, 1), 1), extents, launched)
        epilogue = Epilogue.create(
            config, tensors, atoms, numbers, scheduler.output(extents, launched), shared
        )
        # (VECTOR, WARPGROUP, vectors, ADDERS - 1)
        shape = (VECTOR, hw.WARPGROUP, config.slice_values // VECTOR, max(1, config.adders - 1))
        sSums = shared.tensor("sums", NUMERIC[config.sums], cute.make_layout(shape))
        self._initialise(epilogue, thread)
        dependence.start()
        dependence.wait()
        epilogue = epilogue.after_wait()
        (address,) = tensors.splits
        work, share, band = self._work(scheduler, block)
        role = Role(cutlass.Int32(0), band, thread % hw.WARPGROUP)
        group = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        partials = PartialSums(config, scheduler, address)
        # a sample launch, which loads the kernel, has no batch
        if work.l < epilogue.extent.l:
            if group == 0:
                self._finish(partials, epilogue, dependence, sSums, role, (work, share))
            elif cutlass.const_expr(config.adders > 1):
                self._help(partials, sSums, role, (work, share), group)

    @cute.jit
    def _initialise(self, epilogue: cutlass.Constexpr, thread: Any):
        """The epilogue's barriers and tensor maps."""
        if cutlass.const_expr(epilogue.loads is not None):
            if thread == 0:
                epilogue.loads.init()
                cute.arch.mbarrier_init_fence()
        if thread // hw.WARP == 1:
            prefetch(epilogue.atoms)
        if cutlass.const_expr(epilogue.loads is not None):
            cute.arch.sync_threads()

    @cute.jit
    def _finish(
        self,
        partials: cutlass.Constexpr,
        epilogue: cutlass.Constexpr,
        dependence: cutlass.Constexpr,
        sSums: Any,
        role: cutlass.Constexpr,
        mine: cutlass.Constexpr,
    ):
        """The first warpgroup: add up its share and the other warpgroups' sums, store; `mine` is (work, slice)."""
        config, (work, share) = self.config, mine
        tile = work.slice(share, config.slices)
        ahead = epilogue.ahead(role, tile)
        total = cute.make_rmem_tensor(config.slice_values, NUMERIC[config.sums])
        partials.add_some(total, role, work, (share, 0, config.adders))
        dependence.done(("loads", "mainloop"))
        if cutlass.const_expr(config.adders > 1):
            wait_named(config, "sums")  # the other warpgroups' sums are there
            for group in cutlass.range_constexpr(config.adders - 1):
                for vector in cutlass.range_constexpr(config.slice_values // VECTOR):
                    value = self._place(sSums, role, vector, group).load()
                    for i in cutlass.range_constexpr(VECTOR):
                        total[vector * VECTOR + i] = total[vector * VECTOR + i] + value[i]
        epilogue.finish(total, role, tile, ahead, epilogue.start())
        epilogue.end(role)

    @cute.jit
    def _help(
        self,
        partials: cutlass.Constexpr,
        sSums: Any,
        role: cutlass.Constexpr,
        mine: cutlass.Constexpr,
        group: Any,
    ):
        """Another warpgroup: add up its share of the partial sums and hand the sum over."""
        work, share = mine
        total = cute.make_rmem_tensor(self.config.slice_values, NUMERIC[self.config.sums])
        partials.add_some(total, role, work, (share, group, self.config.adders))
        for vector in cutlass.range_constexpr(self.config.slice_values // VECTOR):
            source = cute.make_tensor(total.iterator + vector * VECTOR, cute.make_layout(VECTOR))
            cute.autovec_copy(source, self._place(sSums, role, vector, group - 1))
        arrive_named(self.config, "sums")

    def _place(self, sSums: Any, role: Role, vector: int, group: Any) -> cute.Tensor:
        return aligned(sSums[None, role.thread, vector, group])

    def _work(self, scheduler: TileScheduler, block: Any) -> tuple[Work, Any, Any]:
        """(tile with all its partial sums, slice of it, band of its rows) of a CTA; those of a tile are neighbours."""
        config = self.config
        cluster_m, cluster_n = config.cluster
        rows, columns = scheduler.tiles[0] * cluster_m, scheduler.tiles[1] * cluster_n
        slot, band = block // config.team, block % config.team
        tile = slot // config.slices
        row = tile // columns
        batch = row // rows
        none = cutlass.Int32(0)
        place = (row - batch * rows, tile - row * columns, batch)
        work = scheduler.share(place, none, none, none, config.outer_splits)
        return work, slot - tile * config.slices, band
