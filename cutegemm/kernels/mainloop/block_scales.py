# SPDX-License-Identifier: Apache-2.0
"""Scales of operands' blocks: each consumer warpgroup copies those of its tile to shared memory, blocks of K ahead.

A warpgroup has `SCALE_STAGES` buffers, each with the scales of one block of K: of its rows, then of the tile's columns.
Its threads copy one number each, fp32 by cp.async and exponents (ue8m0) through registers, and meet at the warpgroup's
barrier before they read: then everybody's copies are there, and everybody has read the buffer that is filled next.

A thread holds two rows of each pass over the tile, and two of every eight columns (PTX ISA, wgmma D fragment). Blocks
of one row or column differ from element to element. Blocks of 128, with which tiles need not be aligned, are the same
for 64 rows, and for as many columns as all tiles begin at multiples of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.config.draft import SCALE_STAGES
from cutegemm.epilogue.scales import BlockScale
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.load.unaligned_words import copy_async
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.work import Work

GROUP = 8  # columns of a group, of which a thread holds a pair
BYTES = 4  # of a scale


@dataclass(frozen=True)
class BlockScales:
    """The scales of both operands as (BLOCKS, BLOCKS OF K, l) in global memory; no tensors where there are none."""

    config: KernelConfig
    tensors: tuple
    sScales: Any = None  # (SCALES, SCALE_STAGE, CONSUMERS)

    @staticmethod
    def create(config: KernelConfig, tensors: tuple, shared: Shared) -> BlockScales:
        """Take the buffers."""
        if not tensors:
            return BlockScales(config, tensors)
        layout = cute.make_layout((config.scales_staged, SCALE_STAGES, config.consumers))
        return BlockScales(config, tensors, shared.tensor("scales", cutlass.Float32, layout))

    def begin(self, role: Role, work: Work) -> None:
        """Before a work: begin to copy the scales of its first blocks of K."""
        role.barrier()  # everybody has read those of the work before
        for k in range(SCALE_STAGES - 1):
            self._copy(role, work, cutlass.Int32(k))

    def next(self, role: Role, work: Work, k: Any) -> None:
        """Wait for the scales of the k-th block of K, and begin to copy those of a later one."""
        cute.arch.cp_async_wait_group(SCALE_STAGES - 2)
        role.barrier()
        self._copy(role, work, k + (SCALE_STAGES - 1))

    @cute.jit
    def _copy(self, role: cutlass.Constexpr, work: cutlass.Constexpr, k: Any) -> None:
        """Begin to copy the scales of a work's k-th block of K, if it has one: one group of cp.async in any case."""
        if k < work.k_tiles:
            block, at = work.first + k * work.step, 0
            for scale, tensor in zip(self.config.epilogue.scales, self.tensors, strict=True):
                count = self.config.scales_of(scale)
                batch = cutlass.min(work.l, cute.size(tensor, mode=[2]) - 1)
                # beyond the matrix the last one: what it scales is never stored
                last = (work.ends[0 if scale.axis == "m" else 1] - 1) // scale.extent
                for first in cutlass.range_constexpr(0, count, hw.WARPGROUP):
                    entry = role.thread + first
                    if entry < count:
                        place = cutlass.min(self._block(scale, role, work, entry), last)
                        source = tensor.iterator + cute.crd2idx((place, block, batch), tensor.layout)
                        buffer = self.sScales[None, k % SCALE_STAGES, role.slot]
                        if cutlass.const_expr(tensor.element_type.width == 8):
                            cute.recast_tensor(buffer, cutlass.Uint32)[at + entry] = _power(
                                tensor[place, block, batch]
                            )
                        else:
                            copy_async(source, buffer.iterator + (at + entry), BYTES)
                at += count
        cute.arch.cp_async_commit_group()

    def _block(self, scale: BlockScale, role: Role, work: Work, entry: Any) -> Any:
        """The block of rows or columns that an entry of a warpgroup's buffer is of."""
        config = self.config
        if scale.axis == "n":
            first = work.n * config.tile[1]
            return (first + entry * config.scale_step(scale)) // scale.extent
        each = hw.WGMMA_M if scale.extent == 1 else 1  # entries of a pass
        block = work.m * (config.tile[0] // hw.WGMMA_M) + entry // each * config.team + role.band
        return (block * hw.WGMMA_M + entry % each) // scale.extent

    def add(self, acc: cute.Tensor, part: cute.Tensor, role: Role, k: Any) -> None:
        """Add a thread's partial sums, times the scales of the k-th block of K, to its accumulators."""
        buffer, known = self.sScales[None, k % SCALE_STAGES, role.slot], {}
        each = self.config.tile[1] // 2
        for i in range(cute.size(acc)):
            # as the fragment has them: two columns, two rows, groups of eight columns
            passed, value = divmod(i, each)
            at, key = 0, []
            for scale in self.config.epilogue.scales:
                key.append(self._entry(scale, at, (passed, value // 2 % 2), (value % 2 + value // 4 * GROUP)))
                at += self.config.scales_of(scale)
            found = tuple(key)
            if found not in known:
                factors = [known.setdefault(x, self._read(buffer, role, x)) for x in found]
                known[found] = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            acc[i] = cute.math.fma(acc.element_type(part[i]), known[found], acc[i])

    def _entry(self, scale: BlockScale, at: int, row: tuple[int, int], column: int) -> tuple[str, int]:
        """What an accumulator's scale depends on: whether on the thread, and its entry but for that."""
        if scale.axis == "m":
            passed, key = row
            return ("m", at + passed * hw.WGMMA_M + 8 * key) if scale.extent == 1 else ("", at + passed)
        return ("n", at + column) if scale.extent == 1 else ("", at + column // self.config.scale_step(scale))

    def _read(self, buffer: cute.Tensor, role: Role, entry: tuple[str, int]) -> Any:
        """A scale of a warpgroup's buffer."""
        axis, at = entry
        if axis == "m":
            return buffer[role.thread // hw.WARP * 16 + role.thread % hw.WARP // 4 + at]
        return buffer[role.thread % 4 * 2 + at] if axis == "n" else buffer[at]


def _power(exponent: Any) -> Any:
    """The bits of 2**(exponent - 127) in fp32, of a byte; 255 is NaN (OCP MX 1.0, E8M0)."""
    wide = cutlass.Uint32(exponent)
    # 2**-127 is subnormal
    bits = cutlass.select_(wide == 0, cutlass.Uint32(1 << 22), wide << 23)
    return cutlass.select_(wide == 255, cutlass.Uint32(0x7FC0_0000), bits)
