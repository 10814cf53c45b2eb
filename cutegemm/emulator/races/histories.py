# SPDX-License-Identifier: Apache-2.0
"""The strong accesses that reached each cell of a region since its last plain write."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.races.cells import CellSet


@dataclass(slots=True)
class History:
    """The strong accesses to a cell since its last plain write: sets of segments as bits, and their PTX lines."""

    writes: int = 0
    reads: int = 0
    lines: dict[int, int] = field(default_factory=dict)
    # Warp -> the segment of its last access that returned a value, and the segments that it came after.
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)

    def unseen(self, bits: int, known: int) -> int:
        """Those of `bits` that no access in `known` came after."""
        for segment, before in self.seen.values():
            if bits and known >> segment & 1:
                bits &= ~before
        return bits


class StrongCells:
    """The cells of a region that strong accesses reached, all within [first, last)."""

    def __init__(self, cells: int) -> None:
        self.marked = np.zeros(cells, bool)
        self.first, self.last = cells, 0
        self.cells: dict[int, History] = {}

    def near(self, where: CellSet) -> list[int]:
        """The cells that are in `where` too."""
        if not where.overlaps(self):
            return []
        index = where.index
        common: list[int] = index[self.marked[index]].tolist()
        return common

    def histories(self, where: CellSet) -> list[History]:
        """The histories of all the cells of `where`; new ones where there are none."""
        self.first, self.last = min(self.first, where.first), max(self.last, where.last)
        self.marked[where.index] = True
        return [self.cells.setdefault(cell, History()) for cell in where.index.tolist()]

    def clear(self, where: CellSet) -> None:
        """A plain write: earlier accesses are ordered before it, or have been reported."""
        for cell in self.near(where):
            del self.cells[cell]
            self.marked[cell] = False

    def written(self, where: CellSet) -> np.ndarray:
        """For each of the cells, whether a strong write reached it."""
        cells = self.cells
        return np.array([c in cells and cells[c].writes != 0 for c in where.index.tolist()], bool)
