# SPDX-License-Identifier: Apache-2.0
"""The consumers' side of the mainloop: WGMMA over the ring's stages, one stage in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.ring import Ring, advance
from cutegemm.kernels.turns import Turns


@dataclass(frozen=True)
class Fragments:
    """A warpgroup's view of both operands' stages: WGMMA descriptors."""

    a: Any  # (MMA, MMA_M, MMA_K, STAGE)
    b: Any  # (MMA, MMA_N, MMA_K, STAGE)


@cute.jit
def multiply_stage(mma: cute.TiledMma, acc: cute.Tensor, fragments: cutlass.Constexpr, stage: Any) -> None:
    """Issue and commit the WGMMAs of one stage: acc += A[:, stage] @ B[:, stage]."""
    tCrA, tCrB = fragments.a, fragments.b
    for block in cutlass.range_constexpr(cute.size(tCrA, mode=[2])):
        cute.gemm(mma, acc, tCrA[None, None, block, stage], tCrB[None, None, block, stage], acc)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


def _add(acc: cute.Tensor, part: cute.Tensor) -> None:
    """Add a thread's partial sums to its accumulators."""
    for i in range(cute.size(acc)):
        acc[i] = acc[i] + acc.element_type(part[i])


@dataclass(frozen=True)
class Mainloop:
    """The mainloop of a consumer warpgroup that a producer feeds.

    Stage i is released when the WGMMAs of stage i + 1 have been issued and those of i have finished. A ring
    of one stage cannot hold i + 1 beside i: there each stage is finished and released before the next.
    """

    ring: Ring
    fragments: Fragments
    turns: Turns
    every: int = 0  # stages after which partial sums are promoted to fp32; 0 is never
    partial: Any = None  # the element type of those

    @cute.jit
    def multiply(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, k_tiles: Any, follows: Any
    ) -> Any:
        """acc = A @ B over k_tiles >= 1 stages of the ring; returns the position after them.

        Args:
            mma, acc: the consumers' tiled MMA and a thread's accumulators.
            position: (stage, phase) of the first stage.
            follows: whether this CTA has another work after this one.
        """
        if cutlass.const_expr(self.every > 0):
            position = self._promoted(mma, acc, position, k_tiles, follows)
        else:
            position = self._plain(mma, acc, position, k_tiles, follows)
        return position

    @cute.jit
    def _promoted(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, k_tiles: Any, follows: Any
    ) -> Any:
        """As `multiply`: WGMMA adds up `every` stages, then the threads add its sums to theirs in fp32.

        A warpgroup finishes each stage before it issues the next one; meanwhile the tensor cores work for another.
        """
        ring, every = self.ring, self.every
        part = cute.make_rmem_tensor(acc.shape, self.partial)
        acc.fill(0.0)
        stage, phase = position
        for k in cutlass.range(k_tiles, unroll=1):
            ring.wait_full(stage, phase)
            mma.set(warpgroup.Field.ACCUMULATE, False if cutlass.const_expr(every == 1) else k % every != 0)
            warpgroup.fence()
            multiply_stage(mma, part, self.fragments, stage)
            if cutlass.const_expr(self.turns.config.pingpong):
                # all WGMMAs of this mainloop are issued
                self.turns.hand_over(cutlass.Boolean(follows) & cutlass.Boolean(k == k_tiles - 1))
            warpgroup.wait_group(0)
            ring.release(stage)
            if cutlass.const_expr(every == 1):
                _add(acc, part)
            elif k % every == every - 1 or k == k_tiles - 1:
                _add(acc, part)
            stage, phase = advance(stage, phase, ring.stages)
        return stage, phase

    @cute.jit
    def _plain(self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, k_tiles: Any, follows: Any) -> Any:
        """As `multiply`: WGMMA adds up all of K."""
        ring = self.ring
        stage, phase = position
        ring.wait_full(stage, phase)  # until TMA (and gathering threads) filled the stage
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        multiply_stage(mma, acc, self.fragments, stage)
        previous = stage
        stage, phase = advance(stage, phase, ring.stages)
        for _ in cutlass.range(1, k_tiles, unroll=1):
            if cutlass.const_expr(ring.stages == 1):
                warpgroup.wait_group(0)
                ring.release(previous)
            ring.wait_full(stage, phase)
            multiply_stage(mma, acc, self.fragments, stage)
            if cutlass.const_expr(ring.stages > 1):
                warpgroup.wait_group(1)  # the previous stage's WGMMAs have read it
                ring.release(previous)
            previous = stage
            stage, phase = advance(stage, phase, ring.stages)
        self.turns.hand_over(follows)
        warpgroup.wait_group(0)
        ring.release(previous)
        return stage, phase
