# SPDX-License-Identifier: Apache-2.0
"""The ordered finish of a reduction: partial results of each of many results into one fp32 number each.

A CTA owns LANES results; its threads stand LANES side by side and share each result's parts, thread t
taking every (THREADS / LANES)-th. Their states are joined in shared memory, in order. Nothing is atomic, so the
result of equal inputs is equal on every run.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.config import FinishConfig
from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.kernels.epilogue import element_functions as functions
from cutegemm.kernels.epilogue import partial_reductions as reduce
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.memory_views import elements_at

THREADS = 256  # per CTA
LANES_ACROSS = 16  # results side by side where neighbours in memory belong to different results


class Finish:
    """The driver of one `FinishConfig`."""

    def __init__(self, config: FinishConfig) -> None:
        self.config = config
        self.lanes = LANES_ACROSS if config.across else 1

    @cute.jit
    def __call__(self, addresses, extent, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`.

        Partial results are fp32, (part, result) if they lie across, else (result, part), in C order; logsumexp's
        maxima come before its sums.
        """
        results = launch.named(self.config, "extent", extent)["results"]
        self.kernel(addresses, extent).launch(
            grid=((results + (self.lanes - 1)) // self.lanes, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, addresses, extent):
        """One CTA's results."""
        extents = launch.named(self.config, "extent", extent)
        parts, results = extents["parts"], extents["results"]
        starts = launch.named(self.config, "addresses", addresses)
        partials, found = starts["partials"], starts["results"]
        kind, lanes = self.config.kind, self.lanes
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        count = len(NEUTRAL[kind])
        helpers = THREADS // lanes
        sums = cutlass.memory.SmemAllocator().allocate_tensor(
            cutlass.Float32, cute.make_layout((lanes, helpers, count)), 16
        )
        result, helper = block * lanes + thread % lanes, thread // lanes
        shown = cutlass.min(result, results - 1)
        wide = cutlass.Int64(results)  # partial results may exceed 2**31
        stride = (wide, 1) if cutlass.const_expr(self.config.across) else (1, cutlass.Int64(parts))
        layout = cute.make_layout((parts, results, count), stride=(*stride, parts * wide))
        ptr = cute.make_ptr(cutlass.Float32, partials, cute.AddressSpace.gmem, assumed_align=4)
        source = cute.make_tensor(ptr, layout)
        state = cute.make_rmem_tensor(count, cutlass.Float32)
        for i in cutlass.range_constexpr(count):
            state[i] = cutlass.Float32(NEUTRAL[kind][i])
        for step in cutlass.range((parts - helper + (helpers - 1)) // helpers, unroll=4):
            part = helper + step * helpers
            self._take(state, tuple(source[part, shown, i] for i in range(count)))
        for i in cutlass.range_constexpr(count):
            sums[thread % lanes, helper, i] = state[i]
        cute.arch.sync_threads()
        target = elements_at(cutlass.Float32, found, results)
        if thread < lanes and result < results:
            for other in cutlass.range(1, helpers, unroll=4):
                self._take(state, tuple(sums[thread % lanes, other, i] for i in range(count)))
            target[result] = self._value(state)

    def _take(self, state: cute.Tensor, other: tuple) -> None:
        count = len(other)
        joined = reduce.COMBINE[self.config.kind](tuple(state[i] for i in range(count)), other)
        for i in range(count):
            state[i] = joined[i]

    def _value(self, state: cute.Tensor) -> Any:
        """What a state stands for."""
        if self.config.kind == "logsumexp":
            return state[0] + functions.FINE["log"](state[1])
        return state[0]
