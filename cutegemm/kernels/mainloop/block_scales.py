# SPDX-License-Identifier: Apache-2.0
"""Block scales: the producer loads the scales of a stage's block of K into shared memory, beside the stage.

A stage has one scale for each row and column of the tile, or one for each group of rows or columns that share a scale
wherever the tile begins. The threads of the producer's last three warps copy one scale each by cp.async, and the copies
arrive on the stage's full barrier. Exponents (ue8m0) are widened to fp32 in registers and stored. Consumers read their
scales before WGMMA multiplies the stage, or during it.

A thread holds two rows of every 64, and two of every eight columns (PTX ISA, wgmma D fragment). If each row or column
has its own scale, the scales of sixteen are stored in the order of the threads that read them: the two rows or four
columns of a thread are one word of 8 or 16 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig, scale_places
from cutegemm.config.scale_places import WORD, WORDS
from cutegemm.epilogue.scales import BlockScale
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.host.operand_layouts import batch_at
from cutegemm.kernels.load.unaligned_words import copy_async
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.work import Work

GROUP = 8  # columns of a group, of which a thread holds a pair; rows between its two
BYTES = 4  # of a scale
EXPONENT = 8  # bits of a scale that is a power of two


@dataclass(frozen=True)
class BlockScales:
    """The scales of both operands as (blocks, blocks of K, l) in global memory; no tensors without block scales."""

    config: KernelConfig
    tensors: tuple
    sScales: Any = None  # (SCALES, STAGE)

    @staticmethod
    def create(config: KernelConfig, tensors: tuple, shared: Shared) -> BlockScales:
        """Take the buffers."""
        if not tensors:
            return BlockScales(config, tensors)
        layout = cute.make_layout((scale_places.staged(config), config.stages))
        return BlockScales(config, tensors, shared.tensor("scales", cutlass.Float32, layout))

    @cute.jit
    def load(
        self, work: cutlass.Constexpr, k: Any, stage: Any, thread: Any, pipeline: cutlass.Constexpr
    ) -> None:
        """Issue the copies of the scales of a work tile's k-th block of K; they arrive on the stage's full barrier."""
        if cutlass.const_expr(len(self.tensors) > 0):
            first = hw.WARPGROUP - scale_places.loaders(self.config)
            if thread >= first:
                self._load(work, k, stage, thread - first, pipeline)

    @cute.jit
    def _load(
        self, work: cutlass.Constexpr, k: Any, stage: Any, thread: Any, pipeline: cutlass.Constexpr
    ) -> None:
        """As `load`, by one of the threads that load scales."""
        config, at = self.config, 0
        for scale, tensor in zip(config.epilogue.scales, self.tensors, strict=True):
            count, kept = config.scales_of(scale), scale_places.kept(config, scale)
            if cutlass.const_expr(count > 1):
                # pad with valid scales: the compiler may widen a thread's reads over the padding
                count = kept
            for first in cutlass.range_constexpr(0, count, scale_places.loaders(config)):
                entry = thread + first
                if entry < count:
                    place = self._place(scale, tensor, work, entry, k)
                    self._load_one(tensor, place, at + _ordered(scale, entry), stage)
            at += kept
        exponents = [x.element_type.width == EXPONENT for x in self.tensors]
        if cutlass.const_expr(any(exponents)):
            # threads stored exponents, and cp.async's arrival would not release those stores
            if cutlass.const_expr(not all(exponents)):
                cute.arch.cp_async_commit_group()
                cute.arch.cp_async_wait_group(0)
            cute.arch.mbarrier_arrive(pipeline.full + stage)
        else:
            cute.arch.cp_async_mbarrier_arrive_noinc(pipeline.full + stage)

    @cute.jit
    def _load_one(self, tensor: cute.Tensor, place: Any, entry: Any, stage: Any) -> None:
        """Load one scale: fp32 by cp.async, an exponent through a register."""
        if cutlass.const_expr(tensor.element_type.width == EXPONENT):
            cute.recast_tensor(self.sScales, cutlass.Uint32)[entry, stage] = _power(tensor[place])
        else:
            source = tensor.iterator + cute.crd2idx(place, tensor.layout)
            target = self.sScales.iterator + cute.crd2idx((entry, stage), self.sScales.layout)
            copy_async(source, target, BYTES)

    def _place(self, scale: BlockScale, tensor: Any, work: Work, entry: Any, k: Any) -> tuple:
        """(block, block of K, batch) of the scale of an entry of a stage; clamped to the matrix' last block."""
        config, axis = self.config, 0 if scale.axis == "m" else 1
        if scale.extent > 1:
            entry = entry * (hw.WGMMA_M if scale.axis == "m" else config.scale_step(scale))
        first = (work.m, work.n)[axis] * config.tile[axis]
        origin = work.origins.get("ab"[axis])
        if origin is not None:
            first += origin.row  # a group's first row
        # rows and columns beyond the matrix are never stored, so any scale will do
        last = (work.ends[axis] - 1) // scale.extent
        batch = batch_at(tensor, work.l)
        # in 64 bits the compiler adds the stride in each stage; in 32 bits it would multiply by it
        block = cutlass.Int64(work.first) + cutlass.Int64(k) * cutlass.Int64(work.step)
        return cutlass.min((first + entry) // scale.extent, last), block, batch

    def read(self, role: Role, stage: Any, row: int, axes: str = "mn") -> dict[tuple[BlockScale, int], Any]:
        """A thread's scales of a stage for its row-th wgmma, by (operand, number); `axes`: of rows, columns or both."""
        config, at = self.config, stage * scale_places.staged(self.config)
        found: dict[tuple[BlockScale, int], Any] = {}
        band = row * config.team + role.band
        for scale in config.epilogue.scales:
            if scale.axis not in axes:
                values = []
            elif scale.extent > 1:
                first = at + band if scale.axis == "m" else at
                values = [self._word(first + i, 1)[0] for i in range(config.scales_read(scale))]
            elif scale.axis == "m":
                lane = role.thread // hw.WARP * WORDS + role.thread % hw.WARP // 4 * 2
                values = self._word(at + band * hw.WGMMA_M + lane, 2)
            else:
                lane, columns = role.thread % 4 * 4, config.tile[1]
                words = [(x, min(WORD, (columns - x) // 4)) for x in range(0, columns, WORDS)]
                values = [y for x, size in words for y in self._word(at + lane + x, size)]
            found |= {(scale, i): x for i, x in enumerate(values)}
            at += scale_places.kept(config, scale)
        return found

    def _word(self, at: Any, size: int) -> list[Any]:
        """Read `size` neighbouring scales as one word."""
        source = self.sScales.iterator + cute.assume(at, divby=size)
        rX = cute.make_rmem_tensor(size, cutlass.Float32)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(size)), rX)
        return [rX[i] for i in range(size)]

    def add(self, acc: cute.Tensor, part: cute.Tensor, row: int, found: dict) -> None:
        """Add a thread's partial sums of its row-th wgmma, times the scales `found` if any, to its accumulators.

        Args:
            acc, part: ((2, 2, MMA_COLUMNS / 8), MMA_M, MMA_N), and one row of the same.
        """
        sums, known = acc[None, row, None], {}
        for value in range(cute.size(part)):
            if not self.config.epilogue.scales:
                sums[value] = _add_in_place(part[value], sums[value])
                continue
            # as the fragment has them: two columns, two rows, groups of eight columns
            place = value // 2 % 2, value // 4 * 2 + value % 2
            which = tuple((x, self._index(x, *place)) for x in self.config.epilogue.scales)
            if which not in known:
                factors = [found[x] for x in which]
                known[which] = factors[0] if len(factors) == 1 else factors[0] * factors[1]
            term = acc.element_type(part[value]), known[which], sums[value]
            # the branches of groups along K, which zero in between, would have the compiler move a plain FMA
            in_place = scale_places.aligned(self.config) and self.config.partial_sets == 2
            sums[value] = _fma_in_place(*term) if in_place else cute.math.fma(*term)

    def _index(self, scale: BlockScale, row: int, column: int) -> int:
        """Which of a thread's scales its `row`-th row and `column`-th column have."""
        if scale.axis == "m":
            return row if scale.extent == 1 else 0
        return column if scale.extent == 1 else column // 2 * GROUP // self.config.scale_step(scale)


def _add_in_place(part: Any, total: Any) -> Any:
    """part + total in fp32, as inline PTX that stays in its place between the WGMMAs.

    The compiler would move a plain addition behind the WGMMA that overwrites the partial sums, and copy them while
    WGMMA may still write them.
    """
    return cute.arch.inline_ptx(
        "add.f32 {$w0}, {$r0}, {$r1};",
        write_only_types=[cutlass.Float32],
        read_only_args=[cutlass.Float32(part), cutlass.Float32(total)],
    )


def _fma_in_place(part: Any, factor: Any, total: Any) -> Any:
    """part * factor + total in fp32, as `_add_in_place`."""
    return cute.arch.inline_ptx(
        "fma.rn.f32 {$w0}, {$r0}, {$r1}, {$r2};",
        write_only_types=[cutlass.Float32],
        read_only_args=[cutlass.Float32(part), cutlass.Float32(factor), cutlass.Float32(total)],
    )


def _ordered(scale: BlockScale, entry: Any) -> Any:
    """The position of a row's or column's scale among its operand's scales of a stage."""
    if scale.extent > 1:
        return entry
    first, group, within = entry & -WORDS, entry >> 3 & 1, entry & GROUP - 1
    if scale.axis == "m":
        return first + within * 2 + group
    return first + (within >> 1) * 4 + group * 2 + (entry & 1)


def _power(exponent: Any) -> Any:
    """The bits of 2**(exponent - 127) in fp32, of a byte; 255 is NaN (OCP MX 1.0, E8M0)."""
    wide = cutlass.Uint32(exponent)
    # 2**-127 is subnormal
    bits = cutlass.select_(wide == 0, cutlass.Uint32(1 << 22), wide << 23)
    return cutlass.select_(wide == 255, cutlass.Uint32(0x7FC0_0000), bits)
