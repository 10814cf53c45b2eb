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
from cutegemm.kernels import launch, reduce
from cutegemm.kernels import operands as ops
from cutegemm.kernels.epilogue import Epilogue
from cutegemm.kernels.fusion import bind
from cutegemm.kernels.gather import GatherLoad
from cutegemm.kernels.piece_loads import PieceLoads
from cutegemm.kernels.ring import Ring
from cutegemm.kernels.scheduler import cluster_tiles
from cutegemm.kernels.store import Output
from cutegemm.kernels.tma_load import TmaLoad
from cutegemm.kernels.vectors import Vectors


def launch_operands(config: KernelConfig, addresses: Any, shape: Any, strides: Any) -> tuple[Any, Any]:
    """Tensors (a, b, inputs, outputs, partial results' addresses, device scalars) and the TMA atoms beside them.

    The arguments are those of `launch`; an atom is None where TMA is not used.
    """
    block_m, block_n, block_k = config.tile
    places, steps = launch.Addresses.of(config, addresses), launch.Strides.of(config, strides)
    mA, mB = launch.operand_tensors(config, places, steps, shape)
    inputs = list(launch.input_tensors(config, places, steps, shape))
    outputs = list(launch.output_tensors(config, places, steps, shape))
    atom_a = atom_b = None
    if config.a.load == "tma":
        layout = ops.operand_layout(config.a, block_m, block_k, config.stages, config.swizzle[0])
        part = cute.slice_(layout, (None, None, 0))
        atom_a, mA = ops.load_atom(mA, part, (block_m, block_k), config.cluster[1])
    if config.b.load == "tma":
        layout = ops.operand_layout(config.b, block_n, block_k, config.stages, config.swizzle[1])
        part = (
            cute.slice_(layout, (None, None, 0))
            if config.gates == 1
            else ops.half_of(layout, block_n, block_k)
        )
        atom_b, mB = ops.load_atom(mB, part, (config.columns, block_k), config.cluster[0])
    box = (hw.WGMMA_M, config.epi_n)
    input_atoms, output_atoms = [None] * len(inputs), [None] * len(outputs)
    for i, matrix in enumerate(config.inputs):
        if matrix.load == "tma":
            layout = cute.slice_(ops.piece_layout(config, matrix, 1), (None, None, 0))
            input_atoms[i], inputs[i] = ops.load_atom(inputs[i], layout, box, 1)
    for i, matrix in enumerate(config.outputs):
        if matrix.store == "tma":
            layout = cute.slice_(ops.piece_layout(config, matrix, 1), (None, None, 0))
            output_atoms[i], outputs[i] = ops.store_atom(outputs[i], layout, box)
    tensors = (mA, mB, tuple(inputs), tuple(outputs), places.partials, launch.scalar_tensors(places))
    return tensors, (atom_a, atom_b, tuple(input_atoms), tuple(output_atoms))


