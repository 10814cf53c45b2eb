# SPDX-License-Identifier: Apache-2.0
"""Kernel family 1: a producer warpgroup feeds consumer warpgroups through a pipeline of shared-memory stages.

Roles of a CTA, by warpgroup:
    0        producer: warp 0 issues TMA; where threads load an operand (`producer`), all four warps do.
    1 .. C   consumers: WGMMA on their rows of the tile, then the epilogue; the producer meanwhile fills
             the pipeline with the next tile's stages.

The consumers of a pingpong kernel compute alternate work tiles, and each skips the pipeline stages of the other's. The
producer fills the pipeline in the order of the work tiles, so one consumer's mainloop follows the other's, and its
epilogue overlaps the other's mainloop.

Shared memory and barriers are those of the plan (`KernelPlan.smem`, `KernelPlan.barriers`).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.host.launch_arguments import launch_thread, options
from cutegemm.kernels.host.launch_tensors import launch_tensors
from cutegemm.kernels.host.operand_layouts import NUMERIC, tiled_mma
from cutegemm.kernels.mainloop.frame import Frame
from cutegemm.kernels.mainloop.mainloop import Mainloop
from cutegemm.kernels.mainloop.ordered_issue import IssueOrder
from cutegemm.kernels.mainloop.pipeline import skip
from cutegemm.kernels.mainloop.producer import Producer
from cutegemm.kernels.mainloop.ragged_tail import RaggedTail
from cutegemm.kernels.schedule.dependent_launch import Dependence


class WarpSpecializedGemm:
    """The driver of one `KernelConfig` of family "warp_specialized"."""

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
        """The CTA: prologue and role dispatch."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        group = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        dependence = Dependence(config)
        frame = Frame.create(config, tensors, atoms, shape, numbers, schedule)
        frame.initialise()
        dependence.start()
        if group == 0:
            if cutlass.const_expr(config.registers is not None):
                cute.arch.setmaxregister_decrease(config.registers[0])
            producer = Producer(frame, dependence, thread)
            if cutlass.const_expr(config.producing_warps > 1):
                producer.run()
            elif thread // hw.WARP == 0:
                producer.run()
        else:
            if cutlass.const_expr(config.registers is not None):
                cute.arch.setmaxregister_increase(config.registers[1])
            frame.zero_out_of_bounds(thread - hw.WARPGROUP)
            dependence.wait()
            self._consume(frame, dependence, thread - hw.WARPGROUP)
        frame.finish()

    @cute.jit
    def _consume(self, frame: cutlass.Constexpr, dependence: cutlass.Constexpr, thread: Any):
        """Multiply and store one work tile after another; pingpong consumers skip each other's work tiles."""
        frame = dataclasses.replace(frame, epilogue=frame.epilogue.after_wait())
        config, scheduler, epilogue = self.config, frame.scheduler, frame.epilogue
        teams = config.consumers // config.team  # that compute alternate work tiles: 2 in a pingpong kernel
        warpgroup = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        band = cutlass.Int32(0) if cutlass.const_expr(config.pingpong) else warpgroup
        first = warpgroup if cutlass.const_expr(config.pingpong) else cutlass.Int32(0)
        role = Role(warpgroup, band, thread % hw.WARPGROUP)
        mma = tiled_mma(config, config.team, config.mma_columns)
        fragments, acc = frame.fragments(mma, band)
        mainloop_order, wgmma_order = IssueOrder.of(config, warpgroup)
        every, partial = config.promote // config.tile[2], NUMERIC[config.instruction.accumulator]
        tail = RaggedTail.of(config, frame.loads, role)
        mainloop = Mainloop(
            frame.pipeline, fragments, mainloop_order, wgmma_order, every, partial, tail, frame.scales
        )
        position = skip((cutlass.Int32(0), cutlass.Int32(0)), scheduler.stages_before(first), config.stages)
        if cutlass.const_expr(tail is not None):
            acc.fill(0.0)  # after a group without k tiles the first wgmma would read undefined accumulators
        inputs, parity = epilogue.start(), cutlass.Int32(0)
        mainloop_order.start()
        wgmma_order.start()
        state = scheduler.start(first)
        while scheduler.more(state):
            work = scheduler.work(state)
            ahead = epilogue.ahead(role, work.tile) if cutlass.const_expr(not config.adds_up) else None
            mainloop_order.wait()
            follows = functools.partial(scheduler.follows, state)
            position = mainloop.multiply(mma, acc, position, (role, work), follows)
            if cutlass.const_expr(config.trigger == "mainloop"):
                if not follows():
                    dependence.done(("mainloop",))
            if cutlass.const_expr(teams > 1):
                position = skip(position, scheduler.stages_between(state), config.stages)
            if cutlass.const_expr(not config.adds_up):
                inputs = epilogue.finish(acc, role, work.tile, ahead, inputs)
            else:
                inputs, parity = self._reduce_splits(frame, acc, role, work, inputs, parity)
            state = scheduler.next(state, teams)
        wgmma_order.end()
        epilogue.end(role)
        scheduler.end_rows(state, epilogue, *launch_thread(config, scheduler, thread))

    @cute.jit
    def _reduce_splits(
        self,
        frame: cutlass.Constexpr,
        acc: cute.Tensor,
        role: cutlass.Constexpr,
        work: cutlass.Constexpr,
        inputs: Any,
        parity: Any,
    ):
        """Reduce the tile over the splits of K; the CTA that stores it runs the epilogue. The states after both."""
        stores = frame.total.send(acc, role, work, parity)
        if cutlass.const_expr(self.config.stores):
            if stores:
                inputs = self._store_reduced(frame, acc, role, work, inputs, parity)
        return inputs, parity ^ 1

    @cute.jit
    def _store_reduced(
        self,
        frame: cutlass.Constexpr,
        acc: cute.Tensor,
        role: cutlass.Constexpr,
        work: cutlass.Constexpr,
        inputs: Any,
        parity: Any,
    ):
        """Receive the sums of the other splits, and store the tile or the slice that this CTA owns."""
        tile = frame.total.tile(work)
        ahead = frame.epilogue.ahead(role, tile)
        # cluster splits: a slice of the tile in its own accumulators; else the whole tile, in place of this CTA's sums
        total = acc
        if cutlass.const_expr(self.config.cluster_splits > 1):
            total = cute.make_rmem_tensor(self.config.slice_values, NUMERIC[self.config.sums])
        frame.total.receive(total, role, work, parity)
        return frame.epilogue.finish(total, role, tile, ahead, inputs)
