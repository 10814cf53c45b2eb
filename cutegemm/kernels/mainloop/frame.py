# SPDX-License-Identifier: Apache-2.0
"""A CTA's schedulers, loads, pipeline and epilogue, set up in one place for all tensor-core drivers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.tile_epilogue import Epilogue
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host.launch_tensors import Atoms, Tensors
from cutegemm.kernels.host.operand_layouts import NUMERIC, multiplied, prefetch
from cutegemm.kernels.load.row_indices import RowIndices
from cutegemm.kernels.load.stage_loads import ItemLoads
from cutegemm.kernels.load.tma_load import TmaLoad
from cutegemm.kernels.load.zero_fill import zero_out_of_bounds
from cutegemm.kernels.mainloop.block_scales import BlockScales
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.mainloop import Fragments
from cutegemm.kernels.mainloop.pipeline import Pipeline
from cutegemm.kernels.mainloop.shared_storage import Shared, wait_named
from cutegemm.kernels.schedule.depth_scheduler import GroupDepthScheduler
from cutegemm.kernels.schedule.dynamic_scheduler import (
    DynamicDepthScheduler,
    DynamicGroupScheduler,
    DynamicScheduler,
)
from cutegemm.kernels.schedule.group_scheduler import GroupScheduler
from cutegemm.kernels.schedule.stream_k import StreamKScheduler
from cutegemm.kernels.schedule.tile_scheduler import TileScheduler
from cutegemm.kernels.split_k.atomic_sum import AtomicSum
from cutegemm.kernels.split_k.cluster_sum import ClusterSum
from cutegemm.kernels.split_k.deferred_sum import DeferredSum
from cutegemm.kernels.split_k.nested_sum import NestedSum
from cutegemm.kernels.split_k.workspace_sum import WorkspaceSum
from cutegemm.launch_layout import SCHEDULER_READS, SPLIT_PLACES

# tile schedulers, by the config's name
SCHEDULERS: dict[str, type[TileScheduler]] = {
    "static": TileScheduler,
    "stream_k": StreamKScheduler,
    "dynamic": DynamicScheduler,
    "grouped": GroupScheduler,
    "depth": GroupDepthScheduler,
    "dynamic_depth": DynamicDepthScheduler,
    "dynamic_grouped": DynamicGroupScheduler,
}
# reductions of splits across clusters, by the config's name
REDUCTIONS = {"workspace": WorkspaceSum, "atomic": AtomicSum, "launch": DeferredSum}
# all reductions of splits: within a cluster, across clusters, or both
Sum = ClusterSum | WorkspaceSum | DeferredSum | NestedSum


def _sum(
    config: KernelConfig, place: Place, scheduler: TileScheduler, addresses: dict[str, Any], shared: Shared
) -> Sum | None:
    """The reduction of splits that a config asks for; None without splits."""
    inner = ClusterSum.create(config, place, shared) if config.cluster_splits > 1 else None
    if config.split_reduction not in REDUCTIONS:
        return inner
    outer = REDUCTIONS[config.split_reduction].create(config, scheduler, addresses, shared)
    return outer if inner is None else NestedSum(config, inner, outer)


@dataclass(frozen=True)
class Frame:
    """A CTA's place, tile scheduler, loads, pipeline and epilogue."""

    config: KernelConfig
    place: Place
    scheduler: TileScheduler
    loads: tuple[ItemLoads, ...]  # of every item of a stage
    pipeline: Pipeline
    epilogue: Epilogue
    total: Sum | None
    scales: BlockScales

    @staticmethod
    def create(
        config: KernelConfig, tensors: Any, atoms: Any, shape: Any, numbers: Any, schedule: Any
    ) -> Frame:
        """Take slices of shared memory by the plan's names (`config.shared`) and partition everything."""
        tensors, atoms = Tensors(*tensors), Atoms(*atoms)
        extents, launched = launch.named(config, "shape", shape), launch.named(config, "schedule", schedule)
        shared = Shared.create(config)
        place = Place.create(config.cluster, config.cluster_splits)
        scheduler = SCHEDULERS[config.tile_scheduler].create(config, place, extents, launched)
        indices = None
        if tensors.indices:
            indices = RowIndices.create(tensors.indices[0], extents[config.grouped], launched)
        loads = tuple(
            ItemLoads.create(config, item, atom, tensor, place, shared, indices)
            for item, atom, tensor in zip(config.stage, atoms.operands, tensors.operands, strict=True)
        )
        scales = BlockScales.create(config, tensors.scales, shared)
        epilogue = Epilogue.create(
            config, tensors, atoms, numbers, scheduler.output(extents, launched), shared
        )
        pipeline = Pipeline.create(config.stages, place, shared)
        total = _sum(config, place, scheduler, dict(zip(SPLIT_PLACES, tensors.splits)), shared)
        reads = dict(zip(SCHEDULER_READS.get(config.tile_scheduler, ()), tensors.scheduler, strict=True))
        scheduler = scheduler.placed(reads, shared)
        return Frame(config, place, scheduler, loads, pipeline, epilogue, total, scales)

    @cute.jit
    def initialise(self):
        """Initialise every barrier and let the whole cluster see them; prefetch the tensor maps."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            self.pipeline.init()
            for loads in self.loads:
                loads.init()
            if cutlass.const_expr(self.epilogue.loads is not None):
                self.epilogue.loads.init()
            if cutlass.const_expr(self.total is not None):
                self.total.init()
            self.scheduler.init()
            cute.arch.mbarrier_init_fence()
        if thread // hw.WARP == 1:
            prefetch((*(x for loads in self.loads for x in loads.atoms), *self.epilogue.atoms))
        if cutlass.const_expr(self.config.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    @property
    def stage_bytes(self) -> int:
        """Bytes that TMA writes into one stage."""
        return sum(x.delivered for x in self.config.stage)

    @cute.jit
    def zero_out_of_bounds(self, thread: Any):
        """Zero the rows of the stages that no load writes, once, by the consumers' threads.

        They lie beyond the matrix: WGMMA multiplies them, and nothing stores the result. WGMMA reads through the async
        proxy, hence the fence before the consumers' barrier (PTX ISA, fence.proxy.async).
        """
        if cutlass.const_expr(any(x.box_rows for x in self.config.operands)):
            threads = self.config.consumers * hw.WARPGROUP
            for loads in self.loads:
                if cutlass.const_expr(loads.item.operand.box_rows):
                    zero_out_of_bounds(loads.item, self.config.stages, loads.sX, thread, threads)
            cute.arch.fence_proxy("async.shared", space="cta")
            wait_named(self.config, "rest")

    @cute.jit
    def load(
        self,
        work: cutlass.Constexpr,
        k: Any,
        stage: Any,
        thread: Any,
        roles: cutlass.Constexpr = None,
        announce: cutlass.Constexpr = True,
    ):
        """Issue the loads of a work tile's k-th k tile into an empty stage: by TMA, and by threads.

        Args:
            roles: of the items to load, None for all.
            announce: whether to announce the bytes of all items to the full barrier, which must happen once a fill.
        """
        loaders = tuple(
            (x, loads.item)
            for loads in self.loads
            for x in loads.loaders
            if roles is None or loads.item.role in roles
        )
        if thread // hw.WARP == 0:
            if cutlass.const_expr(self.config.copies and announce):
                self.pipeline.expect(stage, self.stage_bytes)
            for loader, item in loaders:
                if cutlass.const_expr(isinstance(loader, TmaLoad)):
                    loader.load(work.corner(item.operand, item.half, k), self.pipeline, stage, k)
        for loader, item in loaders:
            if cutlass.const_expr(not isinstance(loader, TmaLoad)):
                loader.begin(work.corner(item.operand, item.half, k), stage, thread)

    @cute.jit
    def end(self, work: cutlass.Constexpr, k: Any, position: Any, thread: Any):
        """Once the threads' copies have arrived, finish the k tile and arrive on the stage's full barrier."""
        for loads in self.loads:
            for loader in loads.loaders:
                if cutlass.const_expr(not isinstance(loader, TmaLoad)):
                    loader.end(work.corner(loads.item.operand, loads.item.half, k), *position, thread)
        cute.arch.fence_proxy("async.shared", space="cta")  # the threads' stores before WGMMA reads
        cute.arch.mbarrier_arrive(self.pipeline.full + position[0])

    @cute.jit
    def finish(self):
        """Before the CTA ends: wait until no CTA of the cluster sends to it or signals it any more."""
        if cutlass.const_expr(self.config.cluster_splits > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    def fragments(self, mma: cute.TiledMma, group: Any) -> tuple[Fragments, cute.Tensor]:
        """A warpgroup's descriptors of A and B and a thread's accumulators, ((2, 2, MMA_COLUMNS / 8), MMA_M, MMA_N)."""
        part = mma.get_slice(group * hw.WARPGROUP)
        sX = {x.item.role: multiplied(self.config, x.item, x.sX) for x in self.loads}
        descriptors = Fragments(
            mma.make_fragment_A(part.partition_A(sX["a"])),
            mma.make_fragment_B(part.partition_B(sX["b"])),
            self.config.instruction,
        )
        shape = part.partition_shape_C(self.config.tile[:2])
        return descriptors, cute.make_rmem_tensor(shape, NUMERIC[self.config.sums])
