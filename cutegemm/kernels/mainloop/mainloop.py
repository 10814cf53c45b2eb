# SPDX-License-Identifier: Apache-2.0
"""The consumers' side of the mainloop: WGMMA over the pipeline's stages, one stage in flight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.arch.instructions import Instruction
from cutegemm.kernels.host.operand_layouts import tiled_mma
from cutegemm.kernels.mainloop.ordered_issue import IssueOrder
from cutegemm.kernels.mainloop.pipeline import Pipeline, advance
from cutegemm.kernels.mainloop.ragged_tail import Ends, RaggedTail


@dataclass(frozen=True)
class Fragments:
    """A warpgroup's view of both operands' stages: WGMMA descriptors."""

    a: Any  # (MMA, MMA_M, MMA_K, STAGE)
    b: Any  # (MMA, MMA_N, MMA_K, STAGE)
    how: Instruction

    @property
    def products(self) -> list[tuple[int, int]]:
        """The K blocks of A and B that WGMMA multiplies, of a stage whose elements may have parts."""
        step = self.how.run // self.how.k if self.how.parts > 1 else 1
        runs = cute.size(self.a, mode=[2]) // (step * self.how.parts)
        return [
            tuple((run * self.how.parts + part) * step + block for part in pair)
            for run in range(runs)
            for pair in self.how.products
            for block in range(step)
        ]


@cute.jit
def multiply_stage(mma: cute.TiledMma, acc: cute.Tensor, fragments: cutlass.Constexpr, stage: Any) -> None:
    """Issue and commit the WGMMAs of one stage: acc += A[:, stage] @ B[:, stage]."""
    tCrA, tCrB = fragments.a, fragments.b
    pairs = fragments.products
    for i in cutlass.range_constexpr(len(pairs)):
        cute.gemm(mma, acc, tCrA[None, None, pairs[i][0], stage], tCrB[None, None, pairs[i][1], stage], acc)
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

    `_plain` asks whether stage i + 2 is full (`Pipeline.is_full`) after it has issued the WGMMAs of stage i + 1 and
    before it waits for those of stage i. In a cluster the answer takes about a hundred cycles, as long as a narrow
    tile's WGMMAs; asked for after stage i is released, it leaves the tensor cores idle.

    Every stage begins with a fence (PTX ISA, wgmma.fence). ptxas inserts missing fences, but where K's range differs
    between the CTAs of a cluster it then also waits after each wgmma (message C7520).
    """

    pipeline: Pipeline
    fragments: Fragments
    mainloop_order: IssueOrder  # of the consumers' mainloops
    wgmma_order: IssueOrder  # of the WGMMAs between promotions
    every: int = 0  # stages after which partial sums are promoted to fp32; 0 is never
    partial: Any = None  # the element type of partial sums
    tail: RaggedTail | None = None  # of groups along K
    scales: Any = None  # of operands' blocks (`block_scales`)

    @cute.jit
    def multiply(
        self,
        mma: cute.TiledMma,
        acc: cute.Tensor,
        position: Any,
        tile: cutlass.Constexpr,
        follows: cutlass.Constexpr,
    ) -> Any:
        """acc = A @ B over a work tile's k tiles; returns the position after them.

        Args:
            mma, acc: the consumers' tiled MMA and a thread's accumulators.
            position: (stage, phase) of the first stage.
            tile: the thread's role and the work tile.
            follows: tells whether this CTA has another work tile after this one. It is asked only when all WGMMAs are
                issued, since the answer may have to be waited for.
        """
        if cutlass.const_expr(self.tail is None):
            position = self._multiply(mma, acc, position, tile, follows)
        elif tile[1].k_tiles > 0:
            position = self._multiply(mma, acc, position, tile, follows)
        else:
            acc.fill(0.0)
            self.mainloop_order.arrive(True, follows)
        return position

    @cute.jit
    def _multiply(
        self,
        mma: cute.TiledMma,
        acc: cute.Tensor,
        position: Any,
        tile: cutlass.Constexpr,
        follows: cutlass.Constexpr,
    ) -> Any:
        """As `multiply`, over at least one k tile."""
        work = tile[1]
        ends = Ends.of(work)
        if cutlass.const_expr(self.scales.config.partial_sets == 2):
            position = self._alternating(acc, position, tile, follows)
        elif cutlass.const_expr(len(self.scales.tensors) > 0):
            position = self._scaled(acc, position, tile, follows)
        elif cutlass.const_expr(self.every > 0):
            position = self._promoted(mma, acc, position, work.k_tiles, follows, ends)
        else:
            position = self._plain(mma, acc, position, work.k_tiles, (True, follows), ends)
        return position

    @cute.jit
    def _scaled(
        self, acc: cute.Tensor, position: Any, tile: cutlass.Constexpr, follows: cutlass.Constexpr
    ) -> Any:
        """As `multiply`: WGMMA adds up a stage, then the threads add the scaled sums to the accumulators."""
        acc.fill(0.0)
        for k in cutlass.range(tile[1].k_tiles, unroll=1):
            position = self._scaled_stage(acc, position, tile, k, follows)
        return position

    def _partial(self, acc: cute.Tensor) -> cute.Tensor:
        """A set of partial sums, of one wgmma's rows: ((2, 2, MMA_COLUMNS / 8), 1, MMA_N)."""
        return cute.make_rmem_tensor((acc.shape[0], 1, *acc.shape[2:]), self.partial)

    @cute.jit
    def _scaled_stage(
        self,
        acc: cute.Tensor,
        position: Any,
        tile: cutlass.Constexpr,
        k: Any,
        follows: cutlass.Constexpr,
    ) -> Any:
        """Multiply and scale the k-th stage, 64 rows at a time.

        Meanwhile the tensor cores run another warpgroup's WGMMAs.
        """
        scales, (stage, phase), (role, work) = self.scales, position, tile
        turn = (cutlass.Boolean(k == work.k_tiles - 1), follows)
        self.pipeline.wait_full(stage, phase)
        self._trim(k, stage, Ends.of(work))
        # reads of many scales between the WGMMAs would delay the later ones
        early, columns = scales.config.column_scales, {}
        if cutlass.const_expr(early):
            columns = scales.read(role, stage, 0, "n")
        for row in cutlass.range_constexpr(acc.shape[1]):
            # a set for each 64 rows: if two share one, ptxas waits after each wgmma (C7511)
            part, last = self._partial(acc), row == acc.shape[1] - 1
            rows = scales.read(role, stage, row, "m") if cutlass.const_expr(early) else {}
            self.wgmma_order.wait()
            self._issue(part, row, stage)
            self.wgmma_order.arrive()
            if cutlass.const_expr(last):
                self.mainloop_order.arrive(*turn)
            found = columns | rows if cutlass.const_expr(early) else scales.read(role, stage, row)
            warpgroup.wait_group(0)
            if cutlass.const_expr(last):
                self._release(stage)
            scales.add(acc, part, row, found)
        return advance(stage, phase, self.pipeline.stages)

    @cute.jit
    def _alternating(
        self, acc: cute.Tensor, position: Any, tile: cutlass.Constexpr, follows: cutlass.Constexpr
    ) -> Any:
        """As `multiply`, promoting every stage, with two sets of partial sums.

        WGMMA fills one set while the threads add the other to their accumulators, times its scales if there are any.
        """
        role, work = tile
        acc.fill(0.0)
        parts, stage = (self._partial(acc), self._partial(acc)), position[0]
        self.pipeline.wait_full(*position)
        self._trim(0, stage, Ends.of(work))
        self._issue(parts[0], 0, stage)
        position = advance(*position, self.pipeline.stages)
        for i in cutlass.range((work.k_tiles - 1) // 2, unroll=1):
            for turn in cutlass.range_constexpr(2):
                stage, position = self._add_between(
                    (acc, parts, turn), tile, i * 2 + turn + 1, stage, position
                )
        if work.k_tiles % 2 == 0:
            stage, position = self._add_between((acc, parts, 0), tile, work.k_tiles - 1, stage, position)
            self.mainloop_order.arrive(True, follows)
            self._add_last(acc, parts[1], role, stage)
        else:
            self.mainloop_order.arrive(True, follows)
            self._add_last(acc, parts[0], role, stage)
        return position

    @cute.jit
    def _add_between(
        self, sums: cutlass.Constexpr, tile: cutlass.Constexpr, k: Any, before: Any, position: Any
    ) -> Any:
        """Issue half of the k-th stage's WGMMAs, add the sums of the stage before, issue the other half.

        A warp can issue only a few WGMMAs ahead: if it issued all first, its additions would overlap the last one only.

        Args:
            sums: the accumulators, both sets of partial sums, and which set has the sums of the stage before.
        """
        acc, parts, turn = sums
        # first, since wgmma.fence waits for reads that are in flight
        found, stage = self.scales.read(tile[0], before, 0), position[0]
        count = len(self.fragments.products)
        half = count // 2
        self.pipeline.wait_full(*position)
        self._trim(k, stage, Ends.of(tile[1]))
        self._issue(parts[1 - turn], 0, stage, (0, half))
        warpgroup.wait_group(1)
        self._release(before)
        self.scales.add(acc, parts[turn], 0, found)
        self._issue(parts[1 - turn], 0, stage, (half, count))
        return stage, advance(*position, self.pipeline.stages)

    @cute.jit
    def _add_last(self, acc: cute.Tensor, part: cute.Tensor, role: cutlass.Constexpr, stage: Any) -> None:
        """Wait for the last stage's WGMMAs, release it and add its sums."""
        found = self.scales.read(role, stage, 0)
        warpgroup.wait_group(0)
        self._release(stage)
        self.scales.add(acc, part, 0, found)

    @cute.jit
    def _issue(
        self, part: cute.Tensor, row: cutlass.Constexpr, stage: Any, which: cutlass.Constexpr = None
    ) -> None:
        """Issue and commit WGMMAs of a stage's row-th rows of A: part = A[row, stage] @ B[stage], or some of those."""
        config = self.scales.config
        mma = tiled_mma(
            config, config.team, config.mma_columns
        )  # its own copy: the ACCUMULATE flag is an SSA value
        tCrA, tCrB = self.fragments.a, self.fragments.b
        pairs = self.fragments.products
        first, end = (0, len(pairs)) if cutlass.const_expr(which is None) else which
        mma.set(warpgroup.Field.ACCUMULATE, first > 0)
        warpgroup.fence()
        for i in cutlass.range_constexpr(first, end):
            a = cute.append_ones(tCrA[None, row, pairs[i][0], stage])
            cute.gemm(mma, part, a, tCrB[None, None, pairs[i][1], stage], part)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def _release(self, stage: Any) -> None:
        """Release a stage. One lane arrives for all, so first every lane must have read its scales."""
        if cutlass.const_expr(len(self.scales.tensors) > 0):
            cute.arch.sync_warp()
        self.pipeline.release(stage)

    @cute.jit
    def _trim(self, k: Any, stage: Any, ends: cutlass.Constexpr) -> None:
        """Zero what a full stage has outside a group along K."""
        if cutlass.const_expr(self.tail is not None):
            self.tail.trim(k, stage, ends)

    @cute.jit
    def _promoted(
        self,
        mma: cute.TiledMma,
        acc: cute.Tensor,
        position: Any,
        k_tiles: Any,
        follows: cutlass.Constexpr,
        ends: cutlass.Constexpr,
    ) -> Any:
        """As `multiply`: WGMMA adds up `every` stages, then the threads add these sums to the accumulators in fp32.

        Meanwhile the tensor cores run another warpgroup's WGMMAs.
        """
        every = self.every
        part = cute.make_rmem_tensor(acc.shape, self.partial)
        acc.fill(0.0)
        if cutlass.const_expr(every == 1):
            for k in cutlass.range(k_tiles, unroll=1):
                turn = (cutlass.Boolean(k == k_tiles - 1), follows)
                position = self._plain(mma, part, position, 1, turn, ends.after(k))
                _add(acc, part)
        else:
            for first in cutlass.range(0, k_tiles, every, unroll=1):
                count = cutlass.min(k_tiles - first, every)
                turn = (cutlass.Boolean(first + every >= k_tiles), follows)
                position = self._plain(mma, part, position, count, turn, ends.after(first))
                _add(acc, part)
        return position

    @cute.jit
    def _plain(
        self,
        mma: cute.TiledMma,
        acc: cute.Tensor,
        position: Any,
        k_tiles: Any,
        turn: cutlass.Constexpr,
        ends: cutlass.Constexpr,
    ) -> Any:
        """As `multiply`: WGMMA adds up all of K. The next warpgroup may issue once all WGMMAs here are issued.

        turn: arguments of `IssueOrder.arrive`.
        """
        pipeline = self.pipeline
        stage, phase = position
        pipeline.wait_full(stage, phase)  # until TMA (and gathering threads) filled the stage
        self.wgmma_order.wait()
        self._trim(0, stage, ends)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        multiply_stage(mma, acc, self.fragments, stage)
        previous = stage
        stage, phase = advance(stage, phase, pipeline.stages)
        if cutlass.const_expr(not isinstance(k_tiles, int)):  # else one stage
            full = pipeline.is_full(stage, phase)
            for k in cutlass.range(1, k_tiles, unroll=1):
                if cutlass.const_expr(pipeline.stages == 1):
                    warpgroup.wait_group(0)
                    pipeline.release(previous)
                if not full:
                    pipeline.wait_full(stage, phase)
                self._trim(k, stage, ends)
                warpgroup.fence()
                multiply_stage(mma, acc, self.fragments, stage)
                current = stage
                stage, phase = advance(stage, phase, pipeline.stages)
                full = pipeline.is_full(stage, phase)  # after the last k tile nobody uses the answer
                if cutlass.const_expr(pipeline.stages > 1):
                    warpgroup.wait_group(1)  # the previous stage's WGMMAs have read it
                    pipeline.release(previous)
                previous = current
        self.wgmma_order.arrive()
        self.mainloop_order.arrive(*turn)
        warpgroup.wait_group(0)
        pipeline.release(previous)
        return stage, phase
