# SPDX-License-Identifier: Apache-2.0
"""One operand's contiguous rows, as the producer warpgroup's threads load them.

A line is contiguous in memory: a row of a K-major operand, one k of any other. A tile takes `length` elements of
`count` lines. Each warp loads lines of its own, so that its lanes wait only for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import OperandConfig
from cutegemm.kernels.host.operand_layouts import batch_at
from cutegemm.kernels.memory_views import WORD
from cutegemm.kernels.schedule.work import Corner
from cutegemm.layouts.hardware import SWIZZLE_SPANS

# lines after which a swizzle repeats
PERIOD_LINES = 8


@dataclass(frozen=True)
class Lines:
    """A tile's contiguous rows in global memory and in a stage."""

    operand: OperandConfig
    mX: Any  # (rows, k, l) in global memory; l is (2, l) of a gated pair
    sX: Any  # (ROWS, BLK_K, STAGE)
    box: tuple[int, int]  # (ROWS, BLK_K)
    gate: int | None  # which half of a gated pair

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return self.operand.dtype.bytes

    @property
    def length(self) -> int:
        """Elements that a tile takes of a line."""
        return self.box[1] if self.operand.k_major else self.box[0]

    @property
    def count(self) -> int:
        """Lines of a tile."""
        return self.box[0] if self.operand.k_major else self.box[1]

    @property
    def per_warp(self) -> int:
        """Lines of a tile that each warp of the producer loads."""
        return self.count * hw.WARP // hw.WARPGROUP

    def extents(self) -> tuple[Any, Any]:
        """(lines, elements of a line) of the matrix."""
        rows, depth = self.mX.shape[0], self.mX.shape[1]
        return (rows, depth) if self.operand.k_major else (depth, rows)

    def source(self, line: Any, element: Any, batch: Any) -> Any:
        """The address of an element of the matrix; Int64."""
        at = (line, element) if self.operand.k_major else (element, line)
        index = cute.crd2idx((*at, batch_at(self.mX, batch, self.gate)), self.mX.layout)
        return self.mX.iterator.toint() + cutlass.Int64(index) * self.size

    @property
    def pitch(self) -> Any:
        """Bytes from one line of the matrix to the next; Int64."""
        return cutlass.Int64(self.mX.stride[0 if self.operand.k_major else 1]) * self.size

    def span(self) -> tuple[Any, Any]:
        """The addresses of the matrix's first byte and of the byte after its last, over both halves and all batches."""
        last = tuple(self.mX.shape[i] - 1 for i in range(2))
        if self.gate is None:
            batch = cute.size(self.mX, mode=[2]) - 1
        else:
            batch = (1, cute.size(self.mX, mode=[2, 1]) - 1)
        index = cute.crd2idx((*last, batch), self.mX.layout)
        start = self.mX.iterator.toint()
        return start, start + (cutlass.Int64(index) + 1) * self.size

    def origin(self, corner: Corner) -> tuple[Any, Any]:
        """(first line, first element of it) of the tile that begins at `corner`."""
        row, k = corner.row, corner.column
        return (row, k) if self.operand.k_major else (k, row)

    @property
    def each(self) -> int:
        """Elements of a copy of WIDTH bytes."""
        return self.operand.width // self.size

    @property
    def chunks(self) -> int:
        """Such copies of a line."""
        return self.length // self.each

    def steps(self, chunks: int) -> int:
        """Chunks of a thread, if a line has so many; some threads may have one less."""
        return -(-self.per_warp * chunks // hw.WARP)

    def chunk(self, thread: Any, chunks: int, step: Any) -> tuple[Any, Any, Any]:
        """(line, chunk of it, whether it exists) of a thread's step. Neighbouring lanes have neighbouring chunks."""
        index = (thread & (hw.WARP - 1)) + step * hw.WARP
        line, chunk = divided(index, chunks)
        whole = self.per_warp * chunks % hw.WARP == 0
        there = None if whole else index < self.per_warp * chunks
        return (thread >> 5) * self.per_warp + line, chunk, there

    @property
    def even(self) -> bool:
        """Whether each step of a thread is a constant number of lines and chunks behind its first."""
        return hw.WARP % self.chunks == 0 or self.chunks % hw.WARP == 0

    def place(self, thread: Any, step: int) -> Any:
        """Where a thread's chunk lies in the first stage; of those that lie whole periods apart one is computed."""
        period, moved = step, 0
        repeats = PERIOD_LINES * self.chunks // hw.WARP
        if self.even and repeats > 0:
            period, moved = step % repeats, step // repeats * PERIOD_LINES
        line, chunk, _ = self.chunk(thread, self.chunks, period)
        return self.target(line, chunk * self.each, 0) + moved * SWIZZLE_SPANS[self.operand.swizzle]

    def target(self, line: Any, element: Any, stage: Any) -> Any:
        """The address of an element of a stage; Int32.

        A stage is a sequence of panels that hold one swizzle row of every line (`operand_layouts.item_layout`). The
        swizzle permutes chunks of 16 bytes: it XORs address bits 4 and up with the bits from 7 on.
        """
        width = self.width
        lines = self.count * (self.operand.halves if self.operand.k_major else 1)
        block, within = divided(element, width)
        index = (block * lines + line) * width + within + stage * self.stage_elements
        plain = self.sX.iterator.toint() + index * self.size
        return plain ^ ((plain >> 3) & (SWIZZLE_SPANS[self.operand.swizzle] - WORD))

    @property
    def width(self) -> int:
        """Elements of a row of the swizzle."""
        return SWIZZLE_SPANS[self.operand.swizzle] // self.size

    @property
    def stage_bytes(self) -> int:
        """Bytes of a stage of the operand, both halves of a gated pair."""
        return self.stage_elements * self.size

    @property
    def stage_elements(self) -> int:
        """Elements of a stage of the operand, both halves of a gated pair."""
        return self.box[0] * self.box[1] * self.operand.halves


def divided(value: Any, by: int) -> tuple[Any, Any]:
    """Quotient and remainder of a nonnegative number."""
    if by & (by - 1) == 0:
        return value >> (by.bit_length() - 1), value & (by - 1)
    quotient = cutlass.Int32(cutlass.Uint32(value) // by)
    return quotient, value - quotient * by