@dataclass(frozen=True)
class Frame:
    """A CTA's loaders, ring, fragments and epilogue."""

    config: KernelConfig
    ring: Ring
    rank: Any  # of the CTA in its cluster; M varies fastest
    tiles: Any  # (m, n, l) tiles of a whole cluster
    loads_a: tuple
    loads_b: tuple
    tx_bytes: int  # that TMA delivers to one stage
    sA: Any  # (BLK_M, BLK_K, STAGE)
    sB: Any  # (BLK_N, BLK_K, STAGE)
    epilogue: Epilogue

    @staticmethod
    def create(config: KernelConfig, tensors: Any, atoms: Any, shape: Any, numbers: Any, walk: Any) -> Frame:
        """Allocate shared memory in the plan's order and partition everything (`budget.shared_memory`)."""
        mA, mB, inputs, outputs, addresses, scalars = tensors
        block_m, block_n, block_k = config.tile
        layout_a = ops.operand_layout(config.a, block_m, block_k, config.stages, config.swizzle[0])
        layout_b = ops.operand_layout(config.b, block_n, block_k, config.stages, config.swizzle[1])
        smem = cutlass.memory.SmemAllocator()
        ab = ops.NUMERIC[config.a.dtype]
        sA = smem.allocate_tensor(ab, layout_a.outer, hw.SMEM_ALIGN, layout_a.inner)  # (BLK_M, BLK_K, STAGE)
        sB = smem.allocate_tensor(ab, layout_b.outer, hw.SMEM_ALIGN, layout_b.inner)  # (BLK_N, BLK_K, STAGE)
        extent = (shape[0], shape[1])
        stores = tuple(
            Output.create(config, matrix, atoms[3][i], outputs[i], extent, smem)
            for i, matrix in enumerate(config.outputs)
        )
        names = tuple(config.epilogue.tensors)
        fetched = {name: atoms[2][i] for i, name in enumerate(names) if atoms[2][i] is not None}
        loads = PieceLoads.create(config, fetched, dict(zip(names, inputs)), smem)
        bound = bind(config, inputs, numbers, scalars, extent)
        vectors = Vectors.create(config, bound, smem)
        barriers = smem.allocate_array(cutlass.Int64, 2 * config.stages)
        ring = Ring(barriers, barriers + config.stages, config.stages, config.cluster)

        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        cluster_m, cluster_n = config.cluster
        row, column = rank % cluster_m, rank // cluster_m
        row_mask = sum(1 << (j * cluster_m) for j in range(cluster_n))  # CTAs of cluster row 0
        column_mask = (1 << cluster_m) - 1  # CTAs of cluster column 0
        peers_a = (column, cluster_n, cutlass.Int16(row_mask << row))
        peers_b = (row, cluster_m, cutlass.Int16(column_mask << (column * cluster_m)))
        loads_a = _loaders(config.a, atoms[0], mA, sA, peers_a, 1)
        loads_b = _loaders(config.b, atoms[1], mB, sB, peers_b, config.gates)
        element = config.a.dtype.bytes * block_k
        tx = element * (block_m * (config.a.load == "tma") + block_n * (config.b.load == "tma"))
        tiles = (
            cluster_tiles(shape[0], block_m, cluster_m),
            cluster_tiles(shape[1], config.columns, cluster_n),
            shape[3],
        )
        partials = reduce.partials(config.epilogue.reductions, addresses, walk[2:], (*extent, shape[3]))
        epilogue = Epilogue(config, bound, loads, vectors, stores, partials, tiles[1] * cluster_n)
        return Frame(config, ring, rank, tiles, loads_a, loads_b, tx, sA, sB, epilogue)

    @cute.jit
    def initialise(self, full_arrivals: cutlass.Constexpr, consumer_warps: cutlass.Constexpr):
        """Initialise every barrier and let the whole cluster see them; prefetch the tensor maps."""
        thread, _, _ = cute.arch.thread_idx()
        if thread == 0:
            self.ring.init(full_arrivals, consumer_warps)
            if cutlass.const_expr(self.epilogue.loads is not None):
                self.epilogue.loads.init()
            cute.arch.mbarrier_init_fence()
        if thread // hw.WARP == 1:
            for atom in self._atoms():
                cpasync.prefetch_descriptor(atom)
        if cutlass.const_expr(self.config.cluster_size > 1):
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def _atoms(self) -> list[Any]:
        """Every TMA atom once."""
        loads = [x for x in (self.loads_a[0], self.loads_b[0]) if isinstance(x, TmaLoad)]
        pieces = [] if self.epilogue.loads is None else list(self.epilogue.loads.loads.values())
        return [x.atom for x in (*loads, *pieces, *self.epilogue.outputs) if x.atom is not None]

    def cta_tile(self, place_m: Any, place_n: Any) -> tuple[Any, Any]:
        """This CTA's tile of a cluster tile."""
        cluster_m, cluster_n = self.config.cluster
        return place_m * cluster_m + self.rank % cluster_m, place_n * cluster_n + self.rank // cluster_m

    @cute.jit
    def load(self, tile_m: Any, tile_n: Any, k_tile: Any, batch: Any, stage: Any, thread: Any):
        """Fill one empty stage with both operands' tiles and arrive on its full barrier."""
        work = tuple(
            (x, tile) for loads, tile in ((self.loads_a, tile_m), (self.loads_b, tile_n)) for x in loads
        )
        if thread // hw.WARP == 0:
            if cutlass.const_expr(self.tx_bytes > 0):
                self.ring.expect(stage, self.tx_bytes)
            for loader, tile in work:
                if cutlass.const_expr(isinstance(loader, TmaLoad)):
                    loader.load(tile, k_tile, batch, self.ring, stage)
        for loader, tile in work:
            if cutlass.const_expr(isinstance(loader, GatherLoad)):
                loader.load(tile, k_tile, batch, stage, thread)
        if cutlass.const_expr(self.config.gathers):
            cute.arch.fence_proxy("async.shared", space="cta")  # the threads' stores before WGMMA reads
            cute.arch.mbarrier_arrive(self.ring.full + stage)

    def fragments(self, mma: cute.TiledMma, group: Any) -> tuple[Any, Any, Any]:
        """A warpgroup's descriptors of A and B and its fp32 accumulators."""
        part = mma.get_slice(group * hw.WARPGROUP)
        tCrA = mma.make_fragment_A(part.partition_A(self.sA))  # (MMA, MMA_M, MMA_K, STAGE)
        tCrB = mma.make_fragment_B(part.partition_B(self.sB))  # (MMA, MMA_N, MMA_K, STAGE)
        shape = part.partition_shape_C(self.config.tile[:2])
        return tCrA, tCrB, cute.make_rmem_tensor(shape, cutlass.Float32)  # ((2, 2, BLK_N / 8), MMA_M, 1)


def _loaders(matrix: Any, atom: Any, tensor: Any, smem: Any, peers: Any, gates: int) -> tuple:
    """The loaders that an operand's config asks for: one, or one for each half of a gated B."""
    box = (cute.size(smem, mode=[0]) // gates, cute.size(smem, mode=[1]))
    found = []
    for gate in range(gates):
        part = smem if gates == 1 else cute.local_tile(smem, box, (gate, 0, None))
        half = None if gates == 1 else gate
        if matrix.load == "tma":
            found.append(TmaLoad.create(atom, tensor, part, box, peers, half))
        else:
            found.append(GatherLoad(tensor, part, box, matrix.major not in ("m", "n"), half))
    return tuple(found)
