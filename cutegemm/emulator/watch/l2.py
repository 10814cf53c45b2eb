# SPDX-License-Identifier: Apache-2.0
"""A model of L2, a set-associative cache: which sectors hit, come from DRAM, and are written back.

A cache line of 128 bytes has four sectors of 32. A missing line replaces the least recently used one of its set, and
only the requested sectors are fetched. A written sector needs no fetch and is written back when its line is replaced.
The model places buffers one after another in the order of their first use, so counts are reproducible.

The real cache hashes addresses and has two partitions. L1 caches are not modelled, so repeated plain loads that would
hit L1 count as L2 reads.

Source: NVIDIA H100 architecture whitepaper (50 MB L2), Nsight Compute documentation (lines and sectors).
"""

from __future__ import annotations

import numpy as np

from cutegemm.emulator.state.hooks import row_starts
from cutegemm.emulator.state.memory import MemoryRegion

LINE_BYTES, SECTOR_BYTES = 128, 32
L2_BYTES = 50 * 2**20  # H100 and H200
WAYS = 16


class L2:
    """The cache and its counts, in sectors, for one or more launches."""

    def __init__(self, size: int = L2_BYTES) -> None:
        self.sets = max(size // (LINE_BYTES * WAYS), 1)
        # set -> line -> [valid sectors, dirty sectors], least recently used first
        self.lines: dict[int, dict[int, list[int]]] = {}
        # base address of a region -> offset to add to its line numbers
        self.starts: dict[int, int] = {}
        self.end = 0
        self.read = self.written = self.fetched = self.written_back = 0

    def access(self, region: MemoryRegion, sectors: np.ndarray, write: bool) -> None:
        """Read or write sectors (address / 32) of a region; they are sorted and different."""
        start = self.starts.get(region.base)
        if start is None:
            start = self.starts[region.base] = self.end - region.base // LINE_BYTES
            self.end += -(-len(region.data) // LINE_BYTES) + 1
        lines = sectors >> 2
        first = np.flatnonzero(np.diff(lines, prepend=-1))
        masks = np.bitwise_or.reduceat(1 << (sectors & 3), first)
        if write:
            self.written += len(sectors)
        else:
            self.read += len(sectors)
        for line, mask in zip((lines[first] + start).tolist(), masks.tolist(), strict=True):
            self._touch(line, mask, write)

    def _touch(self, line: int, mask: int, write: bool) -> None:
        held = self.lines.setdefault(line % self.sets, {})
        entry = held.pop(line, None)
        if entry is None:
            entry = [0, 0]
            if len(held) >= WAYS:
                self.written_back += held.pop(next(iter(held)))[1].bit_count()
        if write:
            entry[1] |= mask
        else:
            self.fetched += (mask & ~entry[0]).bit_count()
        entry[0] |= mask
        held[line] = entry

    @property
    def dirty(self) -> int:
        """Number of dirty sectors."""
        return sum(entry[1].bit_count() for held in self.lines.values() for entry in held.values())


def sectors_of(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """The sorted sectors of a box at address `start` (`hooks.Reach`)."""
    rows = row_starts(start, shape, strides)
    low, high = rows // SECTOR_BYTES, (rows + shape[-1] - 1) // SECTOR_BYTES
    span = int((high - low).max()) + 1
    sectors = low[:, None] + np.arange(span)
    return np.unique(sectors[sectors <= high[:, None]])
