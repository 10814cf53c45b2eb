# SPDX-License-Identifier: Apache-2.0
"""What the race detector keeps per warp: what it knows, and its asynchronous operations under way.

Source: PTX ISA 9.0, 8 (memory consistency model), 8.6 (proxies), 9.7.13.4 (fences), 9.7.16 (wgmma).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.races.cells import CellSet
from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.lanes import Recent
from cutegemm.emulator.races.shadow import NOTHING, Knowledge, as_bits
from cutegemm.emulator.state.clusters import CTA, Gate, MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Reach, Token, Touched, Tracker
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.units.products import Place
from cutegemm.emulator.units.wgmma_operands import Form


class WarpTracker(Tracker):
    """What one warp knows, and its operations under way."""

    follows = True

    def __init__(self, detector: Detector, group: WarpSet) -> None:
        self.detector, self.group = detector, group
        self.who, self.cta = detector.name_of(group), group.cta.index
        self.recent = Recent(group.lanes)
        self.reader = ("wgmma", self.who)  # the row of what its wgmmas read
        self.known = detector.start  # finished segments this warp may rely on
        self._sum: tuple[Knowledge, int, Knowledge] | None = None  # `everything` of a knowledge and a segment
        # Lanes that executed griddepcontrol.wait alone, until the warp's lanes meet.
        self.waited_lanes: np.ndarray | None = None
        # What relaxed reads have found, known once a fence follows, and what the last fence lets a relaxed write pass
        # on; for fences of any scope within the CTA ("near") apart.
        self.seen = self.seen_near = NOTHING
        self.released = self.released_near = NOTHING
        self.initialised = 0  # segments holding mbarrier.init that a fence.mbarrier_init has covered
        self.inits: list[MBarrier] = []
        self.current = detector.segment("access", self.who, self.cta, True)
        self.recent.unmet.add(self.current)
        self.pending: dict[object, set[int]] = {}  # accumulator list, or slot of A -> products not waited for
        self.copying: AsyncOp | None = None  # the cp.async group that has not been committed
        self.ordered = False  # whether a wgmma.fence has run
        # Accumulator lists read, slots of A written since the last wgmma.fence.
        self.stale: set[object] = set()

    def knowledge_of(self, m: Mask) -> Knowledge:
        """What the lanes `m` (None: all) may rely on."""
        waited = self.waited_lanes
        if waited is None or m is None or (m & ~waited).any():
            return self.known
        before = self.detector.before
        return self.known | Knowledge(before, before, before)

    def grid_wait(self, m: Mask) -> None:
        """griddepcontrol.wait by some lanes: earlier launches are over for them, and for whom they release."""
        self.detector.waited.add(self.cta)
        before = self.detector.before
        if m is None or self.group.whole_warps(m):
            self.known |= Knowledge(before, before, before)
        else:
            self.waited_lanes = m.copy() if self.waited_lanes is None else self.waited_lanes | m

    def grid_trigger(self, m: Mask) -> None:
        """griddepcontrol.launch_dependents: what counts is the first of a CTA."""
        before = self.detector.before
        ordered = before & ~self.knowledge_of(m).segments == 0
        self.detector.triggers.setdefault(self.cta, ordered)

    def everything(self, m: Mask = None) -> Knowledge:
        """Everything this warp has done, or that its lanes `m` may rely on."""
        known = self.known if self.waited_lanes is None else self.knowledge_of(m)
        made = self._sum
        if made is None or made[0] is not known or made[1] != self.current:
            done = known.segments | 1 << self.current
            total = Knowledge(done, known.shared, known.world, known.grouped, known.weak)
            made = self._sum = (known, self.current, total)
        return made[2]

    def renew(self) -> None:
        """Begin a new segment."""
        self.known = self.everything()
        self.current = self.detector.segment("access", self.who, self.cta, True)
        self.recent.unmet.add(self.current)

    def lanes_met(self) -> None:
        """The lanes of the warp have synchronised."""
        if self.waited_lanes is not None:
            self.known |= Knowledge(self.detector.before, self.detector.before, self.detector.before)
            self.waited_lanes = None
        self.recent.unmet = {self.current}
        self.recent.accesses.clear()

    def some_met(self, met: np.ndarray) -> None:
        """Some lanes have synchronised: what one of them knows or did, all of them know."""
        if self.waited_lanes is not None and (self.waited_lanes & met).any():
            self.waited_lanes = self.waited_lanes | met
        parts = [part for old in self.recent.accesses for part in old.parted(met)]
        self.recent.accesses.clear()
        self.recent.accesses.extend(parts)

    def stored(self, m: Mask, values: Sequence[Value]) -> None:
        """The store that was the warp's last access writes these values: lanes that collide have to agree."""
        last = self.recent.accesses[-1] if self.recent.accesses else None
        if last is not None and last.write and last.collides(m, values):
            self.defect("race between lanes of a warp", "lanes store different values at one address")

    # ---- barriers: objects with `knowledge` (being collected) and `released` (what waiters get)

    def release_to(self, barrier: Gate) -> None:
        """Give what this warp knows to a barrier it arrives at."""
        barrier.knowledge = (barrier.knowledge or NOTHING) | self.everything()
        self.renew()

    def release_inits(self, barrier: Gate) -> None:
        """A relaxed arrival passes on only the mbarrier initialisations a fence has released."""
        inits = Knowledge(self.initialised, self.initialised, 0)
        barrier.knowledge = (barrier.knowledge or NOTHING) | inits

    def acquire_from(self, barrier: Gate) -> None:
        """Learn what the arriving warps knew."""
        self.known |= barrier.released or NOTHING
        self.lanes_met()

    def barrier_init(self, bar: MBarrier) -> None:
        """An mbarrier was initialised by this warp."""
        bar.init = self.current
        self.inits.append(bar)

    def uses(self, bar: MBarrier, asynchronous: bool) -> None:
        """An mbarrier is used: its initialisation must be ordered before, and fenced for the async proxy."""
        if bar.init is None:
            return
        if bar.init != self.current and not self.everything().segments >> bar.init & 1:
            self.detector.add("mbarrier used before its initialisation is visible", str(bar).split(" (")[0])
        elif asynchronous and not (bar.fenced or self.known.shared >> bar.init & 1):
            self.detector.add(
                "mbarrier initialised without a fence before a bulk copy uses it", str(bar).split(" (")[0]
            )

    def arrive(self, bars: Sequence[MBarrier], m: Mask, relaxed: bool) -> None:
        """mbarrier.arrive by the lanes `m`; a relaxed one passes on what a fence before it released."""
        for bar in bars:
            self.uses(bar, False)
            # A fence of the CTA's scope is enough for those who wait in this CTA.
            fenced = self.released_near if bar.cta is self.group.cta else self.released
            bar.knowledge = (bar.knowledge or NOTHING) | (fenced if relaxed else self.everything(m))
        self.renew()

    def waited(self, bar: MBarrier, relaxed: bool = False) -> None:
        """A wait on an mbarrier succeeded; what a relaxed one learns counts once a fence follows."""
        self.uses(bar, False)
        if relaxed:
            learnt = bar.released or NOTHING
            self.seen, self.seen_near = self.seen | learnt, self.seen_near | learnt
        else:
            self.acquire_from(bar)

    def fence(self, op: str) -> None:
        """Fences: of the async proxy in one or both memories, of mbarrier initialisations, of relaxed accesses."""
        if op.startswith("fence.proxy.async"):
            done = self.everything().segments
            shared = done if not op.endswith("global") else 0
            world = done if "shared" not in op else 0
            self.known |= Knowledge(0, shared, world)
            if shared:
                for bar in self.inits:
                    bar.fenced = True
            self.renew()
        elif op.startswith("fence.mbarrier_init"):
            for bar in self.inits:
                bar.fenced = True
                self.initialised |= 0 if bar.init is None else 1 << bar.init
            self.renew()
        elif op.startswith(("fence.acq_rel", "fence.sc", "membar")):
            near = op.endswith(".cta")
            self.known |= self.seen_near if near else self.seen
            self.released_near = self.everything()
            if not near:
                self.released = self.released_near
            self.renew()

    # ---- asynchronous operations

    def issue(self, what: str, generic: bool = False, m: Mask = None) -> AsyncOp:
        """A bulk copy (of the async proxy) or an asynchronous store (of the generic one) was issued by lanes `m`."""
        return AsyncOp(self, self.detector.segment(what, self.who, self.cta, generic), m)

    def issue_copy(self, m: Mask = None) -> AsyncOp:
        """A cp.async was issued: an operation of the generic proxy, one for all of a commit group."""
        if self.copying is None:
            self.copying = self.issue("cp.async", generic=True)
        self.copying.known = self.everything(m)
        return self.copying

    def copies_closed(self) -> None:
        self.copying = None

    def issue_wgmma(self, where: Place, a: Value | tuple[int, ...], b: Value, form: Form) -> AsyncOp:
        """wgmma.mma_async: its operands are read from now until its wait."""
        token = AsyncOp(self, self.detector.segment("wgmma", self.who, self.cta, False))
        registers = (where, *(("a", slot) for slot in a)) if isinstance(a, tuple) else (where,)
        if not self.ordered or not self.stale.isdisjoint(registers):
            self.detector.add(
                "missing wgmma.fence",
                f"none between the registers' last use by {self.detector.segments[token.number].who} and wgmma",
            )
        left, warp = None if isinstance(a, tuple) else _first(a), self.group.warps[0] % 4
        shared = self.group.cta.shared
        self.detector.read_operands(
            shared, left, _first(b), form, warp, token.number, token.known, self.reader
        )
        for register in registers:
            numbers = self.pending.get(register)
            if numbers is None:
                numbers = self.pending[register] = set()
            numbers.add(token.number)
        return token

    def done(self, token: AsyncOp, written: bool = True) -> None:
        """This warp has waited for an operation of its own: for its reads, or besides for what it writes globally."""
        finished = 1 << token.number
        if written and token.writes is not None:
            finished |= 1 << token.writes
        self.known |= Knowledge(finished, 0, 0)
        for numbers in self.pending.values():
            numbers.discard(token.number)

    def wgmma_fence(self) -> None:
        """wgmma.fence."""
        self.ordered = True
        self.stale.clear()

    def wgmma_done(self, tokens: Sequence[AsyncOp]) -> None:
        """A wait of this warp covers wgmmas, its own and those of the other warps of its warpgroup."""
        if not tokens:
            return
        own = [token.number for token in tokens if token.tracker is self]
        others = [token.number for token in tokens if token.tracker is not self]
        for numbers in self.pending.values():
            numbers.difference_update(own)
        if self.detector.strict:
            self.known |= Knowledge(as_bits(own), 0, 0, as_bits(others))
        else:
            self.known |= Knowledge(as_bits(own + others), 0, 0)

    def accumulator(self, index: int, write: bool) -> None:
        """A register of an accumulator list is read or written."""
        if self.pending.get(index):
            verb = "written" if write else "read"
            self.detector.add(
                "wgmma register used before its wait",
                f"accumulators {verb} by CTA {self.cta} warp {self.group.warps[0]}",
            )
        if not write:  # compilers put the zeroing moves behind the fence, so writes say nothing
            self.stale.add(index)

    def defect(self, kind: str, text: str) -> None:
        """Something this warp does is wrong by itself."""
        self.detector.add(kind, f"{text}, CTA {self.cta} warp {self.group.warps[0]}")

    def fragment_written(self, slot: int) -> None:
        """A register that holds part of A for some wgmma is written."""
        if self.pending.get(("a", slot)):
            who = f"CTA {self.cta} warp {self.group.warps[0]}"
            self.detector.add("wgmma register used before its wait", f"operand A overwritten by {who}")
        self.stale.add(("a", slot))

    def ended(self) -> None:
        """The warp ends: operations that it never waited for."""
        group = self.group
        who = f"CTA {group.cta.index} warp {group.warps[0]}"
        if group.products.open or group.products.groups:
            self.detector.add("leftover", f"{who} ends with wgmma groups it never waited for", 0)
        if not all(store.awaited for store in group.bulk.all()):
            self.detector.add("leftover", f"{who} ends with bulk stores whose reads it never waited for", 0)
        if not all(copy.tracked for copy in group.copies.all()):
            self.detector.add("leftover", f"{who} ends with cp.async copies it never waited for", 0)


