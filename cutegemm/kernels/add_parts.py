# SPDX-License-Identifier: Apache-2.0
"""Kernel family 7: adds up the parts of K that the launch before left in workspace, and applies the epilogue once.

A CTA takes one slice of a tile's columns, few enough that the slices of all tiles fill the SMs. It has the product's
consumer warpgroups with the same rows each, so that sums lie in its registers as they lay in theirs, and the epilogue
is that of every tensor-core kernel. It may begin while the product still runs: it sets up, and every thread waits for
the product to end before its first access to memory.
"""

from __future__ import annotations

from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.cluster import Place
from cutegemm.kernels.dependence import Dependence
from cutegemm.kernels.epilogue import Epilogue
from cutegemm.kernels.launch import named
from cutegemm.kernels.pieces import Role
from cutegemm.kernels.scheduler import Walk, Work
from cutegemm.kernels.sum_parts import SumParts
from cutegemm.kernels.tensors import Atoms, Tensors, launch_tensors


class AddParts:
    """The driver of one `KernelConfig` of family "add_parts"."""

    def __init__(self, config: KernelConfig) -> None:
        self.config = config

    @cute.jit
    def __call__(self, addresses, shape, strides, numbers, walk, stream: cuda.CUstream):
        """Launch; the arguments are those of `kernels.launch`, "clusters" the slices of all tiles."""
        tensors, atoms = launch_tensors(self.config, addresses, shape, strides)
        self.kernel(tensors, atoms, shape, numbers, walk).launch(
            grid=(named(self.config, "walk", walk)["clusters"], 1, 1),
            block=(self.config.threads, 1, 1),
            use_pdl=self.config.trigger != "never",
            stream=stream,
        )

    @cute.kernel
    def kernel(self, tensors, atoms, shape, numbers, walk):
        """One CTA's slice."""
        config = self.config
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        dependence = Dependence(config)
        dependence.before_scalars()
        tensors, atoms = Tensors(*tensors), Atoms(*atoms)
        extents, walking = named(config, "shape", shape), named(config, "walk", walk)
        smem = cutlass.memory.SmemAllocator()
        walks = Walk.create(config, Place.create((1, 1), 1), extents, walking)
        epilogue = Epilogue.create(config, tensors, atoms, numbers, walks.output(extents, walking), smem)
        self._initialise(epilogue, thread)
        dependence.start()
        dependence.wait()
        (address,) = tensors.splits
        work, share = self._work(walks, block)
        # a sample launch, which loads the kernel, has no batch
        if work.l < epilogue.extent.l:
            self._finish(SumParts(config, walks, address), epilogue, dependence, thread, (work, share))

    @cute.jit
    def _initialise(self, epilogue: cutlass.Constexpr, thread: Any):
        """The epilogue's barriers and tensor maps."""
        if cutlass.const_expr(epilogue.loads is not None):
            if thread == 0:
                epilogue.loads.init()
                cute.arch.mbarrier_init_fence()
        if thread // hw.WARP == 1:
            for atom in epilogue.atoms:
                if cutlass.const_expr(atom is not None):
                    cpasync.prefetch_descriptor(atom)
        if cutlass.const_expr(epilogue.loads is not None):
            cute.arch.sync_threads()

    @cute.jit
    def _finish(
        self,
        parts: cutlass.Constexpr,
        epilogue: cutlass.Constexpr,
        dependence: cutlass.Constexpr,
        thread: Any,
        mine: cutlass.Constexpr,
    ):
        """Add up a slice and store it; `mine` is (work, slice)."""
        config = self.config
        warpgroup = cute.arch.make_warp_uniform(thread // hw.WARPGROUP)
        role = Role(warpgroup, warpgroup, thread % hw.WARPGROUP)
        work, share = mine
        tile = work.slice(share, config.slices)
        ahead = epilogue.ahead(role, tile)
        total = cute.make_rmem_tensor(config.slice_values, cutlass.Float32)
        parts.add(total, role, work, share)
        dependence.loads_done()
        epilogue.finish(total, role, tile, ahead, epilogue.start())
        epilogue.end(role)

    def _work(self, walk: Walk, block: Any) -> tuple[Work, Any]:
        """(tile with all its parts, slice of it) of a CTA; slices of a tile are neighbours."""
        config = self.config
        cluster_m, cluster_n = config.cluster
        rows, columns = walk.tiles[0] * cluster_m, walk.tiles[1] * cluster_n
        tile = block // config.slices
        row = tile // columns
        batch = row // rows
        none = cutlass.Int32(0)
        work = Work(row - batch * rows, tile - row * columns, batch, none, none, none, config.outer_parts)
        return work, block - tile * config.slices
