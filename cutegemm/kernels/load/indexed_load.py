# SPDX-License-Identifier: Apache-2.0
"""Load the rows that a tensor of indices names into a pipeline stage by cp.async.

All k tiles of a work tile read the same rows, so a thread looks up the addresses of its rows once, when the work tile's
first row changes, and keeps them in registers. A k tile then costs an addition and a copy for each chunk. Elements
beyond a row's end are zero in the stage, and so is a row whose index is out of bounds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.load.cp_async_load import copy_chunk
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.row_indices import RowIndices
from cutegemm.kernels.memory_views import act_if
from cutegemm.kernels.schedule.work import Corner

BITS = 31  # of a word that says which rows exist, without its sign


@dataclass(frozen=True)
class IndexedLoad:
    """One K-major operand whose rows indices name, copied by the producer's threads."""

    lines: Lines
    indices: RowIndices
    # (1 + STEPS / BITS,) Int32: the first row of the tile that `rows` is of, -1 at first; a bit a row that exists
    held: cute.Tensor
    # (STEPS,) Int64: where this thread's chunks' rows begin, bytes
    rows: cute.Tensor

    @staticmethod
    def create(lines: Lines, indices: RowIndices) -> IndexedLoad:
        """A load that holds no rows yet."""
        steps = lines.steps(lines.chunks)
        held = cute.make_rmem_tensor(1 + -(-steps // BITS), cutlass.Int32)
        held.fill(-1)
        rows = cute.make_rmem_tensor(steps, cutlass.Int64)
        rows.fill(0)
        return IndexedLoad(lines, indices, held, rows)

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Issue the copies of the tile that begins at `corner` into an empty `stage`."""
        lines = self.lines
        first, start = lines.origin(corner)
        if first != self.held[0]:
            self._look_up(first, corner.batch, thread)
        left = lines.extents()[1] - start
        if left >= lines.length:
            self._copy(start, None, stage, thread)
        else:
            self._copy(start, left, stage, thread)

    def _copy(self, start: Any, left: Any, stage: Any, thread: Any) -> None:
        """Copy the chunks of the k tile that begins at element `start`, which has `left` elements; None is all."""
        lines = self.lines
        for step in range(lines.steps(lines.chunks)):
            _, chunk, there = lines.chunk(thread, lines.chunks, step)
            element = chunk * lines.each
            count, inside = cutlass.Int32(lines.each), start + element
            if left is not None:
                count = cutlass.max(cutlass.min(left - element, lines.each), 0)
                # an address inside the row even if nothing is read
                inside = cutlass.select_(count > 0, inside, cutlass.Int32(0))
            exists = (self.held[1 + step // BITS] & (1 << step % BITS)) != 0
            used = cutlass.select_(exists, count * lines.size, cutlass.Int32(0))
            address = self.rows[step] + cutlass.Int64(inside) * lines.size
            # whole stages keep the swizzle's period
            target = lines.place(thread, step) + stage * lines.stage_bytes
            act_if(there, functools.partial(copy_chunk, lines, address, target, used))

    @cute.jit
    def _look_up(self, first: Any, batch: Any, thread: Any) -> None:
        """Hold the addresses of the rows of the tile whose first one is the `first`-th that an index names."""
        lines = self.lines
        last = lines.extents()[0] - 1 - first
        base, held = lines.source(0, 0, batch), self.held
        held.fill(0)
        for step in cutlass.range_constexpr(lines.steps(lines.chunks)):
            line, _, _ = lines.chunk(thread, lines.chunks, step)
            row, exists = self.indices.row(first + cutlass.min(line, last))
            self.rows[step] = base + cutlass.Int64(row) * lines.pitch
            bit = cutlass.select_(exists & cutlass.Boolean(line <= last), cutlass.Int32(1 << step % BITS), 0)
            held[1 + step // BITS] = held[1 + step // BITS] | bit
        held[0] = first

    def end(self, corner: Corner, stage: Any, phase: Any, thread: Any) -> None:
        """Do nothing: the copies write the stage themselves."""
