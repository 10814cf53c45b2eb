# SPDX-License-Identifier: Apache-2.0
"""The race detector's state for each warp: what the warp knows, and its pending asynchronous operations.

Source: PTX ISA 9.0, 8 (memory consistency model), 8.6 (proxies), 9.7.13.4 (fences), 9.7.16 (wgmma).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cutegemm.emulator.numbers.types import Chunks, Mask, Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.races.cells import CellSet
from cutegemm.emulator.races.detector import Detector
from cutegemm.emulator.races.lanes import Recent
from cutegemm.emulator.races.shadow import NOTHING, Knowledge, as_bits
from cutegemm.emulator.state.clusters import CTA, Gate, MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Reach, Touched
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.units.wgmma_compute import Place
from cutegemm.emulator.units.wgmma_operands import Form


class WarpTracker:
    """The state of one warp. `strong.Warp` adds its loads, stores and atomics."""

    follows = True

    def __init__(self, detector: Detector, group: WarpSet) -> None:
        self.detector, self.group = detector, group
        self.cta = group.cta.index
        self.name = f"CTA {self.cta} warp {group.warps[0]}"
        self.who = f"launch {detector.launch} {self.name}" if detector.launch else self.name
        self.recent = Recent(group.lanes)
        self.reader = ("wgmma", self.who)  # names the row of cells that its wgmmas read
        self.known = detector.start  # finished segments this warp may rely on
        self._sum: tuple[Knowledge, int, Knowledge] | None = None  # arguments and result of `everything`
        # Lanes that executed griddepcontrol.wait while others did not, until the lanes synchronise.
        self.waited_lanes: np.ndarray | None = None
        # Segments that relaxed reads found; a fence makes them known. Segments that relaxed writes pass on since the
        # last fence. "near": within the CTA, where a fence of any scope counts.
        self.seen = self.seen_near = NOTHING
        self.released = self.released_near = NOTHING
        self.initialised = 0  # segments whose mbarrier.init a fence.mbarrier_init has covered
        self.inits: list[MBarrier] = []
        self.current = detector.segment("access", self.who, self.cta, True)
        self.recent.segments.add(self.current)
        # accumulator list, or slot of A -> pending wgmmas
        self.pending: defaultdict[object, set[int]] = defaultdict(set)
        self.copying: AsyncOp | None = None  # the cp.async group that has not been committed
        self.ordered = False  # whether a wgmma.fence has run
        # Accumulator lists read and slots of A written since the last wgmma.fence.
        self.stale: set[object] = set()

    # ---- knowledge

    def knowledge_of(self, m: Mask) -> Knowledge:
        """What the lanes `m` (None: all) may rely on."""
        waited = self.waited_lanes
        if waited is None or m is None or (m & ~waited).any():
            return self.known
        return self.known | self._earlier_launches()

    def _earlier_launches(self) -> Knowledge:
        """What griddepcontrol.wait makes known."""
        before = self.detector.before
        return Knowledge(before, before, before)

    def grid_wait(self, m: Mask) -> None:
        """griddepcontrol.wait by the lanes `m`: they now know the earlier launches."""
        self.detector.waited.add(self.cta)
        if self.group.whole_warps(m):
            self.known |= self._earlier_launches()
        elif m is not None:
            self.waited_lanes = m.copy() if self.waited_lanes is None else self.waited_lanes | m

    def grid_trigger(self, m: Mask) -> None:
        """griddepcontrol.launch_dependents; only the first one of a CTA counts."""
        ordered = self.detector.before & ~self.knowledge_of(m).segments == 0
        self.detector.triggers.setdefault(self.cta, ordered)

    def everything(self, m: Mask = None) -> Knowledge:
        """All that this warp has done and that its lanes `m` may rely on."""
        known = self.known if self.waited_lanes is None else self.knowledge_of(m)
        cached = self._sum
        if cached is None or cached[0] is not known or cached[1] != self.current:
            total = Knowledge(known[0] | 1 << self.current, *known[1:])
            cached = self._sum = (known, self.current, total)
        return cached[2]

    def renew(self) -> None:
        """Begin a new segment."""
        self.known = self.everything()
        self.current = self.detector.segment("access", self.who, self.cta, True)
        self.recent.segments.add(self.current)

    def lanes_synchronised(self) -> None:
        """The lanes of the warp have synchronised."""
        self.recent.unreleased.clear()
        self.learned()

    def learned(self) -> None:
        """All lanes of the warp have learned what others did, and what they did themselves."""
        if self.waited_lanes is not None:
            self.known |= self._earlier_launches()
            self.waited_lanes = None
        self.recent.segments = {self.current}
        self.recent.synchronised()

    def some_synchronised(self, lanes: np.ndarray) -> None:
        """Some lanes have synchronised: each knows what the others know and did."""
        if self.waited_lanes is not None and (self.waited_lanes & lanes).any():
            self.waited_lanes = self.waited_lanes | lanes
        accesses = [access for old in self.recent.accesses for access in old.split(lanes)]
        self.recent.accesses.clear()
        self.recent.accesses.extend(accesses)
        self.recent.release(lanes)

    def lanes_ordered(self) -> None:
        """A fence follows strong reads: lanes are ordered after those that released what was read."""
        lanes, self.recent.ordered = self.recent.ordered, None
        if lanes is not None:
            self.some_synchronised(lanes)

    def stored(self, m: Mask, values: Sequence[Value]) -> None:
        """The warp's last access, a store, writes these values: lanes with the same address must store the same."""
        last = self.recent.accesses[-1] if self.recent.accesses else None
        if last is not None and last.write and last.collides(m, values):
            self.defect("race between lanes of a warp", "lanes store different values at one address")

    # ---- barriers: arriving warps add to `knowledge`; waiting warps get `released`

    def release_to(self, barrier: Gate) -> None:
        """Arrive at a barrier: pass on what this warp knows."""
        _collect(barrier, self.everything())
        self.recent.unreleased.clear()
        self.renew()

    def release_inits(self, barrier: Gate) -> None:
        """Arrive at a barrier relaxed: pass on only the mbarrier initialisations that a fence has released."""
        _collect(barrier, Knowledge(self.initialised, self.initialised, 0))

    def acquire_from(self, barrier: Gate) -> None:
        """A wait at a barrier has ended: learn what the arriving warps knew."""
        self.known |= barrier.released or NOTHING
        self.learned()

    def barrier_init(self, bar: MBarrier) -> None:
        """This warp initialised an mbarrier."""
        bar.init = self.current
        self.inits.append(bar)

    def uses(self, bar: MBarrier, asynchronous: bool) -> None:
        """Use an mbarrier: its initialisation must be ordered before, and for a bulk copy a fence must follow it."""
        if bar.init is None:
            return
        if bar.init != self.current and not self.everything().segments >> bar.init & 1:
            kind = "mbarrier used before its initialisation is visible"
        elif asynchronous and not (bar.fenced or self.known.shared >> bar.init & 1):
            kind = "mbarrier initialised without a fence before a bulk copy uses it"
        else:
            return
        self.detector.add(kind, bar.name)

    def arrive(self, bars: Sequence[MBarrier], m: Mask, relaxed: bool) -> None:
        """mbarrier.arrive by the lanes `m`; if relaxed, it passes on what the last fence released.

        It does not pass on what other lanes did in shared memory since the lanes synchronised.
        """
        apart = None if relaxed else self._set_apart(m)
        for bar in bars:
            self.uses(bar, False)
            bar.last = self.name, self.detector.program.current_instruction()
            # A fence of the CTA's scope is enough for threads that wait in this CTA.
            fenced = self.released_near if bar.cta is self.group.cta else self.released
            _collect(bar, fenced if relaxed else self.everything(m))
        self.renew()
        if apart is not None:
            self.known |= Knowledge(1 << apart, 0, 0)
            self.recent.segments.add(apart)

    def _set_apart(self, m: Mask) -> int | None:
        """The new segment of what lanes other than `m` did in shared memory; None if they did nothing."""
        if m is None:
            self.recent.unreleased.clear()
        else:
            self.recent.release(m)
        if not self.recent.unreleased:
            return None
        segment = self.detector.segment("access", self.who, self.cta, True)
        for old in self.recent.unreleased:
            self.detector.set_apart(old, segment, self.who)
        return segment

    def waited(self, bar: MBarrier, relaxed: bool) -> None:
        """A wait on an mbarrier succeeded; if relaxed, the warp learns only once a fence follows."""
        self.uses(bar, False)
        if relaxed:
            learnt = bar.released or NOTHING
            self.seen, self.seen_near = self.seen | learnt, self.seen_near | learnt
        else:
            self.acquire_from(bar)

    def fence(self, op: str) -> None:
        """A fence: of the async proxy, of mbarrier initialisations, or of relaxed accesses."""
        if op.startswith("fence.proxy.async"):
            done = self.everything().segments
            shared = done if not op.endswith("global") else 0
            world = done if "shared" not in op else 0
            self.known |= Knowledge(0, shared, world)
            for bar in self.inits if shared else ():
                bar.fenced = True
        elif op.startswith("fence.mbarrier_init"):
            for bar in self.inits:
                bar.fenced = True
                self.initialised |= 0 if bar.init is None else 1 << bar.init
        elif op.startswith(("fence.acq_rel", "fence.sc", "membar")):
            near = op.endswith(".cta")
            self.recent.fenced = True
            self.lanes_ordered()
            self.known |= self.seen_near if near else self.seen
            self.released_near = self.everything()
            if not near:
                self.released = self.released_near
        else:
            return
        self.renew()

    # ---- asynchronous operations

    def issue(self, what: str, generic: bool = False, m: Mask = None) -> AsyncOp:
        """The lanes `m` issued a bulk copy (async proxy) or an asynchronous store (generic proxy)."""
        return AsyncOp(self, self.detector.segment(what, self.who, self.cta, generic), m)

    def issue_copy(self, m: Mask = None) -> AsyncOp:
        """A cp.async was issued. It belongs to the generic proxy; a commit group is one operation."""
        if self.copying is None:
            self.copying = self.issue("cp.async", generic=True)
        self.copying.known = self.everything(m)
        return self.copying

    def copies_closed(self) -> None:
        """The cp.asyncs issued so far are committed, or an mbarrier follows them."""
        self.copying = None

    def issue_wgmma(self, where: Place, a: Value | tuple[int, ...], b: Value, form: Form) -> AsyncOp:
        """wgmma.mma_async reads its operands from now until its wait."""
        token = self.issue("wgmma")
        registers = (where, *(("a", slot) for slot in a)) if isinstance(a, tuple) else (where,)
        if not self.ordered or not self.stale.isdisjoint(registers):
            text = f"none between the registers' last use by {self.who} and wgmma"
            self.detector.add("missing wgmma.fence", text)
        left = None if isinstance(a, tuple) else _first(a)
        cells = self.detector.cells.operands(left, _first(b), form, self.group.warps[0] % 4)
        shared = self.group.cta.shared
        self.detector.check(shared, cells, False, token.number, token.known, self.reader)
        for descriptor, is_a in ((left, True), (_first(b), False)):
            if descriptor is not None:
                self.detector.check_swizzle(shared, (descriptor, is_a, form), token.number)
        for register in registers:
            self.pending[register].add(token.number)
        return token

    def done(self, token: AsyncOp, written: bool = True) -> None:
        """This warp has waited for the reads of its own operation, and for the global writes if `written`."""
        finished = 1 << token.number
        if written and token.writes is not None:
            finished |= 1 << token.writes
        self.known |= Knowledge(finished, 0, 0)

    def wgmma_fence(self) -> None:
        """wgmma.fence."""
        self.ordered = True
        self.stale.clear()

    def wgmma_done(self, tokens: Sequence[AsyncOp]) -> None:
        """This warp has waited for wgmmas of its warpgroup, those of other warps included."""
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
            text = f"accumulators {'written' if write else 'read'} by {self.name}"
            self.detector.add("wgmma register used before its wait", text)
        if not write:  # compilers put the moves that zero accumulators after the fence, so a write needs none
            self.stale.add(index)

    def fragment_written(self, slot: int) -> None:
        """A register that holds part of A for some wgmma is written."""
        if self.pending.get(("a", slot)):
            self.detector.add("wgmma register used before its wait", f"operand A overwritten by {self.name}")
        self.stale.add(("a", slot))

    def defect(self, kind: str, text: str) -> None:
        """Report a defect of this warp."""
        self.detector.add(kind, f"{text}, by {self.name}")

    def ended(self) -> None:
        """The warp ends: report operations that it never waited for."""
        group = self.group
        leftovers = {
            "wgmma groups it never waited for": group.wgmmas.open or group.wgmmas.groups,
            "bulk stores whose reads it never waited for": not all(x.awaited for x in group.bulk.all()),
            "cp.async copies it never waited for": not all(x.awaited for x in group.copies.all()),
        }
        for what in (what for what, left in leftovers.items() if left):
            self.detector.add("leftover", f"{self.name} ends with {what}", 0)


