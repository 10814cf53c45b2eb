# SPDX-License-Identifier: Apache-2.0
"""The producer loop: it fills the pipeline with every k tile of every work tile of a CTA, in order.

A k tile is loaded by TMA, by the producer's threads, or by both. Threads issue their copies of a k tile when its stage
is empty and finish it `KernelConfig.ahead` k tiles later: they wait for their copies, move elements if needed, and
arrive on the stage's full barrier. The copies of a k tile are one cp.async group, an empty one if nothing is copied
by cp.async. After the last k tile the loop runs `ahead` more iterations, which only finish k tiles.

The tile scheduler hooks into the loop:
    lead(thread)                    once, before the first work tile is asked for
    ready(work, k, thread)          before the loads of a work tile's k-th k tile are issued; it may wait for a flag
                                    that another GPU sets when it has written them
    loaded(state, work, k, thread)  after they were issued; of groups along K also with k = -1, before the first
    end(state, thread)              after the last work tile
Constant operands of the first work tile are loaded early, before earlier launches have ended, without asking `ready`.

The threads' stores and copies are made visible to WGMMA, which reads by the async proxy, before they arrive (PTX ISA,
fence.proxy.async).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.mainloop.frame import Frame
from cutegemm.kernels.mainloop.pipeline import advance, skip
from cutegemm.kernels.schedule.dependent_launch import Dependence


@dataclass(frozen=True)
class Producer:
    """The producer's side of a CTA."""

    frame: Frame
    dependence: Dependence
    thread: Any

    @cute.jit
    def run(self) -> None:
        """Fill the pipeline, one work tile after another."""
        config, scheduler = self.frame.config, self.frame.scheduler
        position = (cutlass.Int32(0), cutlass.Int32(0))
        loaded = cutlass.Int32(0)  # k tiles of the first work tile whose constant operands are on their way
        if cutlass.const_expr(not config.early):
            self.dependence.wait()
        scheduler.lead(self.thread)
        state = scheduler.start()
        if cutlass.const_expr(config.early):
            loaded = self._fill_early(state)
            position = skip(position, loaded, config.stages)
        trail = self._trail(state)
        while scheduler.more(state):
            work = scheduler.work(state)
            if cutlass.const_expr(config.grouped == "k"):
                scheduler.loaded(state, work, cutlass.Int32(-1), self.thread)  # an empty group has no k tiles
            for k in cutlass.range(loaded, self._steps(state, work), unroll=1):
                if cutlass.const_expr(config.ahead == 0):
                    self._fill_next(state, work, k, position)
                    position = advance(*position, config.stages)
                else:
                    position, trail = self._fill_trailed(state, work, k, position, trail)
            loaded = cutlass.Int32(0)
            state = scheduler.next(state)
        self._drain(position)
        scheduler.end(state, self.thread)

    @cute.jit
    def fill(
        self,
        state: Any,
        work: cutlass.Constexpr,
        k: Any,
        stage: Any,
        roles: cutlass.Constexpr = None,
        announce: cutlass.Constexpr = True,
    ) -> None:
        """Issue all loads of a work tile's k-th k tile; `roles` and `announce` as in `Frame.load`."""
        scheduler = self.frame.scheduler
        scheduler.ready(work, k, self.thread)
        self.frame.load(work, k, stage, self.thread, roles, announce)
        self.frame.scales.load(work, k, stage, self.thread, self.frame.pipeline)
        scheduler.loaded(state, work, k, self.thread)

    @cute.jit
    def _fill_next(self, state: Any, work: cutlass.Constexpr, k: Any, position: Any) -> None:
        """Fill the next stage; threads that load finish it at once."""
        self.frame.pipeline.wait_empty(*position)  # until the consumers released the stage
        self.fill(state, work, k, position[0])
        if cutlass.const_expr(self.frame.config.copies_async):
            cute.arch.cp_async_commit_group()
        if cutlass.const_expr(self.frame.config.gathers):
            self._end(work, k, position)

    @cute.jit
    def _fill_trailed(self, state: Any, work: cutlass.Constexpr, k: Any, position: Any, trail: Any) -> Any:
        """Issue the loads of the next k tile, if there is one, and finish the k tile `ahead` before it."""
        config = self.frame.config
        if k < work.k_tiles:
            self.frame.pipeline.wait_empty(*position)  # until the consumers released the stage
            self.fill(state, work, k, position[0])
            position = advance(*position, config.stages)
        if cutlass.const_expr(config.copies_async):
            cute.arch.cp_async_commit_group()
        begun, at = trail
        begun += 1
        if begun > config.ahead:
            _, (_, *numbers), ended, place = at
            self._end(self.frame.scheduler.of_numbers(tuple(numbers)), ended, place)
            at = self._after(at)
            begun = cutlass.Int32(config.ahead)
        return position, (begun, at)

    @cute.jit
    def _end(self, work: cutlass.Constexpr, k: Any, position: Any) -> None:
        """Finish the threads' part of a work tile's k-th k tile."""
        config = self.frame.config
        if cutlass.const_expr(config.copies_async):
            cute.arch.cp_async_wait_group(config.ahead)
        self.frame.end(work, k, position, self.thread)

    @cute.jit
    def _steps(self, state: Any, work: cutlass.Constexpr) -> Any:
        """Iterations for a work tile: one for each k tile, and `ahead` more after the last work tile."""
        steps = work.k_tiles
        if cutlass.const_expr(self.frame.config.ahead > 0):
            if not self.frame.scheduler.follows(state):
                steps += self.frame.config.ahead
        return steps

    @cute.jit
    def _trail(self, state: Any) -> Any:
        """Which k tile the threads finish next: (k tiles issued and not finished, place); 0 if `ahead` is 0.

        A place is (the scheduler's state, the numbers of its work tile, the k tile, its pipeline position).
        """
        trail = cutlass.Int32(0)
        if cutlass.const_expr(self.frame.config.ahead > 0):
            zero = cutlass.Int32(0)
            trail = (zero, (state, self._numbers(state), zero, (zero, zero)))
        return trail

    @cute.jit
    def _after(self, at: Any) -> Any:
        """The place of the next k tile.

        It stays at a work tile without k tiles: loads of groups along K finish by position alone.
        """
        scheduler = self.frame.scheduler
        state, numbers, k, position = at
        k += 1
        if k == numbers[0]:
            state, k = scheduler.next(state), cutlass.Int32(0)
            numbers = self._numbers(state)
        return state, numbers, k, advance(*position, self.frame.config.stages)

    @cute.jit
    def _numbers(self, state: Any) -> Any:
        """(k tiles, what loads depend on) of a state's work tile as loop-carried numbers; zeros without a work tile."""
        scheduler = self.frame.scheduler
        numbers = scheduler.no_numbers
        if scheduler.more(state):
            work = scheduler.work(state)
            numbers = (work.k_tiles, *scheduler.numbers(work))
        return numbers

    @cute.jit
    def _fill_early(self, state: Any) -> Any:
        """Fill the pipeline for the first work tile, constant operands before the wait; returns the stages filled."""
        config, scheduler = self.frame.config, self.frame.scheduler
        others = tuple(x.role for x in config.stage if x.role not in config.early)
        count = cutlass.Int32(0)
        if scheduler.more(state):
            work = scheduler.work(state)
            count = cutlass.min(work.k_tiles, cutlass.Int32(config.stages))
            for k in cutlass.range(count, unroll=1):
                self.frame.load(work, k, k, self.thread, config.early, True)
        self.dependence.wait()
        if scheduler.more(state):
            work = scheduler.work(state)
            for k in cutlass.range(count, unroll=1):
                self.fill(state, work, k, k, others, False)
        return count

    @cute.jit
    def _drain(self, position: Any) -> None:
        """After the last load: no CTA of the cluster may end while another still writes or signals into it."""
        stage, phase = position
        self.dependence.done(("loads",))
        if cutlass.const_expr(self.frame.config.cluster_size > 1):
            for _ in cutlass.range(self.frame.config.stages, unroll=1):
                self.frame.pipeline.wait_empty(stage, phase)
                stage, phase = advance(stage, phase, self.frame.config.stages)
