# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers: segments, and who touched each cell of a memory last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.state.memory import Region
from cutegemm.emulator.watch import scan
from cutegemm.emulator.watch.cells import Where

if TYPE_CHECKING:
    from cutegemm.emulator.translate.program import Program
    from cutegemm.emulator.watch.lanes import Lanes


class Known(NamedTuple):
    """Sets of segments, as bits: finished ones, and those whose plain writes the async proxy sees, by memory."""

    segments: int  # finished, and ordered before
    shared: int  # fenced in shared memory
    world: int  # fenced in global memory
    grouped: int = (
        0  # strict runs: known only because a wgmma's wait covers the warpgroup, which PTX does not say
    )

    def __or__(self, other: Known) -> Known:
        return Known(self[0] | other[0], self[1] | other[1], self[2] | other[2], self[3] | other[3])


NOTHING = Known(0, 0, 0)


def as_bits(numbers: list[int]) -> int:
    """A set of segments as bits; numbers near each other cost one long shift."""
    if not numbers:
        return 0
    least = min(numbers)
    out = 0
    for number in numbers:
        out |= 1 << number - least
    return out << least


class Row:
    """A segment per cell: of who wrote it last, or of one reader's last reads, which lie in [first, last)."""

    __slots__ = ("cells", "at", "first", "last")

    def __init__(self, cells: int) -> None:
        self.cells = np.full(cells, -1, np.int32)
        self.at = self.cells.ctypes.data
        self.first, self.last = cells, 0

    def clear(self) -> Row:
        """The row as it was made."""
        self.cells[self.first : self.last] = -1
        self.first, self.last = len(self.cells), 0
        return self


class Shadow:
    """For each cell of a region the segment that wrote it last, and per reader the segment that read it last."""

    def __init__(self, region: Region, cell: int, spare: dict[int, list[Row]]) -> None:
        self.cells = len(region.data) // cell
        self.shared = region.name.startswith("shared")
        self.spare = spare.setdefault(self.cells, [])  # rows to use again
        self.written_by = self._row()
        self.writer = self.written_by.cells
        self.written = False  # whether anything has written here
        self.readers: dict[object, Row] = {}
        # Asynchronous reads of global memory, and reductions, each with its segment.
        self.wide_reads: list[tuple[Where, int]] = []
        self.reductions: list[tuple[Where, int]] = []

    def reader(self, who: object) -> Row:
        """The row of a reader."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = self._row()
        return row

    def _row(self) -> Row:
        return self.spare.pop() if self.spare else Row(self.cells)

    def give_back(self, spare: dict[int, list[Row]]) -> None:
        """Let other memories of the same size have the rows: making new ones takes longer than clearing these."""
        self.written_by.first, self.written_by.last = 0, self.cells
        spare.setdefault(self.cells, []).extend(
            row.clear() for row in (self.written_by, *self.readers.values())
        )

    def read(self, who: object, where: Where, segment: int) -> None:
        """A reader's segment reads some cells."""
        row = self.reader(who)
        scan.put(row.at, where.runs, segment)
        if where.first < row.first:
            row.first = where.first
        if where.last > row.last:
            row.last = where.last

    def meeting(self, listed: list[tuple[Where, int]], where: Where) -> Iterator[npt.NDArray[np.int32]]:
        """For each listed access that reaches some of the cells, an array of its segment."""
        near = [(w, segment) for w, segment in listed if w.first < where.last and where.first < w.last]
        if near:
            marked = np.zeros(self.cells, bool)
            marked[where.index] = True
            for w, segment in near:
                if marked[w.index].any():
                    yield np.where(w.mark(self.cells)[where.index], segment, -1)


@dataclass(slots=True)
class Segment:
    """What a finding says about an access: who and where."""

    what: str
    who: str
    line: int
    generic: bool  # of the generic proxy; else of the async proxy
    atomic: bool = False  # a reduction, which does not race with others
    launch: int = 0  # of a sequence
    cta: tuple[int, int, int] = (0, 0, 0)


class Lines:
    """Basic block and source line of a program's PTX lines."""

    def __init__(self, program: Program) -> None:
        self.blocks = {ins.line: n for n, block in enumerate(program.blocks) for ins in block.code}
        self.sources = {ins.line: ins.source for block in program.blocks for ins in block.code}


SyncPlace: TypeAlias = tuple[int, int, tuple[int, int, int] | None]  # region, offset, CTA or None


class Access(NamedTuple):
    """An access to compare with earlier ones; `fenced`: of `known`, what the async proxy sees of this memory."""

    region: Region
    where: Where
    write: bool
    segment: int
    known: Known
    fenced: int
    lanes: Lanes | None
