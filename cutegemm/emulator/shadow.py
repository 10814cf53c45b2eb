# SPDX-License-Identifier: Apache-2.0
"""What the race detector remembers: findings, segments, and who touched each cell of a memory last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.memory import Region
from cutegemm.emulator.parse import TYPE_BYTES


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
        self.readers: dict[object, list] = {}  # reader -> [array, first cell, past the last cell]

    def reader(self, who: object) -> list:
        """The row of a reader."""
        row = self.readers.get(who)
        if row is None:
            row = self.readers[who] = [np.full(self.cells, -1, np.int32), self.cells, 0]
        return row


class Where:
    """A set of cells: a slice, or an index array."""

    __slots__ = ("index", "first", "last")

    def __init__(self, index, first: int, last: int):
        self.index, self.first, self.last = index, first, last


@dataclass
class Segment:
    """What a finding says about an access: who and where."""

    what: str
    who: str
    line: int
    generic: bool


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
