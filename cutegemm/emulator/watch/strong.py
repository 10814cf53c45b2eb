# SPDX-License-Identifier: Apache-2.0
"""Strong accesses: atomic, volatile, relaxed, acquire and release ones. What they race with, and what they order.

Two strong accesses do not race. A strong access and a plain one do, unless something orders them. Each cell keeps the
strong accesses since its last plain write. An access that returns a value has seen those before it: whoever is ordered
after it is ordered after them too, since all accesses to one location are coherent.

A strong read accepts what reached it through relaxed accesses behind a fence of the writer, as the hardware does. What
reached it through relaxed accesses without any fence may still be missing there, and is reported.

Source: PTX ISA 9.0, 8.2 (strong operations), 8.7 (morally strong), 8.8 (release and acquire patterns), 8.10
(coherence).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.emulator.watch.findings import OBSERVED
from cutegemm.emulator.watch.lanes import Lanes
from cutegemm.emulator.watch.shadow import NOTHING, Access, Earlier, Known, SyncPlace, Weak

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.state.memory import Region
    from cutegemm.emulator.watch.cells import Where
    from cutegemm.emulator.watch.races import Detector
    from cutegemm.emulator.watch.tracker import WarpTracker

UNFENCED = "missing fence between relaxed accesses"


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
    """The cells of a region that strong accesses reached."""

    def __init__(self, cells: int) -> None:
        self.marked = np.zeros(cells, bool)
        self.first, self.last = cells, 0
        self.cells: dict[int, History] = {}

    def reach(self, where: Where) -> bool:
        """Whether some of the cells may lie among these."""
        return where.first < self.last and self.first < where.last

    def near(self, where: Where) -> list[int]:
        """Which of the cells are among these."""
        if not self.reach(where):
            return []
        index = where.index
        found: list[int] = index[self.marked[index]].tolist()
        return found

    def histories(self, where: Where) -> list[History]:
        """The histories of all the cells, new ones where there are none."""
        self.first, self.last = min(self.first, where.first), max(self.last, where.last)
        self.marked[where.index] = True
        return [self.cells.setdefault(cell, History()) for cell in where.index.tolist()]

    def clear(self, where: Where) -> None:
        """A plain write: what came before it is ordered before it, or has been reported."""
        for cell in self.near(where):
            del self.cells[cell]
            self.marked[cell] = False

    def written(self, where: Where) -> np.ndarray:
        """For each of the cells, whether a strong write reached it."""
        cells = self.cells
        return np.array([c in cells and cells[c].writes != 0 for c in where.index.tolist()], bool)


@dataclass(frozen=True)
class Ordered:
    """What kind of strong access: its memory order, whether in the scope of the CTA, and what it does."""

    order: str  # relaxed, acquire, release, acq_rel
    near: bool
    reads: bool
    writes: bool
    returns: bool  # a value that something uses

    @property
    def what(self) -> str:
        """Its name in findings."""
        if self.reads and self.writes:
            return "atomic"
        return "relaxed or volatile store" if self.order == "relaxed" else f"{self.order} store"


class StrongAccesses:
    """The detector's part for strong accesses."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        # Place of a strong access, and CTA or None -> knowledge passed through it.
        self.sync: dict[SyncPlace, Known] = {}

    def access(self, group: Group, m: Mask, region: Region, offset: Value, size: int, kind: Ordered) -> None:
        """A strong access by the lanes `m` of a warp, at one offset or at one for each lane."""
        t, detector = group.tracker, self.detector
        assert t is not None  # as long as there is a detector
        known, current = t.everything(m), t.current
        number = detector.segment(kind.what, t, True) if kind.writes else current
        shadow = detector.shadow(region)
        where = detector.cells.where(offset, size).within(shadow.cells)
        lanes = Lanes(t, region, m, offset, size, kind.writes, False, detector.current_line(), True)
        lanes.shared = where.shared
        if kind.reads and known.weak is not None:  # it accepts what was fenced by its writer alone
            known |= Known(known.weak.seen, 0, 0)
        fenced = known.shared if shadow.shared else known.world
        access = Access(region, where, kind.writes, number, lanes.line, known, fenced, lanes)
        if len(where.starts):
            detector.check_strong(shadow, access, kind.reads)
            self._record(access, kind, t)
        if kind.writes:
            t.known |= Known(1 << number, 0, 0)
            t.unmet.add(number)
            t.lane_accesses.append(lanes)
        self._order(t, [(id(region), place) for place in set(np.atleast_1d(offset).tolist())], kind)
        if kind.writes and kind.order in ("release", "acq_rel"):
            t.renew()

    def _record(self, access: Access, kind: Ordered, t: WarpTracker) -> None:
        """Add an access to the histories of its cells."""
        shadow, number = self.detector.shadow(access.region), access.segment
        if shadow.strong is None:
            shadow.strong = StrongCells(shadow.cells)
        bit, weak = 1 << number, access.known.weak
        for history in shadow.strong.histories(access.where):
            if weak is not None and not kind.writes:
                stale = history.writes & weak.unreleased & ~access.known.segments & ~bit
                stale = stale and history.unseen(stale, access.known.segments | bit)
                if stale:
                    p = stale.bit_length() - 1
                    at = int(access.where.index[0]) * self.detector.cell
                    earlier = Earlier(p, history.lines[p], True)
                    self.detector.report(UNFENCED, OBSERVED, earlier, access, at)
            if kind.returns:
                history.seen[t.who] = (number, history.writes | history.reads)
            history.writes |= bit if kind.writes else 0
            history.reads |= 0 if kind.writes else bit
            history.lines[number] = access.line

    def _order(self, t: WarpTracker, places: list[tuple[int, int]], kind: Ordered) -> None:
        """Pass knowledge on as PTX ISA 8.8 says.

        A release passes on all its warp knows, a relaxed write what a fence before it has released; an acquire
        learns what was passed, a relaxed read once a fence follows it. What is done in the scope of the CTA
        reaches that CTA alone.
        """
        here = [(*place, t.group.cta.index) for place in places]
        everywhere = [(*place, None) for place in places]
        if kind.reads:
            near = self._passed(here)
            passed = near if kind.near else near | self._passed(everywhere)
            if kind.order in ("acquire", "acq_rel"):
                t.known |= passed
                t.lanes_met()
            elif passed != NOTHING:
                t.seen |= passed
                t.seen_near |= near
                unreleased = 0 if passed.weak is None else passed.weak.unreleased
                t.known |= Known(0, 0, 0, 0, Weak(passed.segments, unreleased))
        if kind.writes:
            releases = kind.order in ("release", "acq_rel")
            self._pass(here, t.everything() if releases else _relaxed(t, t.released_near))
            if not kind.near:
                self._pass(everywhere, t.everything() if releases else _relaxed(t, t.released))

    def _passed(self, places: Sequence[SyncPlace]) -> Known:
        """What was passed through some places; often the same through all."""
        out, last = NOTHING, None
        for place in places:
            known = self.sync.get(place)
            if known is not None and known is not last:
                out, last = out | known, known
        return out

    def _pass(self, places: Sequence[SyncPlace], known: Known) -> None:
        """Add what passes through some places, which often hold the same."""
        last, total, sync = None, known, self.sync
        for place in places:
            old = sync.get(place)
            if old is not last:
                last, total = old, known if old is None else old | known
            sync[place] = total


def _relaxed(t: WarpTracker, released: Known) -> Known:
    """What a relaxed write passes on: what a fence released, and, marked so, what none did."""
    weak = t.known.weak
    unreleased = (t.known.segments | (0 if weak is None else weak.unreleased)) & ~released.segments
    return released | Known(0, 0, 0, 0, Weak(0, unreleased))


def met(cells: StrongCells, access: Access) -> Iterator[tuple[bool, int, int, int]]:
    """What a plain or asynchronous access may race with: whether it wrote, its segment, its line, and the cell."""
    done = access.known.segments | 1 << access.segment
    for cell in cells.near(access.where):
        history = cells.cells[cell]
        for wrote, bits in ((True, history.writes), (False, history.reads if access.write else 0)):
            missing = bits & ~done
            missing = missing and history.unseen(missing, done)
            if missing:
                p = missing.bit_length() - 1
                yield wrote, p, history.lines[p], cell
