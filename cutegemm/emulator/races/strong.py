# SPDX-License-Identifier: Apache-2.0
"""Strong accesses (atomic, volatile, relaxed, acquire, release): their races, and the order that they create.

Two strong accesses do not race. A strong access and a plain one do, unless something orders them. Each cell keeps the
strong accesses since its last plain write. An access that returns a value has seen the earlier ones: any access ordered
after it is also ordered after them, since all accesses to one location are coherent.

A strong read may rely on writes that reached it through relaxed accesses if the writer has a fence, as on the hardware.
Without any fence the writes may not be visible; the detector reports this.

Source: PTX ISA 9.0, 8.2 (strong operations), 8.7 (morally strong), 8.8 (release and acquire patterns), 8.10
(coherence).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.races.shadow import NOTHING, Access, Earlier, Knowledge, StrongCells, SyncPlace, Weak
from cutegemm.emulator.races.tracker import WarpTracker
from cutegemm.emulator.state.clusters import Cluster
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer, Touch
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.watch.findings import OBSERVED

UNFENCED = "missing fence between relaxed accesses"


@dataclass(frozen=True)
class Ordered:
    """A kind of strong access."""

    order: str  # relaxed, acquire, release, acq_rel
    near: bool  # in the scope of the CTA
    reads: bool
    writes: bool
    returns: bool  # a value that an instruction uses

    @property
    def what(self) -> str:
        """Its name in findings."""
        if self.reads and self.writes:
            return "atomic"
        return "relaxed or volatile store" if self.order == "relaxed" else f"{self.order} store"


class Warp(WarpTracker):
    """The state of one warp, with its loads, stores and atomics."""

    def access(self, touch: Touch) -> None:
        """A load or store."""
        m, region, offset, size, write, space, strong = touch
        if space in ("param", "local"):
            return
        if strong:
            self._strong(touch, not write, not write)
            return
        known = self.known if self.waited_lanes is None else self.knowledge_of(m)
        where = self.detector.cells.where(offset, size)
        lanes = Lanes(self.recent, region, m, offset, size, write, space == "matrix", where.shared)
        self.detector.check(region, where, write, self.current, known, None, lanes)
        self.recent.add(lanes, self.current)

    def atomics(self, touch: Touch, returns: bool) -> None:
        """An atomic operation; `returns`: whether an instruction uses its values."""
        self._strong(touch, True, returns)

    def _strong(self, touch: Touch, reads: bool, returns: bool) -> None:
        """A strong access, at one offset or at one for each lane."""
        m, region, offset, size, writes, _, strong = touch
        order, _, scope = strong.partition(".")
        kind = Ordered(order, bool(scope), reads, writes, returns)
        detector, known = self.detector, self.everything(m)
        number = detector.segment(kind.what, self.who, self.cta, True) if writes else self.current
        shadow = detector.shadow(region)
        where = detector.cells.where(offset, size).within(shadow.cells)
        line = detector.current_line()
        lanes = Lanes(self.recent, region, m, offset, size, writes, False, where.shared, line, True)
        if reads and known.weak is not None:  # a fence of the writer is enough
            known |= Knowledge(known.weak.seen, 0, 0)
        fenced = known.shared if shadow.shared else known.world
        access = Access(region, where, writes, number, line, known, fenced, lanes)
        places = [(region, place) for place in set(np.atleast_1d(offset).tolist())]
        if len(where.starts):
            detector.compare(shadow, access, reads)
            self._record(access, kind, places)
        if writes:
            self.known |= Knowledge(1 << number, 0, 0)
            self.recent.segments.add(number)
            self.recent.accesses.append(lanes)
        self._order(places, kind)
        releases = writes and (order in ("release", "acq_rel") or self.recent.fenced)
        self.recent.strong(places, m, reads, releases)
        if reads and order in ("acquire", "acq_rel"):
            self.lanes_ordered()
        if writes and order in ("release", "acq_rel"):
            self.renew()

    def _record(self, access: Access, kind: Ordered, places: list[tuple[MemoryRegion, int]]) -> None:
        """Add an access to the histories of its cells."""
        shadow, number = self.detector.shadow(access.region), access.segment
        # an acquire needs no fence before it: it learns from a release of the same place
        learned = self._passed([(*x, None) for x in places]).segments if kind.order == "acquire" else 0
        if shadow.strong is None:
            shadow.strong = StrongCells(shadow.cells)
        bit, weak = 1 << number, access.known.weak
        for history in shadow.strong.histories(access.where):
            if weak is not None and not kind.writes:
                stale = history.writes & weak.unreleased & ~(access.known.segments | learned) & ~bit
                stale = stale and history.unseen(stale, access.known.segments | bit)
                if stale:
                    p = stale.bit_length() - 1
                    at = int(access.where.index[0]) * self.detector.cell
                    earlier = Earlier(p, history.lines[p], True)
                    self.detector.report(UNFENCED, OBSERVED, earlier, access, at)
            if kind.returns:
                history.seen[self.who] = (number, history.writes | history.reads)
            history.writes |= bit if kind.writes else 0
            history.reads |= 0 if kind.writes else bit
            history.lines[number] = access.line

    def _order(self, places: list[tuple[MemoryRegion, int]], kind: Ordered) -> None:
        """Pass knowledge on as PTX ISA 8.8 says.

        A release passes on all that its warp knows; a relaxed write what a fence before it has released. An acquire
        learns it at once; a relaxed read once a fence follows. Accesses in the scope of the CTA pass on knowledge
        within that CTA alone.
        """
        here = [(*place, self.cta) for place in places]
        everywhere = [(*place, None) for place in places]
        if kind.reads:
            near = self._passed(here)
            passed = near if kind.near else near | self._passed(everywhere)
            if kind.order in ("acquire", "acq_rel"):
                self.known |= passed
                self.learned()
            elif passed != NOTHING:
                self.seen |= passed
                self.seen_near |= near
                unreleased = 0 if passed.weak is None else passed.weak.unreleased
                self.known |= Knowledge(0, 0, 0, 0, Weak(passed.segments, unreleased))
        if kind.writes:
            releases = kind.order in ("release", "acq_rel")
            self._pass(here, self.everything() if releases else self._relaxed(self.released_near))
            if not kind.near:
                self._pass(everywhere, self.everything() if releases else self._relaxed(self.released))

    def _passed(self, places: Sequence[SyncPlace]) -> Knowledge:
        """The knowledge passed through some places. Often all places hold the same object, which is added once."""
        out, last = NOTHING, None
        for place in places:
            known = self.detector.sync.get(place)
            if known is not None and known is not last:
                out, last = out | known, known
        return out

    def _pass(self, places: Sequence[SyncPlace], known: Knowledge) -> None:
        """Pass knowledge through some places. Often all places hold the same object, which is added to once."""
        last, total, sync = None, known, self.detector.sync
        for place in places:
            old = sync.get(place)
            if old is not last:
                last, total = old, known if old is None else old | known
            sync[place] = total

    def _relaxed(self, released: Knowledge) -> Knowledge:
        """What a relaxed write passes on: segments that a fence released, and as `weak` those that no fence did."""
        weak = self.known.weak
        unreleased = (self.known.segments | (0 if weak is None else weak.unreleased)) & ~released.segments
        return released | Knowledge(0, 0, 0, 0, Weak(0, unreleased))


class Races(Observer):
    """The race detector as the observer of a launch."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector

    def access(self, group: WarpSet, touch: Touch) -> None:
        group.tracker.access(touch)

    def atomics(self, group: WarpSet, touch: Touch, returns: bool) -> None:
        group.tracker.atomics(touch, returns)

    def overrun(self, text: str) -> None:
        self.detector.add("more arrivals than an mbarrier was initialised for", text)

    def warp_started(self, group: WarpSet) -> None:
        group.tracker = Warp(self.detector, group)

    def warp_ended(self, group: WarpSet) -> None:
        group.tracker.ended()

    def cluster_ended(self, cluster: Cluster) -> None:
        for cta in cluster.ctas:
            self.detector.ended(cta)