class AsyncOp(Token):
    """An asynchronous operation as a segment: issued with what its warp knew then.

    What it writes to global memory is a segment of its own: a wait for a store's reads does not cover it.
    """

    follows = True

    def __init__(self, tracker: WarpTracker, number: int, m: Mask = None) -> None:
        self.tracker, self.number = tracker, number
        self.writes: int | None = None
        self.known = tracker.everything(m)
        self.phases: dict[MBarrier, int] = {}  # of the mbarriers it will complete on, when it was issued

    def read_shared(self, cta: CTA, chunks: np.ndarray) -> None:
        self.check(cta.shared, self.tracker.detector.cells.chunks(chunks), False)

    def write_shared(self, cta: CTA, chunks: np.ndarray) -> None:
        self.check(cta.shared, self.tracker.detector.cells.chunks(chunks), True)

    def write_cells(self, cta: CTA, offset: int, size: int, bar: MBarrier) -> None:
        self.check(cta.shared, self.tracker.detector.cells.where(offset, size), True)
        self.tracker.uses(bar, False)

    def copied(self, to: Touched, source: Touched | None, size: int) -> None:
        where = self.tracker.detector.cells.where
        self.check(to[1], where(to[2], size), True)
        if source is not None:
            self.check(source[1], where(source[2], size), False)

    def read_global(self, region: MemoryRegion, reach: Reach) -> None:
        self.check(region, self.tracker.detector.cells.box(*reach), False)

    def write_global(self, region: MemoryRegion, reach: Reach, atomic: bool) -> None:
        detector, tracker = self.tracker.detector, self.tracker
        what = detector.segments[self.number].what
        writes = self.writes = detector.segment(what, tracker.who, tracker.cta, False)
        detector.segments[writes].atomic = atomic
        known = self.known | Knowledge(1 << self.number, 0, 0)
        detector.check(region, detector.cells.box(*reach), True, writes, known, None)

    def check(self, region: MemoryRegion, where: CellSet, write: bool) -> None:
        """The operation touches these cells of a region."""
        detector, tracker = self.tracker.detector, self.tracker
        reader = (detector.segments[self.number].what, tracker.who)
        detector.check(region, where, write, self.number, self.known, reader)

    def uses(self, bar: MBarrier) -> None:
        self.tracker.uses(bar, True)
        self.phases[bar] = bar.phase

    def complete_on(self, bar: MBarrier, amount: int = 0) -> None:
        bar.knowledge = (bar.knowledge or NOTHING) | Knowledge(1 << self.number, 0, 0)
        if self.phases.get(bar, bar.phase) != bar.phase:
            self.tracker.detector.add(
                "wrong expect_tx",
                f"{bar} completed its phase before a copy of {amount} bytes that was issued for it",
            )


def _first(x: Value) -> int:
    return int(x[0]) if x.__class__ is ND else x  # type: ignore[return-value]  # as in lane_of
