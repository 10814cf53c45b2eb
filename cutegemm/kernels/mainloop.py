# SPDX-License-Identifier: Apache-2.0
"""The consumers' side of the mainloop: WGMMA over the ring's stages, one stage in flight."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.ring import advance


@cute.jit
def multiply_stage(
    mma: cute.TiledMma, acc: cute.Tensor, tCrA: cute.Tensor, tCrB: cute.Tensor, stage: Any
) -> None:
    """Issue and commit the WGMMAs of one stage: acc += A[:, stage] @ B[:, stage]."""
    for block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
        cute.gemm(mma, acc, tCrA[None, None, block, stage], tCrB[None, None, block, stage], acc)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@cute.jit
def multiply(
    mma: cute.TiledMma, acc: cute.Tensor, fragments: Any, ring: cutlass.Constexpr, position: Any, work: Any
) -> Any:
    """acc = A @ B over k_tiles >= 1 stages of the ring; returns the position after them.

    Stage i is released when the WGMMAs of stage i + 1 have been issued and those of i have finished. A ring
    of one stage cannot hold i + 1 beside i: there each stage is finished and released before the next.

    Args:
        mma, acc: the consumers' tiled MMA and a thread's fp32 accumulators.
        fragments: (tCrA, tCrB), descriptors (MMA, MMA_M or MMA_N, MMA_K, STAGE).
        ring: (Ring, CTA rank in its cluster, the warpgroup's Turns).
        position: (stage, phase) of the first stage.
        work: (k_tiles, whether this CTA has another tile after this one).
    """
    barriers, rank, turns = ring
    k_tiles, follows = work
    tCrA, tCrB = fragments
    stage, phase = position
    barriers.wait_full(stage, phase)  # until TMA (and gathering threads) filled the stage
    mma.set(warpgroup.Field.ACCUMULATE, False)
    warpgroup.fence()
    multiply_stage(mma, acc, tCrA, tCrB, stage)
    previous = stage
    stage, phase = advance(stage, phase, barriers.stages)
    for _ in cutlass.range(1, k_tiles, unroll=1):
        if cutlass.const_expr(barriers.stages == 1):
            warpgroup.wait_group(0)
            barriers.release(previous, rank)
        barriers.wait_full(stage, phase)
        multiply_stage(mma, acc, tCrA, tCrB, stage)
        if cutlass.const_expr(barriers.stages > 1):
            warpgroup.wait_group(1)  # the previous stage's WGMMAs have read it
            barriers.release(previous, rank)
        previous = stage
        stage, phase = advance(stage, phase, barriers.stages)
    turns.hand_over(follows)
    warpgroup.wait_group(0)
    barriers.release(previous, rank)
    return stage, phase
