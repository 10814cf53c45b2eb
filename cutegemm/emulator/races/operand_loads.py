# SPDX-License-Identifier: Apache-2.0
"""What tensor loads write to shared memory, beside what wgmma reads there by its descriptors: swizzle and bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cutegemm.emulator.races import scan
from cutegemm.emulator.races.shadow import Shadow


class OperandLoads:
    """The tensor loads of a launch: the swizzle mode of each, by its segment.

    Attributes:
        whole: the segments of boxes that lie within their tensor. A kernel need not read the zeros of another box.
    """

    def __init__(self) -> None:
        self.by_segment: dict[int, int] = {}
        self.modes: set[int] = set()
        self.whole: set[int] = set()

    def load(self, segment: int, mode: int, whole: bool) -> None:
        """A tensor load writes with a mode (`TensorMap.swizzle`)."""
        self.by_segment[segment] = mode
        self.modes.add(mode)
        if whole:
            self.whole.add(segment)

    def differ(self, mode: int) -> bool:
        """Whether any tensor load has another mode."""
        return not self.modes <= {mode}

    def of_word(self, word: int, otherwise: int) -> int:
        """The mode that a cell was written with (`scan.word`); `otherwise` if no tensor load wrote it."""
        return otherwise if word < 0 else self.by_segment.get(scan.access_of(word)[0], otherwise)

    def unread(self, shadow: Shadow) -> Iterator[tuple[int, int, int]]:
        """Loads of whole boxes that wgmma read in part: word, number and first of the cells that nothing read.

        Only the last contents of the memory are known.
        """
        row = shadow.written_by
        if not self.whole or row.first >= row.last:
            return
        wrote = row.cells[row.first : row.last]
        read = {key: x.cells[row.first : row.last] != 0 for key, x in shadow.readers.items()}
        multiplied = [cells for key, cells in read.items() if isinstance(key, tuple) and key[0] == "wgmma"]
        if not multiplied:
            return
        some, every = np.logical_or.reduce(multiplied), np.logical_or.reduce(list(read.values()))
        for cell in np.unique(wrote[some & (wrote != 0)]).tolist():
            rest = np.flatnonzero((wrote == cell) & ~every)
            if len(rest) and scan.access_of(~cell)[0] in self.whole:
                yield ~cell, len(rest), row.first + int(rest[0])
