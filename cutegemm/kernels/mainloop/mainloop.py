# SPDX-License-Identifier: Apache-2.0
"""The consumers' side of the mainloop: WGMMA over the pipeline's stages, one stage in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.kernels.mainloop.pingpong_order import PingpongOrder
from cutegemm.kernels.mainloop.pipeline import Pipeline, advance
from cutegemm.kernels.mainloop.ragged_tail import RaggedTail


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

    Stage i is released when the WGMMAs of stage i + 1 have been issued and those of i have finished. A pipeline
    of one stage cannot hold i + 1 beside i: there each stage is finished and released before the next.
    """

    pipeline: Pipeline
    fragments: Fragments
    turns: PingpongOrder
    every: int = 0  # stages after which partial sums are promoted to fp32; 0 is never
    partial: Any = None  # the element type of those
    tail: RaggedTail | None = None  # of groups along K
    scales: Any = None  # of operands' blocks (`block_scales`)

    @cute.jit
    def multiply(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, asked: cutlass.Constexpr, follows: Any
    ) -> Any:
        """acc = A @ B over a work's k tiles, at least one; returns the position after them.

        Args:
            mma, acc: the consumers' tiled MMA and a thread's accumulators.
            position: (stage, phase) of the first stage.
            asked: the thread's role and the work.
            follows: whether this CTA has another work after this one.
        """
        work = asked[1]
        last = (work.k_tiles - 1, work.rest)
        if cutlass.const_expr(len(self.scales.tensors) > 0):
            position = self._scaled(mma, acc, position, asked, follows)
        elif cutlass.const_expr(self.every > 0):
            position = self._promoted(mma, acc, position, work.k_tiles, follows, last)
        else:
            position = self._plain(mma, acc, position, work.k_tiles, follows, last)
        return position

    @cute.jit
    def _scaled(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, asked: cutlass.Constexpr, follows: Any
    ) -> Any:
        """As `multiply`: WGMMA adds up a stage, then the threads add its sums, times their scales, to theirs in fp32.

        Scales are waited for while WGMMA runs.
        """
        pipeline, scales, (role, work) = self.pipeline, self.scales, asked
        part = cute.make_rmem_tensor(acc.shape, self.partial)
        acc.fill(0.0)
        scales.begin(role, work)
        stage, phase = position
        for k in cutlass.range(work.k_tiles, unroll=1):
            pipeline.wait_full(stage, phase)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            warpgroup.fence()
            multiply_stage(mma, part, self.fragments, stage)
            self.turns.hand_over(cutlass.Boolean(follows) & cutlass.Boolean(k == work.k_tiles - 1))
            scales.next(role, work, k)
            warpgroup.wait_group(0)
            pipeline.release(stage)
            scales.add(acc, part, role, k)
            stage, phase = advance(stage, phase, pipeline.stages)
        return stage, phase

    @cute.jit
    def _trim(self, k: Any, stage: Any, last: cutlass.Constexpr) -> None:
        """Zero what is behind the end of a group along K in a full stage, if the k-th is the `last`."""
        if cutlass.const_expr(self.tail is not None):
            if k == last[0]:
                self.tail.zero(stage, last[1])

    @cute.jit
    def _promoted(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, k_tiles: Any, follows: Any, last: Any
    ) -> Any:
        """As `multiply`: WGMMA adds up `every` stages, then the threads add its sums to theirs in fp32.

        Meanwhile the tensor cores work for another warpgroup.
        """
        every = self.every
        part = cute.make_rmem_tensor(acc.shape, self.partial)
        acc.fill(0.0)
        if cutlass.const_expr(every == 1):
            for k in cutlass.range(k_tiles, unroll=1):
                more = cutlass.Boolean(follows) & cutlass.Boolean(k == k_tiles - 1)
                position = self._plain(mma, part, position, 1, more, (last[0] - k, last[1]))
                _add(acc, part)
        else:
            for first in cutlass.range(0, k_tiles, every, unroll=1):
                count = cutlass.min(k_tiles - first, every)
                more = cutlass.Boolean(follows) & cutlass.Boolean(first + every >= k_tiles)
                position = self._plain(mma, part, position, count, more, (last[0] - first, last[1]))
                _add(acc, part)
        return position

    @cute.jit
    def _plain(
        self, mma: cute.TiledMma, acc: cute.Tensor, position: Any, k_tiles: Any, follows: Any, last: Any
    ) -> Any:
        """As `multiply`: WGMMA adds up all of K. What hands over the turn comes when all WGMMAs are issued."""
        pipeline = self.pipeline
        stage, phase = position
        pipeline.wait_full(stage, phase)  # until TMA (and gathering threads) filled the stage
        self._trim(0, stage, last)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        multiply_stage(mma, acc, self.fragments, stage)
        previous = stage
        stage, phase = advance(stage, phase, pipeline.stages)
        if cutlass.const_expr(not isinstance(k_tiles, int)):  # else one stage
            for k in cutlass.range(1, k_tiles, unroll=1):
                if cutlass.const_expr(pipeline.stages == 1):
                    warpgroup.wait_group(0)
                    pipeline.release(previous)
                pipeline.wait_full(stage, phase)
                self._trim(k, stage, last)
                multiply_stage(mma, acc, self.fragments, stage)
                if cutlass.const_expr(pipeline.stages > 1):
                    warpgroup.wait_group(1)  # the previous stage's WGMMAs have read it
                    pipeline.release(previous)
                previous = stage
                stage, phase = advance(stage, phase, pipeline.stages)
        self.turns.hand_over(follows)
        warpgroup.wait_group(0)
        pipeline.release(previous)
        return stage, phase
