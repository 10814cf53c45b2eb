# SPDX-License-Identifier: Apache-2.0
"""Kernel family 2: no warp specialisation. Every warpgroup computes; warp 0 also issues TMA.

With one stage, load and multiply alternate. With S stages, S - 1 loads are in flight while one stage is
multiplied: a stage is refilled when every warpgroup has finished the WGMMAs on it, which a CTA-wide barrier
tells warp 0. What it lacks beside the warp-specialised kernel: loads wait for the epilogue, and warps wait
for each other every stage.

Barriers: full, per stage (the ring's; TMA's elected thread -> every thread); the CTA's barrier 0 stands for
the ring's empty barriers, which stay unused.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels import scheduler
from cutegemm.kernels.frame import Frame, launch_operands
from cutegemm.kernels.mainloop import multiply_stage
from cutegemm.kernels.operands import tiled_mma
from cutegemm.kernels.pieces import Role
from cutegemm.kernels.ring import advance


class MultistageGemm:
    """The driver of one `KernelConfig` of family "multistage"."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, walk, stream: cuda.CUstream):
        """Launch; the arguments are those of `kernels.launch`."""
        tensors, atoms = launch_operands(self.config, addresses, shape, strides)
        self.kernel(tensors, atoms, shape, numbers, walk).launch(
            grid=(walk[1], 1, 1), block=(self.config.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def kernel(self, tensors, atoms, shape, numbers, walk):
        """The CTA: set-up and the tile loop."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        index, _, _ = cute.arch.block_idx()
        frame = Frame.create(config, tensors, atoms, shape, numbers, walk)
        frame.initialise(1, config.consumers * 4)
        tiles = frame.tiles
        k_tiles = (shape[2] + (config.tile[2] - 1)) // config.tile[2]
        group = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        mma = tiled_mma(config, config.consumers)
        tCrA, tCrB, acc = frame.fragments(mma, group)
        role = Role(group, group, thread % hw.WARPGROUP)
        position, state = (cutlass.Int32(0), cutlass.Int32(0)), frame.epilogue.start()
        while index < tiles[0] * tiles[1] * tiles[2]:
            tile = scheduler.tile_of(index, tiles[0], tiles[1], walk[0], config.raster)
            ahead = frame.epilogue.ahead(role, tile)
            position = self._multiply(frame, mma, acc, (tCrA, tCrB), position, (tile, k_tiles, thread))
            state = frame.epilogue.finish(acc, role, tile, ahead, state)
            index += walk[1]
        frame.epilogue.end(role)

    @cute.jit
    def _multiply(self, frame: cutlass.Constexpr, mma: cute.TiledMma, acc: cute.Tensor, fragments: Any, position: Any,
                  work: Any):  # fmt: skip
        """acc = A @ B for one tile; returns the ring position after it."""
        tCrA, tCrB = fragments
        (tile_m, tile_n, batch), k_tiles, thread = work
        stage, phase = position
        stages, ring = self.config.stages, frame.ring
        for ahead in cutlass.range_constexpr(stages - 1):
            if ahead < k_tiles:
                frame.load(tile_m, tile_n, ahead, batch, (stage + ahead) % stages, thread)
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.fence()
        for k in cutlass.range(k_tiles, unroll=1):
            if cutlass.const_expr(stages == 1):
                frame.load(tile_m, tile_n, k, batch, stage, thread)
            ring.wait_full(stage, phase)
            multiply_stage(mma, acc, tCrA, tCrB, stage)
            if cutlass.const_expr(stages == 1):
                warpgroup.wait_group(0)
                cute.arch.sync_threads()  # every warpgroup has read the stage
            else:
                warpgroup.wait_group(1)
                cute.arch.sync_threads()  # every warpgroup has read the previous stage
                if k + (stages - 1) < k_tiles:
                    frame.load(
                        tile_m, tile_n, k + (stages - 1), batch, (stage + (stages - 1)) % stages, thread
                    )
            stage, phase = advance(stage, phase, stages)
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # every stage may be refilled for the next tile
        return stage, phase
