# SPDX-License-Identifier: Apache-2.0
"""Kernel family 4: exact fp32 on the CUDA cores, for any strides and alignments.

A CTA computes one tile of D; a thread owns THREAD_M x THREAD_N accumulators as groups of four rows and four
columns, spread so that a warp's shared loads are free of bank conflicts (`simt_tile`). Per k it reads
THREAD_M + THREAD_N numbers from shared memory and does THREAD_M * THREAD_N fused multiply-adds. Where tiles
are few, K is split among the CTAs of a cluster (SPLIT) and among warps of a CTA (SLICE), whose sums are
added in shared memory in a fixed order (`simt_sums`).

Each CTA has one work tile (`simt_schedule`). There are two mainloops: `simt_staged` for most outputs, `simt_ring` for
few rows or columns. In both the first k tile has the remainder of K, so that no later copy needs a guard.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import SimtConfig
from cutegemm.config.simt import STAGED_STAGES
from cutegemm.config.simt_invariants import smem_bytes
from cutegemm.kernels.cuda_cores.simt_epilogue import Patch, SimtEpilogue, lane_place
from cutegemm.kernels.cuda_cores.simt_operand import OperandTile
from cutegemm.kernels.cuda_cores.simt_ring import RingLoop
from cutegemm.kernels.cuda_cores.simt_runs import RunLoad, RunShape
from cutegemm.kernels.cuda_cores.simt_schedule import SimtScheduler
from cutegemm.kernels.cuda_cores.simt_staged import StagedLoad, StagedLoop, StagedShape
from cutegemm.kernels.cuda_cores.simt_sums import SharedSums
from cutegemm.kernels.cuda_cores.simt_tile import GROUP, Owned, TileLoad, TileShape
from cutegemm.kernels.epilogue import partial_reductions as reduce
from cutegemm.kernels.epilogue.fusion import bind
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.host import operand_layouts as ops

# percent of L1 to shared memory at least: two CTAs of at most 34 KiB each, and a cache for strided loads
STAGED_CARVEOUT = 50
# bytes: shared loads and stores move four elements
SMEM_ALIGN = 16
FP32_BYTES = 4
# how an operand's tile comes -> what brings it
LOADS = {TileShape: TileLoad, StagedShape: StagedLoad, RunShape: RunLoad}


class SimtGemm:
    """The driver of one `SimtConfig`."""

    def __init__(self, config: SimtConfig) -> None:
        self.config = config
        block_m, block_n, block_k = config.tile
        self.shapes = tuple(
            self._shape(
                matrix=matrix, rows=rows, depth=block_k, vector=vector, threads=config.threads, half=half
            )
            for matrix, rows, vector, half in (
                (config.a, block_m, config.vector[0], None),
                (config.b, block_n, config.vector[1], config.lanes[1] * GROUP if config.gates == 2 else None),
            )
        )

    @property
    def _groups(self) -> tuple[int, int]:
        """Neighbouring rows, and columns, that a thread owns together."""
        return (self.config.group if self.config.staged else GROUP), GROUP

    def _shape(self, **fields: Any) -> OperandTile:
        """How an operand's tile comes into shared memory."""
        if not self.config.staged:
            return TileShape(**fields)
        tile = StagedShape(**fields)
        return RunShape(**fields) if self.config.in_runs(tile.rows, tile.vector, tile.along_k) else tile

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, schedule, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        config = self.config
        starts, steps = launch.Addresses.of(config, addresses), launch.Strides.of(config, strides)
        scheduler = self._scheduler(shape, schedule)
        m, n, batch = (scheduler.extents[x] for x in "mnl")
        operands = []
        for x, start, vector in zip(config.operands, starts.operands, config.vector):
            extent, stride = launch.operand_layout(config, x, steps, shape)
            operands.append(ops.global_tensor(x, start, extent, stride, x.axes, vector))
        inputs = launch.input_tensors(config, starts, steps, shape)
        outputs = tuple(
            ops.global_tensor(x, starts.outputs[i], (m, n, batch), steps.outputs[i], "mn", config.vector[2])
            for i, x in enumerate(config.outputs)
        )
        tensors = (*operands, inputs, outputs, starts.partials, launch.scalar_tensors(starts))
        self.kernel(tensors, shape, numbers, schedule).launch(
            grid=(scheduler.ctas, 1, 1),
            block=(config.threads, 1, 1),
            cluster=(config.split, 1, 1) if config.split > 1 else None,
            min_blocks_per_mp=config.residents,
            preferred_smem_carveout=self._carveout,
            stream=stream,
        )

    def _scheduler(self, shape: Any, schedule: Any) -> SimtScheduler:
        """The work tiles of a launch."""
        config = self.config
        return SimtScheduler(
            config, launch.named(config, "shape", shape), launch.named(config, "schedule", schedule)
        )

    @cute.kernel
    def kernel(self, tensors, shape, numbers, schedule):
        """The CTA: its tile, its split of K, the sums, the epilogue."""
        config = self.config
        mA, mB, inputs, outputs, addresses, scalars = tensors
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        scheduler = self._scheduler(shape, schedule)
        tiles = scheduler.tiles
        state, output = scheduler.start(block, tiles), scheduler.output(tiles[1])
        warp = cute.arch.make_warp_uniform(thread // hw.WARP)
        lane, owner_warps = thread % hw.WARP, config.owners // hw.WARP
        owner, slice_ = (warp % owner_warps, warp // owner_warps) if config.slices > 1 else (warp, 0)
        owned = self._owned(owner, lane)
        shared = self._shared_memory()
        work = scheduler.work(state)
        column, first_depth = scheduler.columns(work)
        at_b = shared + self.shapes[0].elements * (1 if config.staged else self._stages)
        loads = tuple(
            LOADS[type(shape)].create(
                shape, mX, work.corner(shape.matrix, shape.box), column, (thread, start)
            )
            for shape, mX, start in zip(self.shapes, (mA, mB), (shared, at_b), strict=True)
        )
        acc = cute.make_rmem_tensor(config.thread_tile[0] * config.thread_tile[1], cutlass.Float32)
        acc.fill(0.0)
        if cutlass.const_expr(config.staged):
            StagedLoop(config, loads, owned, slice_).multiply(acc, (first_depth, work.k_tiles))
        else:
            RingLoop(config, loads, owned, slice_).multiply(acc, (first_depth, work.k_tiles))
        bound = bind(config, inputs, numbers, scalars, (output.m, output.n)).read()
        extent = (output.m, output.n, output.l)
        partials = reduce.partials(config.epilogue.reductions, addresses, output.partials, extent)
        epilogue = SimtEpilogue(config, bound, outputs, partials, output.tiles_n)
        if cutlass.const_expr(config.shares):
            sums = SharedSums(config, shared, work.split)
            sums.collect(acc, thread)
            for i in range(sums.turns):
                self._finish_sums(sums, epilogue, (i, warp, lane), work.tile)
            sums.leave()
        else:
            epilogue.finish(acc, self._patch(warp, lane, None), work.tile)

    @property
    def _stages(self) -> int:
        return STAGED_STAGES if self.config.staged else self.config.stages

    @property
    def _shared_elements(self) -> int:
        """fp32 elements: of A's stages and B's, and of the sums of a shared tile, which lie over them."""
        return int(smem_bytes(self.config)) // FP32_BYTES

    @property
    def _carveout(self) -> int:
        """Percent of L1 that becomes shared memory; the next larger capacity is taken (CUDA runtime API)."""
        if not self.config.staged:
            return 100
        used = self.config.residents * (self._shared_elements * FP32_BYTES + hw.SMEM_CTA_RESERVED)
        return min(100, max(STAGED_CARVEOUT, -(-100 * used // hw.SMEM_SM_BYTES)))

    def _shared_memory(self) -> Any:
        layout = cute.make_layout(self._shared_elements)
        return cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Float32, layout, SMEM_ALIGN).iterator

    @cute.jit
    def _finish_sums(
        self,
        sums: cutlass.Constexpr,
        epilogue: cutlass.Constexpr,
        who: cutlass.Constexpr,
        tile: cutlass.Constexpr,
    ) -> None:
        """Take the warp's i-th patch of the tile through the epilogue, if there is one; `who` is (i, warp, lane)."""
        i, warp, lane = who
        turn = sums.patch_of(i, warp)
        if turn < sums.patches:
            owner_warps = self.config.owners // hw.WARP
            acc = cute.make_rmem_tensor(self.config.finished[0] * self.config.finished[1], cutlass.Float32)
            sums.gather(acc, turn // owner_warps, turn % owner_warps * hw.WARP + lane)
            epilogue.finish(acc, self._patch(turn % owner_warps, lane, turn // owner_warps), tile)

    def _owned(self, warp: Any, lane: Any) -> tuple[Owned, Owned]:
        """The rows and the columns, within the tile, that lane `lane` of the tile's `warp`-th owner owns."""
        config = self.config
        warps_m = config.tile[0] // (config.lanes[0] * config.thread_tile[0])
        found = []
        for axis, place in enumerate((warp % warps_m, warp // warps_m)):
            lanes, own = config.lanes[axis], config.thread_tile[axis]
            group = self._groups[axis]
            first = place * (lanes * own) + lane_place(config, lane)[axis] * group
            found.append(Owned(first, tuple(g * lanes * group for g in range(own // group)), group))
        return found[0], found[1]

    def _patch(self, warp: Any, lane: Any, group: Any) -> Patch:
        """What a thread finishes: all that lane `lane` of `warp` owns, or its `group`-th group of rows by four."""
        config = self.config
        rows, cols = (x.groups for x in self._owned(warp, lane))
        warps_m = config.tile[0] // (config.lanes[0] * config.thread_tile[0])
        part_m, part_n = warp % warps_m, warp // warps_m
        if group is not None:
            across = config.thread_tile[1] // config.finished[1]
            i, j = group // across, group % across
            part_m, part_n = part_m * (config.thread_tile[0] // config.group) + i, part_n * across + j
            rows = [rows[0] + i * (config.lanes[0] * config.group)]
            cols = [x + j * (config.lanes[1] * config.finished[1]) for x in cols[: config.gates]]
        parts_n = config.columns // config.partial_width[1]
        return Patch(rows, self._stored(cols), part_m, part_n, part_m * parts_n + part_n, lane)

    def _stored(self, cols: list) -> list:
        """First output columns of the groups; of a gated pair the second is the first's other accumulator."""
        if self.config.gates == 1:
            return cols
        half = self.config.lanes[1] * GROUP  # columns of one half side by side: a warp's group of each thread
        return [col // (2 * half) * half + col % half for col in cols[::2]]