class AsyncOp:
    """An asynchronous operation: a segment that knows what its warp knew when it was issued.

    Its global writes are a separate segment, because a wait for the reads of a store does not cover them.
    """

    __slots__ = ("tracker", "number", "detector", "writes", "known", "phases")
    follows = True

    def __init__(self, tracker: WarpTracker, number: int, m: Mask = None) -> None:
        self.tracker, self.number, self.detector = tracker, number, tracker.detector
        self.writes: int | None = None
        self.known = tracker.everything(m)
        self.phases: dict[MBarrier, int] = {}  # phases, at issue, of the mbarriers that it will complete on

    def loads_box(self, mode: int, whole: bool) -> None:
        """It is a tensor load with this swizzle (`TensorMap.swizzle`), of a box that may lie whole in its tensor."""
        self.detector.operand_loads.load(self.number, mode, whole)

    def read_shared(self, cta: CTA, chunks: Chunks) -> None:
        """It reads chunks of a CTA's shared memory."""
        self.check(cta.shared, self.detector.cells.chunks(chunks), False)

    def write_shared(self, cta: CTA, chunks: Chunks) -> None:
        """It writes chunks of a CTA's shared memory."""
        self.check(cta.shared, self.detector.cells.chunks(chunks), True)

    def write_cells(self, cta: CTA, offset: int, size: int, bar: MBarrier) -> None:
        """It writes some bytes of shared memory and completes on an mbarrier there."""
        self.check(cta.shared, self.detector.cells.where(offset, size), True)
        self.tracker.uses(bar, False)

    def copied(self, to: Touched, source: Touched | None, size: int) -> None:
        """It is a cp.async."""
        where = self.detector.cells.where
        self.check(to[1], where(to[2], size), True)
        if source is not None:
            self.check(source[1], where(source[2], size), False)

    def read_global(self, region: MemoryRegion, reach: Reach) -> None:
        """It reads a box of global memory."""
        self.check(region, self.detector.cells.box(*reach), False)

    def write_global(self, region: MemoryRegion, reach: Reach, atomic: bool) -> None:
        """It writes a box of global memory, or reduces into it."""
        detector, tracker = self.detector, self.tracker
        what = detector.segments[self.number].what
        self.writes = detector.segment(what, tracker.who, tracker.cta, False)
        detector.segments[self.writes].atomic = atomic
        known = self.known | Knowledge(1 << self.number, 0, 0)
        detector.check(region, detector.cells.box(*reach), True, self.writes, known, None)

    def check(self, region: MemoryRegion, where: CellSet, write: bool) -> None:
        """The operation accesses these cells of a region."""
        reader = (self.detector.segments[self.number].what, self.tracker.who)
        self.detector.check(region, where, write, self.number, self.known, reader)

    def uses(self, bar: MBarrier) -> None:
        """It will complete on an mbarrier."""
        self.tracker.uses(bar, True)
        self.phases[bar] = bar.phase

    def complete_on(self, bar: MBarrier, amount: int = 0) -> None:
        """It completes on an mbarrier, having copied `amount` bytes."""
        _collect(bar, Knowledge(1 << self.number, 0, 0))
        if self.phases.get(bar, bar.phase) != bar.phase:
            text = f"{bar} completed its phase before a copy of {amount} bytes that was issued for it"
            self.detector.add("wrong expect_tx", text)


def _collect(barrier: Gate, known: Knowledge) -> None:
    barrier.knowledge = (barrier.knowledge or NOTHING) | known


def _first(x: Value) -> int:
    return int(x[0]) if x.__class__ is ND else x  # type: ignore[return-value]  # as in lane_of
