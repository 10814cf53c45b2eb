# SPDX-License-Identifier: Apache-2.0
"""Races between the lanes of one warp, which the detector's segments of warps do not show.

A warp keeps its accesses since its lanes last synchronised (bar.warp.sync, any .sync operation across lanes, a barrier,
a successful wait). Lanes are compared only where an access overlaps an earlier one of the same warp.

Source: PTX ISA 9.0, 9.7.13.3 (bar.warp.sync), 8.9 (causality order is one of threads).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.memory import MemoryRegion

KEPT = 64  # accesses a warp remembers


class Recent:
    """The segments and last accesses of a warp since its lanes last synchronised."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.unmet: set[int] = set()
        self.accesses: deque[Lanes] = deque(maxlen=KEPT)


class Lanes:
    """One access by some lanes of a warp: offsets of the active lanes `m`, or one offset for all of them.

    matrix: rows of ldmatrix or stmatrix, whose bytes belong to no single lane.
    shared: whether several lanes may reach the same bytes.
    strong: atomic, volatile and the like, which do not race with each other.
    """

    __slots__ = (
        "recent", "region", "m", "offset", "size", "write", "matrix", "low", "high", "shared", "known_to", "line",
        "strong",
    )  # fmt: skip

    def __init__(
        self,
        recent: Recent,
        region: MemoryRegion,
        m: Mask,
        offset: Value,
        size: int,
        write: bool,
        matrix: bool,
        shared: bool,
        line: int = 0,
        strong: bool = False,
    ) -> None:
        self.recent, self.region, self.m, self.offset = recent, region, m, offset
        self.size, self.write, self.matrix, self.shared = size, write, matrix, shared
        self.line, self.strong = line, strong
        self.low = self.high = -1
        # lanes that have synchronised with these since, where not all have
        self.known_to: np.ndarray | None = None

    def parted(self, met: np.ndarray) -> list[Lanes]:
        """The access of the lanes `met`, which have synchronised and know it, and that of the other lanes."""
        if self.known_to is not None:
            if (self.known_to & met).any():
                self.known_to = self.known_to | met
            return [self]
        mine = self._lanes()
        inside = met[mine]
        if self.matrix or not inside.any():
            return [self]
        out = []
        for some in (inside, ~inside):
            if some.any():
                m = np.zeros(len(met), bool)
                m[mine[some]] = True
                offset = self.offset[some] if self.offset.__class__ is ND else self.offset
                how = (self.size, self.write, False, True, self.line, self.strong)
                out.append(Lanes(self.recent, self.region, m, offset, *how))
        out[0].known_to = met.copy()
        return out

    def collides(self, m: Mask, values: Sequence[Value]) -> bool:
        """Whether lanes that store to one address store different values; `values` are of all lanes."""
        vectors = [v if m is None else v[m] for v in values if v.__class__ is ND] if self.shared else []
        if not vectors:
            return False
        if self.offset.__class__ is not ND:
            return any(bool((v != v[0]).any()) for v in vectors)
        order = np.argsort(self.offset, kind="stable")
        same = self.offset[order][1:] == self.offset[order][:-1]
        return any(bool((same & (v[order][1:] != v[order][:-1])).any()) for v in vectors)

    def _lanes(self) -> np.ndarray:
        return np.flatnonzero(self.m) if self.m is not None else np.arange(self.recent.lanes)

    def meets(self, written: bool, strong: bool = False) -> tuple[int, int] | None:
        """The latest plain (or strong) write (or read) by another lane of bytes that this access reaches.

        Returns its PTX line and the offset of the first such byte.
        """
        self._bounds()
        for old in reversed(self.recent.accesses):
            alike = old.write == written and old.strong == strong
            if alike and old.region is self.region:
                old._bounds()
                at = self._conflict(old) if old.low < self.high and self.low < old.high else -1
                if at >= 0:
                    return old.line, at
        return None

    def _bounds(self) -> None:
        if self.low < 0:
            self.low, self.high = int(np.min(self.offset)), int(np.max(self.offset)) + self.size

    def _conflict(self, old: Lanes) -> int:
        """The first byte that another lane accessed and this one reaches, or -1; a lane may use bytes it wrote itself.

        Lanes that go through the same uniform accesses together act like one of them.
        """
        if self.offset.__class__ is not ND and old.offset.__class__ is not ND and self.m is old.m:
            return -1
        if self.matrix and old.matrix:
            return max(self.low, old.low) if self.write != old.write else -1
        unit = min(self.size, old.size, 4)
        mine, theirs = self._units(unit), old._units(unit)
        same = mine[0][:, None] == theirs[0][None]
        other = mine[1][:, None] != theirs[1][None]
        if old.known_to is not None:
            # -1, which is not a lane, knows what all lanes know
            known = np.append(old.known_to, old.known_to.all())
            other = other & ~known[mine[1]][:, None]
        met = (same & other).any(1)
        if old.write and not old.strong:  # a lane's own atomic may not be the last one
            met &= ~(same & ~other).any(1)
        units = mine[0][met]
        return int(units.min()) * unit if len(units) else -1

    def _units(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Units of bytes each lane reaches, and the lanes; -1, which is not a lane, for the rows of a matrix."""
        lanes = np.full(np.size(self.offset), -1) if self.matrix else self._lanes()
        offset = np.broadcast_to(np.asarray(self.offset).astype(np.int64), len(lanes))
        first = offset[:, None] // unit + np.arange(max(self.size // unit, 1))
        return first.ravel(), np.repeat(lanes, first.shape[1])
