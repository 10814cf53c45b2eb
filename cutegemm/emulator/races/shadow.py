# SPDX-License-Identifier: Apache-2.0
"""State of the race detector: segments, and for each cell of memory the last accesses to it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np

from cutegemm.emulator.races import scan
from cutegemm.emulator.races.cells import CellSet
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import MemoryRegion

# rows of at least so many bytes get pages of their own; pages that no access touches take no memory
LAZY_BYTES = 1 << 16


class Weak(NamedTuple):
    """Sets of segments that relaxed reads found, but no fence of the reader has made known."""

    seen: int  # released by a fence of their writer
    unreleased: int  # not released by any fence


class Knowledge(NamedTuple):
    """Sets of segments, as bits, that an access may rely on."""

    segments: int  # finished, and ordered before
    shared: int  # plain writes to shared memory that the async proxy sees
    world: int  # plain writes to global memory that the async proxy sees
    # in strict runs: finished only if a wait for wgmma covers other warps, which the PTX ISA does not say
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
    """A set of segments as bits. Shifting by the least number once is faster than setting bits of a long int."""
    if not numbers:
        return 0
    least = min(numbers)
    out = 0
    for number in numbers:
        out |= 1 << number - least
    return out << least


class ShadowRow:
    """The last write, or the last read by one reader, of each cell in [first, last), as complements of `scan.word`."""

    __slots__ = ("cells", "at", "first", "last")

    def __init__(self, cells: int) -> None:
        if 8 * cells < LAZY_BYTES:
            self.cells = np.zeros(cells, np.int64)
        else:  # np.zeros may reuse freed memory and clear all of it, although a warp touches few cells
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

    def words(self, where: CellSet) -> list[int]:
        """The different words in some cells."""
        words = scan.words_in(self.at, where.runs)
        return np.unique(~self.cells[where.index]).tolist() if words is None else words

    def first_cell(self, where: CellSet, word: int) -> int:
        """The first of some cells that holds a word."""
        return int(where.index[np.flatnonzero(~self.cells[where.index] == word)[0]])


@dataclass(slots=True)
class History:
    """The strong accesses to a cell since its last plain write: sets of segments, and their PTX lines."""

    writes: int = 0
    reads: int = 0
    lines: dict[int, int] = field(default_factory=dict)
    # Warp -> the segment of its last access that returned a value, and the segments that it came after.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def unseen(self, bits: int, known: int) -> int:
        """The segments in `bits` that no access in `known` has seen."""
        for segment, before in self.seen.values():
            if bits and known >> segment & 1:
                bits &= ~before
        return bits


class StrongCells:
    """The cells of a region that strong accesses reached; all lie within [first, last)."""

    def __init__(self, cells: int) -> None:
        self.marked = np.zeros(cells, bool)
        self.first, self.last = cells, 0
        self.cells: dict[int, History] = {}

    def near(self, where: CellSet) -> list[int]:
        """The cells that are also in `where`."""
        if not where.overlaps(self):
            return []
        index = where.index
        common: list[int] = index[self.marked[index]].tolist()
        return common

    def histories(self, where: CellSet) -> list[History]:
        """The histories of the cells of `where`; makes missing ones."""
        self.first, self.last = min(self.first, where.first), max(self.last, where.last)
        self.marked[where.index] = True
        return [self.cells.setdefault(cell, History()) for cell in where.index.tolist()]

    def clear(self, where: CellSet) -> None:
        """Forget the cells of a plain write: earlier accesses are ordered before it, or have been reported."""
        for cell in self.near(where):
            del self.cells[cell]
            self.marked[cell] = False

    def written(self, where: CellSet) -> np.ndarray:
        """Whether a strong write reached each of the cells."""
        cells = self.cells
        return np.array([c in cells and cells[c].writes != 0 for c in where.index.tolist()], bool)


Listed: TypeAlias = tuple[CellSet, int]  # cells of an access, and its word


class Shadow:
    """The last write of each cell of a region, and the last read of it by each reader."""

    def __init__(self, region: MemoryRegion, cell: int, spare: dict[int, list[ShadowRow]]) -> None:
        self.cells = len(region.data) // cell
        self.shared = region.shared
        self.spare = spare.setdefault(self.cells, [])  # empty rows of other memories of the same size
        self.written_by = self._row()
        self.written = False  # whether any cell has been written
        self.readers: dict[object, ShadowRow] = {}
        self.wide_reads: list[Listed] = []  # asynchronous reads of global memory
        self.reductions: list[Listed] = []
        self.strong: StrongCells | None = None  # strong accesses, once there are some

    def _row(self) -> ShadowRow:
        return self.spare.pop() if self.spare else ShadowRow(self.cells)

    def give_back(self) -> None:
        """Clear the rows for other regions: new rows take longer."""
        self.spare += [row.clear() for row in (self.written_by, *self.readers.values())]

    def read(self, who: object, where: CellSet, word: int) -> None:
        """A reader reads some cells; `word` is its access."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = self._row()
        row.put(where, word)

    def overlapping(self, listed: list[Listed], where: CellSet) -> dict[int, int]:
        """The word of each listed access that reaches some of the cells, and the first of these cells."""
        near = [(cells, word) for cells, word in listed if cells.overlaps(where)]
        if not near:
            return {}
        marked = np.zeros(self.cells, bool)
        marked[where.index] = True
        common = {word: cells.index[marked[cells.index]] for cells, word in near}
        return {word: int(cells.min()) for word, cells in common.items() if len(cells)}


@dataclass(slots=True)
class Segment:
    """What a warp did between two releases, or an asynchronous operation."""

    what: str
    who: str
    generic: bool  # of the generic proxy; else of the async proxy
    atomic: bool = False  # a reduction, which does not race with others
    launch: int = 0  # number of the launch in a sequence
    cta: Triple = (0, 0, 0)

    def name(self, wrote: bool) -> str:
        """Name of an access in findings; a segment of a warp holds both loads and stores."""
        return ("store" if wrote else "load") if self.what == "access" else self.what


class Earlier(NamedTuple):
    """The earlier access of a finding."""

    segment: int
    line: int  # of PTX
    wrote: bool


SyncPlace: TypeAlias = tuple[MemoryRegion, int, Triple | None]  # region, offset, CTA or None


class Access(NamedTuple):
    """An access to compare with earlier ones; `fenced` are segments whose writes the async proxy sees here."""

    region: MemoryRegion
    where: CellSet
    write: bool
    segment: int
    line: int
    known: Knowledge
    fenced: int
    lanes: Lanes | None
