# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile into a pipeline stage by cp.async, from rows at multiples of 4 or 8 bytes (TMA needs 16).

A copy of WIDTH bytes goes from global memory to the swizzled stage without registers, so any number of tiles can be
in flight. Elements beyond a row's end or outside the matrix are not read; they are zero in the stage. If indices name
the rows, so is a row whose index is out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.row_indices import RowIndices
from cutegemm.kernels.load.unaligned_words import copy_async
from cutegemm.kernels.schedule.work import Corner


@dataclass(frozen=True)
class AsyncLoad:
    """One operand copied by the producer's threads."""

    lines: Lines
    indices: RowIndices | None

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Issue the copies of the tile that begins at `corner` into an empty `stage`."""
        lines = self.lines
        each = lines.operand.width // lines.size  # elements
        first, start = lines.origin(corner)
        count, length = lines.extents()
        # an address inside the matrix even if nothing is read
        start_inside = cutlass.select_(start < length, start, cutlass.Int32(0))
        origin = first if cutlass.const_expr(self.indices is None) else cutlass.Int32(0)
        base = lines.source(origin, start_inside, corner.batch)
        last, left, pitch = count - 1 - first, length - start, lines.pitch
        chunks = lines.length // each
        for step in cutlass.range_constexpr(lines.steps(chunks)):
            line, chunk, there = lines.chunk(thread, chunks, step)
            element = chunk * each
            row, named = self._row(first, line, last)
            wanted = cutlass.select_(cutlass.Boolean(line <= last) & named, left - element, cutlass.Int32(0))
            used = cutlass.max(cutlass.min(wanted, each), 0) * lines.size
            inside = cutlass.select_(used > 0, element, cutlass.Int32(0)) * lines.size
            address = base + cutlass.Int64(row) * pitch + inside
            target = lines.target(line, element, stage)
            if cutlass.const_expr(there is None):
                self._copy(address, target, used)
            elif there:
                self._copy(address, target, used)

    def _row(self, first: Any, line: Any, last: Any) -> tuple[Any, Any]:
        """(how many rows after the base's a line of the tile lies, whether it is one of the matrix')."""
        inside = cutlass.min(line, last)
        if self.indices is None:
            return inside, cutlass.Boolean(True)
        return self.indices.row(first + inside)

    def _copy(self, address: Any, target: Any, used: Any) -> None:
        numeric, width = NUMERIC[self.lines.operand.dtype], self.lines.operand.width
        source = cute.make_ptr(numeric, address, cute.AddressSpace.gmem, assumed_align=width)
        place = cute.make_ptr(numeric, target, cute.AddressSpace.smem, assumed_align=width)
        copy_async(source, place, width, used)

    def end(self, corner: Corner, stage: Any, phase: Any, thread: Any) -> None:
        """Do nothing: the copies write the stage themselves."""
