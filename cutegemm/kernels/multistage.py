# SPDX-License-Identifier: Apache-2.0
"""Kernel family 2: no warp specialisation. Every warpgroup computes; warp 0 also issues TMA.

With one stage, load and multiply alternate. With S stages, S - 1 loads are in flight while one stage is
multiplied: a stage is refilled when every warpgroup has finished the WGMMAs on it, which a CTA-wide barrier
tells warp 0. What it lacks beside the warp-specialised kernel: loads wait for the epilogue, and warps wait
for each other every stage.

Barriers: full, per stage (the pipeline's; TMA's elected thread -> every thread); the CTA's barrier 0 stands for
the pipeline's empty barriers, which stay unused.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.host.launch_arguments import launch_thread, options
from cutegemm.kernels.host.launch_tensors import launch_tensors
from cutegemm.kernels.host.operand_layouts import tiled_mma
from cutegemm.kernels.mainloop.frame import Frame
from cutegemm.kernels.mainloop.mainloop import multiply_stage
from cutegemm.kernels.mainloop.pipeline import advance
from cutegemm.kernels.mainloop.producer import Producer
from cutegemm.kernels.schedule.dependent_launch import Dependence


class MultistageGemm:
    """The driver of one `KernelConfig` of family "multistage"."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, schedule, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        tensors, atoms = launch_tensors(self.config, addresses, shape, strides)
        self.kernel(tensors, atoms, shape, numbers, schedule).launch(
            stream=stream, **options(self.config, schedule)
        )

    @cute.kernel
    def kernel(self, tensors, atoms, shape, numbers, schedule):
        """The CTA: prologue and the loop over its work tiles."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        dependence = Dependence(config)
        frame = Frame.create(config, tensors, atoms, shape, numbers, schedule)
        frame.initialise()
        dependence.start()
        frame.zero_out_of_bounds(thread)
        dependence.wait()
        scheduler, epilogue = frame.scheduler, frame.epilogue.after_wait()
        group = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        mma = tiled_mma(config, config.consumers, config.tile[1])
        fragments, acc = frame.fragments(mma, group)
        role = Role(group, group, thread % hw.WARPGROUP)
        position, inputs = (cutlass.Int32(0), cutlass.Int32(0)), epilogue.start()
        producer = Producer(frame, dependence, thread)
        state = scheduler.start()
        while scheduler.more(state):
            work = scheduler.work(state)
            ahead = epilogue.ahead(role, work.tile)
            position = self._multiply(producer, mma, acc, fragments, position, (state, work))
            if not scheduler.more(scheduler.next(state)):
                dependence.done(("loads", "mainloop"))
            inputs = epilogue.finish(acc, role, work.tile, ahead, inputs)
            state = scheduler.next(state)
        epilogue.end(role)
        scheduler.end_rows(state, epilogue, *launch_thread(config, scheduler, thread))

    @cute.jit
    def _multiply(
        self,
        producer: cutlass.Constexpr,
        mma: cute.TiledMma,
        acc: cute.Tensor,
        fragments: cutlass.Constexpr,
        position: Any,
        which: cutlass.Constexpr,
    ):
        """acc = A @ B for one work tile; `which` is (state, work). Returns the pipeline position after it."""
        stage, phase = position
        state, work = which
        frame = producer.frame
        stages, pipeline, k_tiles = self.config.stages, frame.pipeline, work.k_tiles
        for ahead in cutlass.range_constexpr(stages - 1):
            if ahead < k_tiles:
                producer.fill(state, work, ahead, (stage + ahead) % stages)
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        full = pipeline.is_full(stage, phase)
        for k in cutlass.range(k_tiles, unroll=1):
            if cutlass.const_expr(stages == 1):
                producer.fill(state, work, k, stage)
            if not full:
                pipeline.wait_full(stage, phase)
            warpgroup.fence()
            multiply_stage(mma, acc, fragments, stage)
            current = stage
            stage, phase = advance(stage, phase, stages)
            # asked before the wait for the previous stage's WGMMAs, which hides how long the answer takes
            full = pipeline.is_full(stage, phase)
            if cutlass.const_expr(stages == 1):
                warpgroup.wait_group(0)
                cute.arch.sync_threads()  # every warpgroup has read the stage
            else:
                warpgroup.wait_group(1)
                cute.arch.sync_threads()  # every warpgroup has read the previous stage
                if k + (stages - 1) < k_tiles:
                    producer.fill(state, work, k + (stages - 1), (current + (stages - 1)) % stages)
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # every stage may be refilled for the next work tile
        return stage, phase
