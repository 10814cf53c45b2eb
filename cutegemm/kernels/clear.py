# SPDX-License-Identifier: Apache-2.0
"""Zeroes 32-bit counters in workspace.

Counters belong to one run: this launch comes before the one that counts, on the run's own stream and in the run's
own workspace, so that nothing is left over from another run, whole or aborted, and none is shared with one.
"""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.config import ClearConfig
from cutegemm.kernels import launch

THREADS = 256  # per CTA, a counter each


class Clear:
    """The driver of one `ClearConfig`."""

    def __init__(self, config: ClearConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, extent, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        count = launch.named(self.config, "extent", extent)["counters"]
        self.kernel(addresses, extent).launch(
            grid=((count + (THREADS - 1)) // THREADS, 1, 1), block=(THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, addresses, extent):
        """One CTA's counters."""
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        index = block * THREADS + thread
        start = launch.named(self.config, "addresses", addresses)["counters"]
        count = launch.named(self.config, "extent", extent)["counters"]
        ptr = cute.make_ptr(cutlass.Int32, start, cute.AddressSpace.gmem, assumed_align=4)
        counters = cute.make_tensor(ptr, cute.make_layout(count))
        if index < count:
            counters[index] = cutlass.Int32(0)
