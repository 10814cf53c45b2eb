# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers: segments, and which of them touched each cell of a memory last."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.races import scan
from cutegemm.emulator.races.cells import CellSet
from cutegemm.emulator.races.histories import StrongCells
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import MemoryRegion

# bytes from which a row lies in pages of its own, of which only those that are touched take memory
LAZY_BYTES = 1 << 16


class Weak(NamedTuple):
    """Sets of segments that arrived through relaxed accesses and that no fence of the reader has made known."""

    seen: int  # released by a fence of their writer
    unreleased: int  # without any fence


class Knowledge(NamedTuple):
    """Sets of segments, as bits: finished ones, and those whose plain writes the async proxy sees, by memory."""

    segments: int  # finished, and ordered before
    shared: int  # fenced in shared memory
    world: int  # fenced in global memory
    # strict runs: known only because a wgmma's wait covers the warpgroup, which PTX does not say
    grouped: int = 0
    weak: Weak | None = None

    def __or__(self, other: Knowledge) -> Knowledge:
        weak, more = self[4], other[4]
        if weak is None or more is None:
            weak = more if weak is None else weak
        else:
            weak = Weak(weak[0] | more[0], weak[1] | more[1])
        return Knowledge(self[0] | other[0], self[1] | other[1], self[2] | other[2], self[3] | other[3], weak)


NOTHING = Knowledge(0, 0, 0)


def as_bits(numbers: list[int]) -> int:
    """A set of segments as bits; numbers near each other cost one long shift."""
    if not numbers:
        return 0
    least = min(numbers)
    out = 0
    for number in numbers:
        out |= 1 << number - least
    return out << least


class ShadowRow:
    """Per cell in [first, last) the complement of a `scan.word`: of its last write, or of one reader's last read."""

    __slots__ = ("cells", "at", "first", "last")

    def __init__(self, cells: int) -> None:
        if 8 * cells < LAZY_BYTES:
            self.cells = np.zeros(cells, np.int64)
        else:  # np.zeros may reuse freed memory, which it then writes, even where a warp touches few cells
            pages = mmap.mmap(-1, 8 * cells, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.cells = np.frombuffer(pages, np.int64)
        self.at = self.cells.ctypes.data
        self.first, self.last = cells, 0

    def clear(self) -> ShadowRow:
        """Empty the row."""
        self.cells[self.first : self.last] = 0
        self.first, self.last = len(self.cells), 0
        return self

    def put(self, where: CellSet, word: int) -> None:
        """Set some cells."""
        scan.put(self.at, where.runs, word)
        if where.first < self.first:
            self.first = where.first
        if where.last > self.last:
            self.last = where.last


# Cells that an access reached, and its word.
Listed: TypeAlias = tuple[CellSet, int]


class Shadow:
    """For each cell of a region the access that wrote it last, and per reader the one that read it last."""

    def __init__(self, region: MemoryRegion, cell: int, spare: dict[int, list[ShadowRow]]) -> None:
        self.cells = len(region.data) // cell
        self.shared = region.shared
        self.spare = spare.setdefault(self.cells, [])  # empty rows of other memories of the same size
        self.written_by = self._row()
        self.written = False  # whether anything has written here
        self.readers: dict[object, ShadowRow] = {}
        self.wide_reads: list[Listed] = []  # asynchronous reads of global memory
        self.reductions: list[Listed] = []
        self.strong: StrongCells | None = None  # strong accesses, once there are some

    def _row(self) -> ShadowRow:
        return self.spare.pop() if self.spare else ShadowRow(self.cells)

    def give_back(self) -> None:
        """Let other memories use the rows: making new ones takes longer than clearing these."""
        self.spare += [row.clear() for row in (self.written_by, *self.readers.values())]

    def read(self, who: object, where: CellSet, word: int) -> None:
        """A reader reads some cells; `word` is its access."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = self._row()
        row.put(where, word)

    def overlapping(self, listed: list[Listed], where: CellSet) -> Iterator[npt.NDArray[np.int64]]:
        """For each listed access that reaches some of the cells, its word at these and -1 at the others."""
        near = [(cells, word) for cells, word in listed if cells.overlaps(where)]
        marked = where.mark(self.cells) if near else None
        for cells, word in near:
            if marked is not None and marked[cells.index].any():
                yield np.where(cells.mark(self.cells)[where.index], word, -1)


@dataclass(slots=True)
class Segment:
    """A stretch of a warp's run, or an asynchronous operation, as findings describe it."""

    what: str
    who: str
    generic: bool  # of the generic proxy; else of the async proxy
    atomic: bool = False  # a reduction, which does not race with others
    launch: int = 0  # of a sequence
    cta: Triple = (0, 0, 0)

    def name(self, wrote: bool) -> str:
        """What findings call an access of it: a segment of a warp holds both loads and stores."""
        return ("store" if wrote else "load") if self.what == "access" else self.what


class Earlier(NamedTuple):
    """The earlier access of a finding."""

    segment: int
    line: int  # of the PTX
    wrote: bool


SyncPlace: TypeAlias = tuple[MemoryRegion, int, Triple | None]  # region, offset, CTA or None


class Access(NamedTuple):
    """An access to compare with earlier ones; `fenced`: the segments that the async proxy sees in this memory."""

    region: MemoryRegion
    where: CellSet
    write: bool
    segment: int
    line: int
    known: Knowledge
    fenced: int
    lanes: Lanes | None
