# SPDX-License-Identifier: Apache-2.0
"""Kernel family 4: exact fp32 on the CUDA cores, for any strides and alignments.

A CTA computes one tile of D; a thread owns THREAD_M x THREAD_N elements of it as groups of four rows and
four columns, spread so that a warp's shared loads are contiguous (`simt_tile`). Per k step it reads
THREAD_M + THREAD_N numbers from shared memory and does THREAD_M * THREAD_N fused multiply-adds.

Synchronisation, with two shared-memory stages, for k tile t:
    before the last k step: every thread writes tile t + 1 to the other stage, whose last readers passed
    the barrier of tile t - 1; then the CTA's barrier; then the fragments of tile t + 1 are read.
Global loads of tile t + 1 are issued at the start of tile t. The first tile takes the remainder of k, so
that no later load needs a guard.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm import hardware as hw
from cutegemm.config import SIMT_LANES as LANES
from cutegemm.config import SimtConfig
from cutegemm.errors import CompileError, field_error
from cutegemm.kernels import launch, reduce, scheduler
from cutegemm.kernels import operands as ops
from cutegemm.kernels.fusion import bind
from cutegemm.kernels.operands import NUMERIC
from cutegemm.kernels.simt_epilogue import SimtEpilogue
from cutegemm.kernels.simt_tile import GROUP, TileLoad, TileShape

RESIDENT = 512  # threads per SM: 128 registers each, enough for 8 x 8 accumulators and vector loads
RESIDENT_STRIDED = 256  # up to 255 registers each: element loads hold many more addresses
SMEM_CARVEOUT = 50  # percent of L1 to shared memory: two CTAs of at most 34 KiB each, and a cache for strided loads


class SimtGemm:
    """The driver of one `SimtConfig`.

    Raises:
        CompileError: a tile that its threads cannot share evenly.
    """

    def __init__(self, config: SimtConfig) -> None:
        self.config = config
        for axis, size, own, lanes in zip("mn", config.tile, config.thread_tile, LANES, strict=False):
            if own % GROUP or size % (own * lanes):
                rule = f"along {axis} must be a multiple of {lanes} lanes x {own} elements in groups of {GROUP}"
                raise field_error(CompileError, "tile", config.tile, rule)
        block_m, block_n, block_k = config.tile
        self.shapes = tuple(
            TileShape(matrix=matrix, rows=rows, depth=block_k, vector=vector, threads=config.threads, half=half)
            for matrix, rows, vector, half in (
                (config.a, block_m, config.vector[0], None),
                (config.b, block_n, config.vector[1], LANES[1] * GROUP if config.gates == 2 else None),
            )
        )
        for shape in self.shapes:
            if shape.rows * block_k % (shape.vector * config.threads) or max(shape.lanes, shape.threads) % min(
                shape.lanes, shape.threads
            ):
                rule = f"{config.threads} threads cannot share a {shape.rows} x {block_k} tile in vectors of this size"
                raise field_error(CompileError, "vector", shape.vector, rule, 1)

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, walk, stream: cuda.CUstream):
        """Launch; the arguments are those of `kernels.launch`."""
        config = self.config
        places, steps = launch.Addresses.of(config, addresses), launch.Strides.of(config, strides)
        m, n, k, batch = shape[0], shape[1], shape[2], shape[3]
        mA = _tensor(config.a, places.a, (m, k, shape[4]), (steps.a, "mk"), config.vector[0])
        extent, stride = launch.b_layout(config, steps, shape)
        mB = _tensor(config.b, places.b, extent, (stride, "nk"), config.vector[1])
        inputs = launch.input_tensors(config, places, steps, shape)
        outputs = tuple(
            _tensor(x, places.outputs[i], (m, n, batch), (steps.outputs[i], "mn"), config.vector[2])
            for i, x in enumerate(config.outputs)
        )
        tensors = (mA, mB, inputs, outputs, places.partials, launch.scalar_tensors(places))
        tiles = scheduler.cluster_tiles(m, config.tile[0], 1) * scheduler.cluster_tiles(n, config.columns, 1) * batch
        self.kernel(tensors, shape, numbers, walk).launch(
            grid=(tiles, 1, 1),
            block=(config.threads, 1, 1),
            min_blocks_per_mp=self._residents(),
            preferred_smem_carveout=SMEM_CARVEOUT,
            stream=stream,
        )

    def _residents(self) -> int:
        """CTAs per SM to leave registers for."""
        threads = RESIDENT if min(self.config.vector[:2]) > 1 else RESIDENT_STRIDED
        return max(1, threads // self.config.threads) if self.config.thread_tile == (8, 8) else 1

    @cute.kernel
    def kernel(self, tensors, shape, numbers, walk):
        """The CTA: its tile, the k loop, the epilogue."""
        config = self.config
        mA, mB, inputs, outputs, addresses, scalars = tensors
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        tiles_m = scheduler.cluster_tiles(shape[0], config.tile[0], 1)
        tiles_n = scheduler.cluster_tiles(shape[1], config.columns, 1)
        tile_m, tile_n, batch = scheduler.tile_of(index, tiles_m, tiles_n, walk[0], "m")
        rows, cols = self._owned(thread)
        load_a = TileLoad.create(self.shapes[0], mA, tile_m, batch, thread)
        load_b = TileLoad.create(self.shapes[1], mB, tile_n, batch, thread)
        acc = cute.make_rmem_tensor(config.thread_tile[0] * config.thread_tile[1], cutlass.Float32)
        acc.fill(0.0)
        self._multiply(acc, (load_a, load_b), (rows, cols), shape[2])
        extent = (shape[0], shape[1])
        bound = bind(config, inputs, numbers, scalars, extent)
        partials = reduce.partials(config.epilogue.reductions, addresses, walk[2:], (*extent, shape[3]))
        epilogue = SimtEpilogue(config, bound, outputs, partials, tiles_n)
        epilogue.finish(acc, (rows, self._stored(cols)), (tile_m, tile_n, batch), thread)

    def _owned(self, thread: Any) -> tuple[list, list]:
        """First rows and first columns, within the tile, of the thread's groups of four."""
        config = self.config
        lane = thread % hw.WARP
        warp = cute.arch.make_warp_uniform(thread // hw.WARP)
        warps_m = config.tile[0] // (LANES[0] * config.thread_tile[0])
        lane_m, lane_n = lane % 2 + lane // 8 * 2, lane // 2 % 4
        row0 = warp % warps_m * (LANES[0] * config.thread_tile[0]) + lane_m * GROUP
        col0 = warp // warps_m * (LANES[1] * config.thread_tile[1]) + lane_n * GROUP
        rows = [row0 + g * LANES[0] * GROUP for g in range(config.thread_tile[0] // GROUP)]
        cols = [col0 + g * LANES[1] * GROUP for g in range(config.thread_tile[1] // GROUP)]
        return rows, cols

    def _stored(self, cols: list) -> list:
        """First output columns of the groups; of a gated pair the second is the first's other accumulator."""
        if self.config.gates == 1:
            return cols
        half = LANES[1] * GROUP  # columns of one half side by side: a warp's group of each thread
        return [col // (2 * half) * half + col % half for col in cols[::2]]

    @cute.jit
    def _multiply(self, acc: cute.Tensor, loads: cutlass.Constexpr, owned: cutlass.Constexpr, k: Any) -> None:
        """acc += A tile @ B tile over all of k (none when k is 0)."""
        depth = self.config.tile[2]
        if k > 0:
            k_tiles = (k + (depth - 1)) // depth
            first = k - (k_tiles - 1) * depth  # columns of the first tile
            for load in loads:
                load.fetch_first(first)
                load.commit(cutlass.Int32(0))
            cute.arch.sync_threads()  # the first tile is written
            fragments = tuple(cute.make_rmem_tensor(own, cutlass.Float32) for own in self.config.thread_tile)
            for load, groups, fragment in zip(loads, owned, fragments):
                _copy(load.fragment(cutlass.Int32(0), 0, groups), fragment)
            for t in cutlass.range(k_tiles, unroll=1):
                self._tile(acc, fragments, (loads, owned), (t % 2, first + t * depth, t + 1 < k_tiles))

    def _tile(self, acc: cute.Tensor, fragments: tuple, operands: tuple, position: tuple) -> None:
        """One k tile. On entry and exit `fragments` hold the next k step's numbers.

        Args:
            acc: (THREAD_M * THREAD_N,), row by row.
            operands: (loads of A and B, the thread's rows and columns).
            position: (stage, first k of the next tile, whether there is a next tile).
        """
        loads, owned = operands
        stage, next_k, more = position
        depth = self.config.tile[2]
        sums = [acc[x] for x in range(cute.size(acc))]
        a, b = ([r[x] for x in range(cute.size(r))] for r in fragments)
        for load in loads:
            load.fetch(next_k, more)
        for step in range(depth):
            reading, line = stage, step + 1
            if step == depth - 1:
                reading, line = 1 - stage, 0
                for load in loads:
                    load.commit(reading)
                cute.arch.sync_threads()  # tile t + 1 is written, and every thread has read all of tile t
            next_a, next_b = (load.fragment(reading, line, groups) for load, groups in zip(loads, owned, strict=True))
            for i, x in enumerate(a):
                for j, y in enumerate(b):
                    at = i * len(b) + j
                    sums[at] = cute.math.fma(x, y, sums[at])
            a, b = next_a, next_b
        _copy(sums, acc)
        _copy(a, fragments[0])
        _copy(b, fragments[1])


def _copy(values: list[Any], target: cute.Tensor) -> None:
    for x, value in enumerate(values):
        target[x] = value


def _tensor(matrix: Any, address: Any, shape: Any, axes: tuple, vector: int) -> cute.Tensor:
    """A (rows, cols, batch) view whose base and strides are known to be multiples of `vector` elements."""
    strides, names = axes
    ptr = cute.make_ptr(
        NUMERIC[matrix.dtype], address, cute.AddressSpace.gmem, assumed_align=vector * matrix.dtype.bytes
    )
    known = tuple(
        1 if axis == matrix.major else ops.assumed(x, vector) for axis, x in zip(names + "l", strides, strict=True)
    )
    return cute.make_tensor(ptr, cute.make_layout(shape, stride=known))
