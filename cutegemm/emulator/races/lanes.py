# SPDX-License-Identifier: Apache-2.0
"""Races between the lanes of one warp; the detector itself only compares segments of whole warps.

A warp keeps its accesses since its lanes last synchronised (bar.warp.sync, any .sync operation across lanes, a barrier,
a successful wait). Lanes are compared only where an access overlaps an earlier one of the same warp.

Source: PTX ISA 9.0, 9.7.13.3 (bar.warp.sync), 8.9 (causality order is one of threads).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.memory import MemoryRegion

KEPT = 64  # accesses a warp remembers


class Recent:
    """The segments and last accesses of a warp since its lanes last synchronised.

    `unreleased` are accesses to shared memory that only an arrival by their own lanes releases. A wait ends what
    counts as recent, but it releases nothing.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.segments: set[int] = set()
        self.accesses: deque[Lanes] = deque(maxlen=KEPT)
        self.unreleased: deque[Lanes] = deque(maxlen=KEPT)
        # Order between lanes by strong accesses: the lanes that released something at each place, the lanes that a
        # fence will order after them, and whether a fence follows the last plain access.
        self.released: dict[tuple[MemoryRegion, int], np.ndarray] = {}
        self.ordered: np.ndarray | None = None
        self.fenced = False

    def add(self, access: Lanes, segment: int) -> None:
        """Add a plain access by a segment. One lane may release what lanes do together at one address."""
        self.accesses.append(access)
        self.fenced = False
        if access.region.shared and access.offset.__class__ is ND and not access.matrix:
            access.segment = segment
            self.unreleased.append(access)

    def strong(self, places: list[tuple[MemoryRegion, int]], m: Mask, reads: bool, releases: bool) -> None:
        """A strong access by the lanes `m`: those that it reads from are ordered before it once a fence follows."""
        lanes = np.ones(self.lanes, bool) if m is None else m
        for place in places:
            before = self.released.get(place)
            if reads and before is not None:
                self.ordered = before | lanes if self.ordered is None else self.ordered | before | lanes
            if releases:
                self.released[place] = lanes if before is None else before | lanes

    def synchronised(self) -> None:
        """All lanes have synchronised."""
        self.accesses.clear()
        self.released.clear()
        self.ordered = None

    def release(self, lanes: np.ndarray) -> None:
        """The lanes have released what they did, or have synchronised."""
        left = [part for old in self.unreleased if (part := old.without(lanes)) is not None]
        self.unreleased.clear()
        self.unreleased.extend(left)


@dataclass(slots=True, eq=False)
class Lanes:
    """One access by some lanes of a warp: offsets of the active lanes `m`, or one offset for all of them."""

    recent: Recent
    region: MemoryRegion
    m: Mask
    offset: Value
    size: int
    write: bool
    matrix: bool  # rows of ldmatrix or stmatrix, whose bytes belong to no single lane
    shared: bool  # whether several lanes may reach the same bytes
    line: int = 0
    strong: bool = False  # atomic, volatile and the like; two such accesses do not race
    synchronised: np.ndarray | None = None  # lanes that have synchronised with these since, if not all have
    low: int = -1  # bounds of the bytes, once `_bounds` has run
    high: int = -1
    segment: int = -1  # that it counts as, if it is unreleased

    def split(self, lanes: np.ndarray) -> list[Lanes]:
        """Split an access into that of `lanes`, which have synchronised, and that of the others."""
        if self.synchronised is not None:
            if (self.synchronised & lanes).any():
                self.synchronised = self.synchronised | lanes
            return [self]
        active = self._active()
        inside = lanes[active]
        if self.matrix or not inside.any():
            return [self]
        out = []
        for some in (inside, ~inside):
            if some.any():
                m = np.zeros(len(lanes), bool)
                m[active[some]] = True
                offset = self.offset[some] if self.offset.__class__ is ND else self.offset
                how = (self.size, self.write, False, True, self.line, self.strong)
                out.append(Lanes(self.recent, self.region, m, offset, *how))
        out[0].synchronised = lanes.copy()
        return out

    def without(self, lanes: np.ndarray) -> Lanes | None:
        """The access by its other lanes; None if it has no others."""
        active = self._active()
        kept = ~lanes[active]
        if kept.all():
            return self
        if not kept.any():
            return None
        m = np.zeros(len(lanes), bool)
        m[active[kept]] = True
        how = (self.size, self.write, False, True, self.line)
        part = Lanes(self.recent, self.region, m, np.asarray(self.offset)[kept], *how)
        part.segment = self.segment
        return part

    def collides(self, m: Mask, values: Sequence[Value]) -> bool:
        """Whether lanes store different values to one address; `values` hold one for each lane of the warp."""
        vectors = [v if m is None else v[m] for v in values if v.__class__ is ND] if self.shared else []
        if not vectors:
            return False
        if self.offset.__class__ is not ND:
            return any(bool((v != v[0]).any()) for v in vectors)
        order = np.argsort(self.offset, kind="stable")
        same = self.offset[order][1:] == self.offset[order][:-1]
        return any(bool((same & (v[order][1:] != v[order][:-1])).any()) for v in vectors)

    def _active(self) -> np.ndarray:
        return np.flatnonzero(self.m) if self.m is not None else np.arange(self.recent.lanes)

    def conflict(self, written: bool, strong: bool = False) -> tuple[int, int] | None:
        """The latest plain (or strong) write (or read) by another lane of bytes that this access reaches.

        Returns its PTX line and the offset of the first such byte.
        """
        self._bounds()
        for old in reversed(self.recent.accesses):
            alike = old.write == written and old.strong == strong
            if alike and old.region is self.region:
                old._bounds()
                at = self._first_byte(old) if old.low < self.high and self.low < old.high else -1
                if at >= 0:
                    return old.line, at
        return None

    def _bounds(self) -> None:
        if self.low < 0:
            self.low, self.high = int(np.min(self.offset)), int(np.max(self.offset)) + self.size

    def _first_byte(self, old: Lanes) -> int:
        """The first byte that another lane accessed and this access reaches, or -1.

        A lane may use bytes that it wrote itself. Lanes that execute the same uniform accesses together count as one.
        """
        if self.offset.__class__ is not ND and old.offset.__class__ is not ND and self.m is old.m:
            return -1
        if self.matrix and old.matrix:
            return max(self.low, old.low) if self.write != old.write else -1
        unit = min(self.size, old.size, 4)
        (units, lanes), (old_units, old_lanes) = self._units(unit), old._units(unit)
        same = units[:, None] == old_units[None]
        other = lanes[:, None] != old_lanes[None]
        if old.synchronised is not None:
            # the rows of a matrix, lane -1, are synchronised if all lanes are
            synchronised = np.append(old.synchronised, old.synchronised.all())
            other = other & ~synchronised[lanes][:, None]
        conflicts = (same & other).any(1)
        if old.write and not old.strong:  # a lane's own atomic may not be the last one
            conflicts &= ~(same & ~other).any(1)
        units = units[conflicts]
        return int(units.min()) * unit if len(units) else -1

    def _units(self, unit: int) -> tuple[np.ndarray, np.ndarray]:
        """Units of bytes that each lane reaches, and the lanes. The lane of a matrix row is -1."""
        lanes = np.full(np.size(self.offset), -1) if self.matrix else self._active()
        offset = np.broadcast_to(np.asarray(self.offset).astype(np.int64), len(lanes))
        first = offset[:, None] // unit + np.arange(max(self.size // unit, 1))
        return first.ravel(), np.repeat(lanes, first.shape[1])
