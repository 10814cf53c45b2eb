# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile into a pipeline stage by cp.async, from rows at multiples of 4 or 8 bytes (TMA needs 16).

A copy of WIDTH bytes goes from global memory to the swizzled stage without registers, so any number of tiles can be
in flight. Elements beyond a row's end or outside the matrix are not read; they are zero in the stage.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.unaligned_words import copy_async
from cutegemm.kernels.memory_views import act_if
from cutegemm.kernels.schedule.work import Corner


@dataclass(frozen=True)
class AsyncLoad:
    """One operand copied by the producer's threads."""

    lines: Lines

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Issue the copies of the tile that begins at `corner` into an empty `stage`."""
        lines = self.lines
        first, start = lines.origin(corner)
        count, length = lines.extents()
        last, left = count - 1 - first, length - start
        # a copy of no bytes reads nothing, wherever its address lies (PTX ISA, cp.async); `_copy_parts` stays inside
        start_inside = cutlass.select_(start < length, start, cutlass.Int32(0))
        base = lines.source(first, start_inside, corner.batch)
        if left >= lines.length and last >= lines.count - 1:
            self._copy_whole(base, None, stage, thread)
        elif left >= lines.length or left % lines.each == 0:
            self._copy_whole(base, (last, left), stage, thread)
        else:
            self._copy_parts(base, last, left, stage, thread)

    @cute.jit
    def _copy_whole(self, base: Any, limits: Any, stage: Any, thread: Any) -> None:
        """Copy a tile whose chunks exist as a whole or not at all.

        Each of the producer's warps is alone on its scheduler and needs the time of its instructions. So places in
        memory and in the stage are constant distances from those of a thread's first line, or of an earlier chunk.

        Args:
            base: address of the tile's first element.
            limits: (the last line that exists, elements of each), counted from the tile's first; None if all exist.
        """
        lines, width = self.lines, self.lines.operand.width
        line, chunk, _ = lines.chunk(thread, lines.chunks, 0)
        place = base + cutlass.Int64(line) * lines.pitch + chunk * width
        for step in cutlass.range_constexpr(lines.steps(lines.chunks)):
            at, each, there = lines.chunk(thread, lines.chunks, step)
            if cutlass.const_expr(lines.even):
                apart, along = divmod(step * hw.WARP, lines.chunks)
                at, each, address = line + apart, chunk + along, place + along * width
                # to the next step's line
                place += ((step + 1) * hw.WARP // lines.chunks - apart) * lines.pitch
            else:
                address = base + cutlass.Int64(at) * lines.pitch + each * width
            used = None
            if cutlass.const_expr(limits is not None):
                exists = cutlass.Boolean(at <= limits[0]) & cutlass.Boolean(each * lines.each < limits[1])
                used = cutlass.select_(exists, cutlass.Int32(width), cutlass.Int32(0))
            target = lines.place(thread, step) + stage * lines.stage_bytes
            act_if(there, functools.partial(copy_chunk, lines, address, target, used))

    @cute.jit
    def _copy_parts(self, base: Any, last: Any, left: Any, stage: Any, thread: Any) -> None:
        """Copy a tile that has `left` elements of each line, the last of which are less than a chunk."""
        lines, pitch = self.lines, self.lines.pitch
        for step in cutlass.range_constexpr(lines.steps(lines.chunks)):
            line, chunk, there = lines.chunk(thread, lines.chunks, step)
            element = chunk * lines.each
            wanted = cutlass.select_(line <= last, left - element, cutlass.Int32(0))
            used = cutlass.max(cutlass.min(wanted, lines.each), 0) * lines.size
            inside = cutlass.select_(used > 0, element, cutlass.Int32(0)) * lines.size
            address = base + cutlass.Int64(cutlass.min(line, last)) * pitch + inside
            target = lines.target(line, element, stage)
            act_if(there, functools.partial(copy_chunk, lines, address, target, used))

    def end(self, corner: Corner, stage: Any, phase: Any, thread: Any) -> None:
        """Do nothing: the copies write the stage themselves."""


def copy_chunk(lines: Lines, address: Any, target: Any, used: Any) -> None:
    """Copy one chunk of an operand's line to shared memory: `used` bytes of it, the others are zero; None is all."""
    numeric, width = NUMERIC[lines.operand.dtype], lines.operand.width
    source = cute.make_ptr(numeric, address, cute.AddressSpace.gmem, assumed_align=width)
    place = cute.make_ptr(numeric, target, cute.AddressSpace.smem, assumed_align=width)
    copy_async(source, place, width, used)
