# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers: findings, segments, and who touched each cell of a memory last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cutegemm.emulator.kernel import TYPE_BYTES
from cutegemm.emulator.memory import Region


class Known(NamedTuple):
    """Sets of segments, as bits: finished ones, and those whose plain writes the async proxy sees, by memory."""

    segments: int  # finished, and ordered before
    shared: int  # fenced in shared memory
    world: int  # fenced in global memory

    def __or__(self, other: Known) -> Known:
        return Known(self[0] | other[0], self[1] | other[1], self[2] | other[2])


NOTHING = Known(0, 0, 0)


@dataclass(frozen=True)
class Finding:
    """One defect: its kind, what happened, and the PTX lines of the accesses (earlier one first, 0 if unknown)."""

    kind: str
    text: str
    lines: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Shadow:
    """For each cell of a region the segment that wrote it last, and per reader the segment that read it last."""

    def __init__(self, region: Region, cell: int):
        self.cells = len(region.data) // cell
        self.cell = cell
        self.writer = np.full(self.cells, -1, np.int32)
        self.written = False  # whether anything has written here
        self.readers: dict[object, list] = {}  # reader -> [array, first cell, past the last cell]
        # Asynchronous reads of global memory, and reductions, each with its segment.
        self.wide_reads: list[tuple[Where, int]] = []
        self.reductions: list[tuple[Where, int]] = []

    def reader(self, who: object) -> list:
        """The row of a reader."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = [np.full(self.cells, -1, np.int32), self.cells, 0]
        return row

    def meeting(self, listed: list[tuple[Where, int]], where: Where):
        """For each listed access that reaches some of the cells, an array of its segment."""
        near = [(w, segment) for w, segment in listed if w.first < where.last and where.first < w.last]
        if near:
            marked = np.zeros(self.cells, bool)
            where.put(marked, True)
            for w, segment in near:
                if w.take(marked).any():
                    yield np.where(where.take(w.mark(self.cells)), segment, -1)


class Where:
    """A set of cells: a slice, an index array, or rows in steps (`rows` = (shape, strides), both in cells)."""

    __slots__ = ("index", "first", "last", "rows")

    def __init__(self, index, first: int, last: int, rows: tuple | None = None):
        self.index, self.first, self.last, self.rows = index, first, last, rows

    def take(self, array: np.ndarray) -> np.ndarray:
        """The elements of these cells."""
        return array[self.index] if self.rows is None else self._view(array)

    def put(self, array: np.ndarray, value) -> None:
        """Set the elements of these cells."""
        if self.rows is None:
            array[self.index] = value
        else:
            self._view(array)[...] = value

    def mark(self, cells: int) -> np.ndarray:
        """All cells of a region, true at these."""
        out = np.zeros(cells, bool)
        self.put(out, True)
        return out

    def cell(self, position: int) -> int:
        """The cell at a position of what `take` gives, flattened."""
        if self.rows is not None:
            at = np.unravel_index(position, self.rows[0])
            return self.first + int(sum(i * s for i, s in zip(at, self.rows[1], strict=True)))
        return self.first + position if isinstance(self.index, slice) else int(self.index[position])

    def _view(self, array: np.ndarray) -> np.ndarray:
        shape, strides = self.rows
        item = array.itemsize
        return np.lib.stride_tricks.as_strided(array[self.first :], shape, [s * item for s in strides])


@dataclass
class Segment:
    """What a finding says about an access: who and where."""

    what: str
    who: str
    line: int
    generic: bool  # of the generic proxy; else of the async proxy
    atomic: bool = False  # a reduction, which does not race with others


def cell_bytes(program) -> int:
    """4-byte cells, or smaller ones when the kernel accesses shared or global memory in smaller units."""
    sizes = [4]
    for block in program.blocks:
        for ins in block.code:
            if ins.parts[0] in ("ld", "st") and not {"param", "local"} & set(ins.parts):
                sizes.append(TYPE_BYTES.get(ins.parts[-1], 4))
            elif ins.parts[0] == "wmma":
                sizes.append(2)
    return min(sizes)
