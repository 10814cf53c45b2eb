# SPDX-License-Identifier: Apache-2.0
"""Partial sums of tiles in workspace: fp32, in fragment order, so that reads and writes are whole cache lines.

A tile's partial sums follow one another in memory. An element's address does not depend on which CTA writes or reads
it, nor on how many columns that CTA has. They are added in split order, so that a result has the same bits on every
run. With split_reduction="atomic" a tile has one, to which L2 adds the others in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.subtiles import Role
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.schedule.tile_scheduler import TileScheduler
from cutegemm.kernels.schedule.work import Work

VECTOR = 4  # fp32 numbers of one access
IN_FLIGHT = 16  # accesses of a thread at once, where their number is known


def aligned(place: cute.Tensor) -> cute.Tensor:
    """VECTOR neighbouring numbers, known to be moved by one access."""
    return cute.make_tensor(place.iterator.align(4 * VECTOR), cute.make_layout(VECTOR))


def add_vector(target: cute.Tensor, values: list[Any]) -> None:
    """Four fp32 numbers in a row of global memory plus four others, each addition atomic by itself.

    Source: PTX ISA 9.0, red (vectors of f32 from sm_90 on).
    """
    cute.arch.inline_ptx(
        "red.relaxed.gpu.global.add.v4.f32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
        read_only_args=[target.iterator, *(cutlass.Float32(x) for x in values)],
    )


@dataclass(frozen=True)
class PartialSums:
    """The partial sums of every tile of a launch."""

    config: KernelConfig
    scheduler: TileScheduler
    address: Any  # of (VECTOR, WARPGROUP, vectors of a tile, CONSUMERS, SPLITS, tiles) fp32

    @cute.jit
    def put(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, share: Any) -> None:
        """Write this thread's numbers of a slice to the place of the work tile's partial sum."""
        mPartial = self._partial(work, self.number(work))
        for vector in cutlass.range_constexpr(self._vectors):
            source = cute.make_tensor(acc.iterator + vector * VECTOR, cute.make_layout(VECTOR))
            cute.autovec_copy(source, self._vector(mPartial, role, vector, share))

    @cute.jit
    def join(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, share: Any) -> None:
        """Have L2 add this thread's numbers of a slice to those that lie there."""
        mPartial = self._partial(work, self.number(work))
        for vector in cutlass.range_constexpr(self._vectors):
            target = self._vector(mPartial, role, vector, share)
            add_vector(target, [acc[vector * VECTOR + i] for i in range(VECTOR)])

    @cute.jit
    def add(self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, share: Any) -> None:
        """total = the sum of all partial sums of this thread's numbers of a slice."""
        total.fill(0.0)
        at_once = 1
        if cutlass.const_expr(not self.config.streamed):
            at_once = max(1, min(self.config.kept_splits, IN_FLIGHT // self._vectors))
        splits = work.splits if cutlass.const_expr(self.config.streamed) else self.config.kept_splits
        rX = cute.make_rmem_tensor((VECTOR, self._vectors, at_once), NUMERIC[self.config.sums])
        for block in cutlass.range(splits // at_once, unroll=1):
            self._read(rX, role, work, [block * at_once + i for i in range(at_once)], share)
            self._take(total, rX, at_once)
        if cutlass.const_expr(not self.config.streamed):
            rest = self.config.kept_splits % at_once
            self._read(rX, role, work, range(splits - rest, splits), share)
            self._take(total, rX, rest)

    @cute.jit
    def add_some(
        self, total: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, which: cutlass.Constexpr
    ) -> None:
        """total = the sum of a share of the partial sums, neighbours; `which` is (slice, which share, of how many).

        Shares have equally many splits; missing ones of the last share count as zero.
        """
        share, group, groups = which
        count = self.config.outer_splits
        each = -(-count // groups)
        at_once = max(1, min(each, IN_FLIGHT // self._vectors))
        rX = cute.make_rmem_tensor((VECTOR, self._vectors, at_once), NUMERIC[self.config.sums])
        total.fill(0.0)
        for first in cutlass.range_constexpr(0, each, at_once):
            some = min(at_once, each - first)
            splits = (cutlass.min(group * each + (first + i), count - 1) for i in range(some))
            self._read(rX, role, work, splits, share)
            for i in cutlass.range_constexpr(some):
                there = group * each + (first + i) < count
                for value in cutlass.range_constexpr(self._vectors * VECTOR):
                    number = rX[value % VECTOR, value // VECTOR, i]
                    if cutlass.const_expr(groups * each > count):
                        number = cutlass.select_(cutlass.Boolean(there), number, NUMERIC[self.config.sums](0))
                    total[value] = total[value] + number

    def number(self, work: Work) -> Any:
        """The number of a work tile's partial sum among its tile's in workspace."""
        if self.config.kept_splits < self.config.outer_splits:
            return 0
        return work.split // self.config.cluster_splits if self.config.cluster_splits > 1 else work.split

    def count(self, work: Work) -> Any:
        """How many partial sums of a work tile's tile of D are in workspace."""
        return work.splits if self.config.streamed else self.config.outer_splits

    @property
    def _vectors(self) -> int:
        return self.config.slice_values // VECTOR

    def _read(self, rX: cute.Tensor, role: Role, work: Work, splits: Iterable[Any], share: Any) -> None:
        """Read several partial sums at once."""
        for i, split in enumerate(splits):
            mPartial = self._partial(work, split)
            for vector in range(self._vectors):
                cute.autovec_copy(self._vector(mPartial, role, vector, share), rX[None, vector, i])

    def _take(self, total: cute.Tensor, rX: cute.Tensor, count: int) -> None:
        for i in range(count):
            for value in range(self._vectors * VECTOR):
                total[value] = total[value] + rX[value % VECTOR, value // VECTOR, i]

    def _partial(self, work: Work, split: Any) -> Any:
        """One partial sum of a work tile's tile of D, (VECTOR, WARPGROUP, vectors, CONSUMERS)."""
        config = self.config
        layout = cute.make_layout((VECTOR, hw.WARPGROUP, config.tile_values // VECTOR, config.consumers))
        index = cutlass.Int64(self.scheduler.slot(work, split))
        address = self.address + index * (4 * cute.size(layout))
        ptr = cute.make_ptr(
            NUMERIC[self.config.sums], address, cute.AddressSpace.gmem, assumed_align=4 * VECTOR
        )
        return cute.make_tensor(ptr, layout)

    def _vector(self, mPartial: Any, role: Role, vector: int, share: Any) -> Any:
        """A slice's vector-th access."""
        first, step = self.config.slice_index(vector * VECTOR)
        at = first // VECTOR if self.config.slices == 1 else first // VECTOR + share * (step // VECTOR)
        return aligned(mPartial[None, role.thread, at, role.band])
