# SPDX-License-Identifier: Apache-2.0
"""Kernel family 1: a producer warpgroup feeds consumer warpgroups through a ring of shared-memory stages.

Roles of a CTA, by warpgroup:
    0        producer: warp 0 issues TMA; with a gathered operand all four warps load it.
    1 .. C   consumers: WGMMA on their rows of the tile, then the epilogue; the producer meanwhile fills
             the ring with the next tile's stages.

Of a pingpong kernel the consumers take tiles in turn, each a whole one, and pass over the other's stages of
the ring. The ring is filled in the tiles' order, so one's mainloop follows the other's, and its epilogue
runs while the other multiplies.

Shared memory and barriers are those of the plan (`KernelPlan.smem`, `KernelPlan.barriers`).
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels import scheduler
from cutegemm.kernels.frame import Frame, launch_operands
from cutegemm.kernels.mainloop import multiply
from cutegemm.kernels.operands import tiled_mma
from cutegemm.kernels.pieces import Role
from cutegemm.kernels.ring import advance, skip
from cutegemm.kernels.turns import Turns


class WarpSpecializedGemm:
    """The driver of one `KernelConfig` of family "warp_specialized"."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, walk, stream: cuda.CUstream):
        """Launch; the arguments are those of `kernels.launch`."""
        tensors, atoms = launch_operands(self.config, addresses, shape, strides)
        size = self.config.cluster_size
        self.kernel(tensors, atoms, shape, numbers, walk).launch(
            grid=(walk[1] * size, 1, 1),
            block=(self.config.threads, 1, 1),
            cluster=(size, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tensors, atoms, shape, numbers, walk):
        """The CTA: set-up, role dispatch, tile loops."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        group = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        frame = Frame.create(config, tensors, atoms, shape, numbers, walk)
        frame.initialise(self._full_arrivals(), config.team * 4)

        cluster, _, _ = cute.arch.block_idx()
        cluster = cluster // config.cluster_size
        tiles = frame.tiles
        k_tiles = (shape[2] + (config.tile[2] - 1)) // config.tile[2]

        if group == 0:
            if cutlass.const_expr(config.registers is not None):
                cute.arch.setmaxregister_decrease(config.registers[0])
            self._produce(frame, thread, cluster, walk[:2], tiles, k_tiles)
        else:
            if cutlass.const_expr(config.registers is not None):
                cute.arch.setmaxregister_increase(config.registers[1])
            self._consume(frame, thread - hw.WARPGROUP, cluster, walk[:2], tiles, k_tiles)

    def _full_arrivals(self) -> int:
        tma = 1 if "tma" in (self.config.a.load, self.config.b.load) else 0
        return tma + (hw.WARPGROUP if self.config.gathers else 0)

    @cute.jit
    def _produce(
        self, frame: cutlass.Constexpr, thread: Any, cluster: Any, walk: Any, tiles: Any, k_tiles: Any
    ):
        """Fill the ring, tile after tile."""
        config, ring = self.config, frame.ring
        group, clusters = walk
        stage, phase = cutlass.Int32(0), cutlass.Int32(0)
        if thread // hw.WARP == 0 or cutlass.const_expr(self.config.gathers):
            index = cluster
            while index < tiles[0] * tiles[1] * tiles[2]:
                place_m, place_n, batch = scheduler.tile_of(index, tiles[0], tiles[1], group, config.raster)
                tile_m, tile_n = frame.cta_tile(place_m, place_n)
                for k in cutlass.range(k_tiles, unroll=1):
                    ring.wait_empty(stage, phase)  # until the consumers released the stage
                    frame.load(tile_m, tile_n, k, batch, stage, thread)
                    stage, phase = advance(stage, phase, config.stages)
                index += clusters
            if cutlass.const_expr(config.cluster_size > 1):
                # No CTA of the cluster may end while another still writes or signals into it.
                for _ in cutlass.range(config.stages, unroll=1):
                    ring.wait_empty(stage, phase)
                    stage, phase = advance(stage, phase, config.stages)

    @cute.jit
    def _consume(
        self, frame: cutlass.Constexpr, thread: Any, cluster: Any, walk: Any, tiles: Any, k_tiles: Any
    ):
        """Multiply and store, tile after tile."""
        config = self.config
        group, clusters = walk
        warpgroup = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        turn = warpgroup if cutlass.const_expr(config.pingpong) else cutlass.Int32(0)  # of the first tile
        turns = config.consumers // config.team
        band = cutlass.Int32(0) if cutlass.const_expr(config.pingpong) else warpgroup
        mma = tiled_mma(config, config.team)
        tCrA, tCrB, acc = frame.fragments(mma, band)
        role = Role(warpgroup, band, thread % hw.WARPGROUP)
        position = skip((cutlass.Int32(0), cutlass.Int32(0)), turn * k_tiles, config.stages)
        state = frame.epilogue.start()
        order = Turns(config, warpgroup)
        order.start()
        index = cluster + turn * clusters
        while index < tiles[0] * tiles[1] * tiles[2]:
            place_m, place_n, batch = scheduler.tile_of(index, tiles[0], tiles[1], group, config.raster)
            tile_m, tile_n = frame.cta_tile(place_m, place_n)
            tile = (tile_m, tile_n, batch)
            ahead = frame.epilogue.ahead(role, tile)
            order.take()
            follows = index + clusters < tiles[0] * tiles[1] * tiles[2]
            position = multiply(mma, acc, (tCrA, tCrB), (frame.ring, frame.rank, order), position, (k_tiles, follows))
            if cutlass.const_expr(turns > 1):
                position = skip(position, (turns - 1) * k_tiles, config.stages)
            state = frame.epilogue.finish(acc, role, tile, ahead, state)
            index += clusters * turns
        frame.epilogue.end(role)
