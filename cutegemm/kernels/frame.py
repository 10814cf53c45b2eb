# SPDX-License-Identifier: Apache-2.0
"""What the tensor-core drivers share: host tensors and TMA atoms, and a CTA's view of all of it.

`launch_operands` runs on the host side of a launch; `Frame` is built inside the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels import operands as ops
from cutegemm.kernels.fusion import Fusion
from cutegemm.kernels.gather import GatherLoad
from cutegemm.kernels.ring import Ring
from cutegemm.kernels.scheduler import cluster_tiles
from cutegemm.kernels.store import Output
from cutegemm.kernels.tma_load import TmaLoad


def launch_operands(config: KernelConfig, addresses: Any, shape: Any, strides: Any) -> tuple[Any, Any]:
    """Tensors (a, b, c or None, d) and TMA atoms (a, b, d; None where TMA is not used).

    Args:
        addresses: (a, b, c, d), Int64.
        shape: (m, n, k, l, batch extent of a, of b), Int32.
        strides: (row, column, batch) of a as m x k, of b as n x k, of c and of d as m x n, flat, Int64.
    """
    m, n, k, batch, batch_a, batch_b = shape
    block_m, block_n, block_k = config.tile
    mA = ops.global_tensor(config.a, addresses[0], (m, k, batch_a), strides[0:3], "mk")  # (m, k, l)
    mB = ops.global_tensor(config.b, addresses[1], (n, k, batch_b), strides[3:6], "nk")  # (n, k, l)
    mC = None
    if config.c is not None:
        mC = ops.global_tensor(config.c, addresses[2], (m, n, batch), strides[6:9], "mn")  # (m, n, l)
    mD = ops.global_tensor(config.d, addresses[3], (m, n, batch), strides[9:12], "mn")  # (m, n, l)
    atom_a = atom_b = atom_d = None
    if config.a.load == "tma":
        layout = ops.operand_layout(config.a, block_m, block_k, config.stages, config.swizzle[0])
        atom_a, mA = ops.load_atom(mA, layout, (block_m, block_k), config.cluster[1])
    if config.b.load == "tma":
        layout = ops.operand_layout(config.b, block_n, block_k, config.stages, config.swizzle[1])
        atom_b, mB = ops.load_atom(mB, layout, (block_n, block_k), config.cluster[0])
    if config.store == "tma":
        atom_d, mD = ops.store_atom(mD, ops.epilogue_layout(config), (hw.WGMMA_M, config.epi_n))
    return (mA, mB, mC, mD), (atom_a, atom_b, atom_d)


@dataclass(frozen=True)
class Frame:
    """A CTA's loaders, ring, fragments, epilogue and output."""

    config: KernelConfig
    ring: Ring
    rank: Any  # of the CTA in its cluster; M varies fastest
    tiles: Any  # (m, n, l) tiles of a whole cluster
    load_a: Any
    load_b: Any
    tx_bytes: int  # that TMA delivers to one stage
    sA: Any  # (BLK_M, BLK_K, STAGE)
    sB: Any  # (BLK_N, BLK_K, STAGE)
    fusion: Fusion
    output: Output

    @staticmethod
    def create(config: KernelConfig, tensors: Any, atoms: Any, shape: Any, scalars: Any) -> Frame:
        """Allocate shared memory in the plan's order (A, B, epilogue, barriers) and partition everything."""
        mA, mB, mC, mD = tensors
        block_m, block_n, block_k = config.tile
        layout_a = ops.operand_layout(config.a, block_m, block_k, config.stages, config.swizzle[0])
        layout_b = ops.operand_layout(config.b, block_n, block_k, config.stages, config.swizzle[1])
        smem = cutlass.memory.SmemAllocator()
        ab, d = ops.NUMERIC[config.a.dtype], ops.NUMERIC[config.d.dtype]
        sA = smem.allocate_tensor(ab, layout_a.outer, hw.SMEM_ALIGN, layout_a.inner)  # (BLK_M, BLK_K, STAGE)
        sB = smem.allocate_tensor(ab, layout_b.outer, hw.SMEM_ALIGN, layout_b.inner)  # (BLK_N, BLK_K, STAGE)
        sD = None
        if config.store != "direct":
            layout_d = ops.epilogue_layout(config)
            sD = smem.allocate_tensor(
                d, layout_d.outer, hw.SMEM_ALIGN, layout_d.inner
            )  # (WGMMA_M, EPI_N, BUFFER)
        barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
        ring = Ring(barriers, barriers + config.stages, config.stages, config.cluster)

        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        cluster_m, cluster_n = config.cluster
        row, column = rank % cluster_m, rank // cluster_m
        row_mask = sum(1 << (j * cluster_m) for j in range(cluster_n))  # CTAs of cluster row 0
        column_mask = (1 << cluster_m) - 1  # CTAs of cluster column 0
        load_a = _loader(config.a, atoms[0], mA, sA, (column, cluster_n, cutlass.Int16(row_mask << row)))
        load_b = _loader(
            config.b, atoms[1], mB, sB, (row, cluster_m, cutlass.Int16(column_mask << (column * cluster_m)))
        )
        element = config.a.dtype.bytes * block_k
        tx = element * (block_m * (config.a.load == "tma") + block_n * (config.b.load == "tma"))
        tiles = (
            cluster_tiles(shape[0], block_m, cluster_m),
            cluster_tiles(shape[1], block_n, cluster_n),
            shape[3],
        )
        fusion = Fusion(
            config.epilogue, {"c": mC}, {"alpha": scalars[0], "beta": scalars[1]}, (shape[0], shape[1])
        )
        output = _output(config, atoms[2], mD, sD, (shape[0], shape[1]))
        return Frame(config, ring, rank, tiles, load_a, load_b, tx, sA, sB, fusion, output)

    @cute.jit
    def initialise(self, full_arrivals: cutlass.Constexpr, consumer_warps: cutlass.Constexpr):
        """Initialise the ring's barriers and let the whole cluster see them; prefetch the tensor maps."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            self.ring.init(full_arrivals, consumer_warps)
            cute.arch.mbarrier_init_fence()
        if thread // hw.WARP == 1:
            for load in (self.load_a, self.load_b):
                if cutlass.const_expr(isinstance(load, TmaLoad)):
                    cpasync.prefetch_descriptor(load.atom)
            if cutlass.const_expr(self.output.atom is not None):
                cpasync.prefetch_descriptor(self.output.atom)
        if cutlass.const_expr(self.config.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def cta_tile(self, place_m: Any, place_n: Any) -> tuple[Any, Any]:
        """This CTA's tile of a cluster tile."""
        cluster_m, cluster_n = self.config.cluster
        return place_m * cluster_m + self.rank % cluster_m, place_n * cluster_n + self.rank // cluster_m

    @cute.jit
    def load(self, tile_m: Any, tile_n: Any, k_tile: Any, batch: Any, stage: Any, thread: Any):
        """Fill one empty stage with both operands' tiles and arrive on its full barrier."""
        if thread // hw.WARP == 0:
            if cutlass.const_expr(self.tx_bytes > 0):
                self.ring.expect(stage, self.tx_bytes)
            if cutlass.const_expr(isinstance(self.load_a, TmaLoad)):
                self.load_a.load(tile_m, k_tile, batch, self.ring, stage)
            if cutlass.const_expr(isinstance(self.load_b, TmaLoad)):
                self.load_b.load(tile_n, k_tile, batch, self.ring, stage)
        if cutlass.const_expr(isinstance(self.load_a, GatherLoad)):
            self.load_a.load(tile_m, k_tile, batch, stage, thread)
        if cutlass.const_expr(isinstance(self.load_b, GatherLoad)):
            self.load_b.load(tile_n, k_tile, batch, stage, thread)
        if cutlass.const_expr(isinstance(self.load_a, GatherLoad) or isinstance(self.load_b, GatherLoad)):
            cute.arch.fence_proxy("async.shared", space="cta")  # the threads' stores before WGMMA reads
            cute.arch.mbarrier_arrive(self.ring.full + stage)

    def fragments(self, mma: cute.TiledMma, group: Any) -> tuple[Any, Any, Any]:
        """A warpgroup's descriptors of A and B and its fp32 accumulators."""
        part = mma.get_slice(group * hw.WARPGROUP)
        tCrA = mma.make_fragment_A(part.partition_A(self.sA))  # (MMA, MMA_M, MMA_K, STAGE)
        tCrB = mma.make_fragment_B(part.partition_B(self.sB))  # (MMA, MMA_N, MMA_K, STAGE)
        shape = part.partition_shape_C(self.config.tile[:2])
        return tCrA, tCrB, cute.make_rmem_tensor(shape, cutlass.Float32)  # ((2, 2, BLK_N / 8), MMA_M, 1)


def _loader(matrix: Any, atom: Any, tensor: Any, smem: Any, peers: Any) -> Any:
    """The loader that a matrix's config asks for."""
    box = (cute.size(smem, mode=[0]), cute.size(smem, mode=[1]))
    if matrix.load == "tma":
        return TmaLoad.create(atom, tensor, smem, box, peers)
    return GatherLoad(tensor, smem, box, along_k=matrix.major not in ("m", "n"))


def _output(config: KernelConfig, atom: Any, mD: Any, sD: Any, shape: Any) -> Output:
    """D and, for TMA, its partition into WGMMA_M x EPI_N pieces."""
    if atom is None:
        return Output(config, mD, None, None, sD, None, shape)
    gD = cute.local_tile(mD, (hw.WGMMA_M, config.epi_n), (None, None, None))  # (WGMMA_M, EPI_N, m/, n/, l)
    tDsD, tDgD = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(sD, 0, 2), cute.group_modes(gD, 0, 2)
    )
    return Output(config, mD, atom, tDgD, sD, tDsD, shape)
