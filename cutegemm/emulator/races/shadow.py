# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers: segments, and who touched each cell of a memory last."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.races import scan
from cutegemm.emulator.races.cells import CellSet
from cutegemm.emulator.races.histories import StrongCells
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.state.memory import MemoryRegion

# bytes from which a row lies in pages of its own, of which only those that are touched take memory
LAZY_BYTES = 1 << 16


class Weak(NamedTuple):
    """Sets of segments that arrived through relaxed accesses and that no fence of the reader has made known."""

    seen: int  # released by a fence of their writer
    unreleased: int  # not even that


class Knowledge(NamedTuple):
    """Sets of segments, as bits: finished ones, and those whose plain writes the async proxy sees, by memory."""

    segments: int  # finished, and ordered before
    shared: int  # fenced in shared memory
    world: int  # fenced in global memory
    grouped: int = (
        0  # strict runs: known only because a wgmma's wait covers the warpgroup, which PTX does not say
    )

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


def _zeros(count: int) -> npt.NDArray[np.int64]:
    """Numbers; a warp reads few of a large region, so the C library's zeros, which it may write, cost too much."""
    if 8 * count < LAZY_BYTES:
        return np.zeros(count, np.int64)
    pages = mmap.mmap(-1, 8 * count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.int64)


class ShadowRow:
    """Per cell the complement of the `scan.word` that wrote it last, or that one reader read last: in [first, last)."""

    __slots__ = ("cells", "at", "first", "last")

    def __init__(self, cells: int) -> None:
        self.cells = _zeros(cells)
        self.at = self.cells.ctypes.data
        self.first, self.last = cells, 0

    def clear(self) -> ShadowRow:
        """The row as it was made."""
        self.cells[self.first : self.last] = 0
        self.first, self.last = len(self.cells), 0
        return self


class Shadow:
    """For each cell of a region the access that wrote it last, and per reader the one that read it last."""

    def __init__(self, region: MemoryRegion, cell: int, spare: dict[int, list[ShadowRow]]) -> None:
        self.cells = len(region.data) // cell
        self.shared = region.shared
        self.spare = spare.setdefault(self.cells, [])  # rows to use again
        self.written_by = self._row()
        self.writer = self.written_by.cells
        self.written = False  # whether anything has written here
        self.readers: dict[object, ShadowRow] = {}
        # Asynchronous reads of global memory, and reductions, each with the word of its access.
        self.wide_reads: list[tuple[CellSet, int]] = []
        self.reductions: list[tuple[CellSet, int]] = []
        self.strong: StrongCells | None = None  # strong accesses, once there are some

    def reader(self, who: object) -> ShadowRow:
        """The row of a reader."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = self._row()
        return row

    def _row(self) -> ShadowRow:
        return self.spare.pop() if self.spare else ShadowRow(self.cells)

    def give_back(self, spare: dict[int, list[ShadowRow]]) -> None:
        """Let other memories of the same size have the rows: making new ones takes longer than clearing these."""
        self.written_by.first, self.written_by.last = 0, self.cells
        spare.setdefault(self.cells, []).extend(
            row.clear() for row in (self.written_by, *self.readers.values())
        )

    def read(self, who: object, where: CellSet, word: int) -> None:
        """A reader reads some cells; `word` is its access."""
        row = self.reader(who)
        scan.put(row.at, where.runs, word)
        if where.first < row.first:
            row.first = where.first
        if where.last > row.last:
            row.last = where.last

    def meeting(self, listed: list[tuple[CellSet, int]], where: CellSet) -> Iterator[npt.NDArray[np.int64]]:
        """For each listed access that reaches some of the cells, an array of its word."""
        near = [(w, word) for w, word in listed if w.first < where.last and where.first < w.last]
        if near:
            marked = np.zeros(self.cells, bool)
            marked[where.index] = True
            for w, word in near:
                if marked[w.index].any():
                    yield np.where(w.mark(self.cells)[where.index], word, -1)


@dataclass(slots=True)
class Segment:
    """What a finding says about an access: who and where."""

    what: str
    who: str
    generic: bool  # of the generic proxy; else of the async proxy
    atomic: bool = False  # a reduction, which does not race with others
    launch: int = 0  # of a sequence
    cta: tuple[int, int, int] = (0, 0, 0)

    def name(self, wrote: bool) -> str:
        """What findings call an access of it: a segment of a warp holds both loads and stores."""
        return ("store" if wrote else "load") if self.what == "access" else self.what


class Earlier(NamedTuple):
    """The earlier access of a finding."""

    segment: int
    line: int  # of the PTX
    wrote: bool


class LineTable:
    """Basic block and source line of a program's PTX lines."""

    def __init__(self, program: Translation) -> None:
        self.blocks = {ins.line: n for n, block in enumerate(program.blocks) for ins in block.code}
        self.sources = {ins.line: ins.source for block in program.blocks for ins in block.code}


SyncPlace: TypeAlias = tuple[MemoryRegion, int, tuple[int, int, int] | None]  # region, offset, CTA or None


class Access(NamedTuple):
    """An access to compare with earlier ones; `fenced`: of `known`, what the async proxy sees of this memory."""

    region: MemoryRegion
    where: CellSet
    write: bool
    segment: int
    line: int
    known: Knowledge
    fenced: int
    lanes: Lanes | None
