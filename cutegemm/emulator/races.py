# SPDX-License-Identifier: Apache-2.0
"""Race detector: happens-before over warps, barriers, mbarriers, asynchronous copies and products, and proxies.

Each warp's run is cut into segments at its releases; each asynchronous operation is a segment of its own. A warp
knows a set of finished segments (a bit set in a Python int); barriers carry such sets from those who arrive to
those who wait. Two accesses to the same bytes, one of them a write, race unless the later one knows the earlier
one's segment. An asynchronous operation must besides know, through fence.proxy.async, of writes made by plain
instructions. Bit sets are used rather than vector clocks because asynchronous operations are not ordered.

Needs one warp per group. Source: PTX ISA 9.0, 8 (memory consistency model), 8.6 (proxies), 9.7.13.4 (fence.proxy).
"""

from __future__ import annotations

import numpy as np

from cutegemm.emulator.memory import Region
from cutegemm.emulator.shadow import Finding, Segment, Shadow, Where, cell_bytes
from cutegemm.emulator.values import ND
from cutegemm.emulator.wgmma import ITEM_BYTES, operand_chunks


class Detector:
    """The detector of one launch."""

    def __init__(self, device):
        self.device = device
        self.segments: list[Segment] = []
        self.findings: dict[tuple, Finding] = {}
        self.sync: dict[int, list[int]] = {}  # global address of an atomic -> knowledge passed through it
        self.cell = cell_bytes(device.program)

    def warp(self, group) -> WarpTracker:
        """The tracker of a warp."""
        return WarpTracker(self, group)

    def segment(self, what: str, group, generic: bool) -> int:
        """A new segment's number."""
        self.segments.append(Segment(what, f"CTA {group.cta.index} warp {group.warps[0]}", 0, generic))
        return len(self.segments) - 1

    def shadow(self, region: Region) -> Shadow:
        """The shadow of a region."""
        if region.shadow is None:
            region.shadow = Shadow(region, self.cell)
        return region.shadow

    def where(self, offset, size: int) -> Where:
        """Cells of one access per lane: byte offsets, each `size` bytes."""
        cell = self.cell
        if offset.__class__ is not ND:
            first = int(offset) // cell
            return Where(
                slice(first, (int(offset) + size - 1) // cell + 1),
                first,
                (int(offset) + size - 1) // cell + 1,
            )
        first = np.unique(offset.astype(np.int64)) // cell
        count = max(size // cell, 1)
        index = first if count == 1 else (first[:, None] + np.arange(count)).ravel()
        return Where(index, int(first[0]), int(first[-1]) + count)

    def chunks(self, chunks: np.ndarray) -> Where:
        """Cells of 16-byte chunks."""
        per = 16 // self.cell
        low, high = int(chunks.min()), int(chunks.max()) + 1
        if high - low == chunks.size:
            return Where(slice(low * per, high * per), low * per, high * per)
        index = (chunks.reshape(-1, 1) * per + np.arange(per)).ravel()
        return Where(index, low * per, high * per)

    # ---- accesses

    def access(self, group, m, region, offset, size, write, space, strong) -> None:
        """An access by a warp (called by the device for its observers)."""
        if space in ("param", "local"):
            return
        if strong:
            for o in {int(o) for o in np.atleast_1d(offset)}:
                self.atomic(group, 0, region, o, size)
            return
        t = group.tracker
        self.check(region, self.where(offset, size), write, t.current, t.knowledge, t.fenced, None, group)

    def atomic(self, group, lane, region, offset, size) -> None:
        """An atomic or strong access: releases and acquires through its address, and does not race."""
        t = group.tracker
        passed = self.sync.setdefault(region.base + int(offset), [0, 0])
        t.knowledge |= passed[0]
        t.fenced |= passed[1]
        passed[0] |= t.known()
        passed[1] |= t.fenced
        t.renew()

    def check(
        self, region, where: Where, write: bool, segment: int, knowledge: int, fenced: int, reader, group
    ) -> None:
        """Record an access and report those it races with. `reader` names an asynchronous reader's row."""
        shadow = self.shadow(region)
        index = where.index
        asynchronous = not self.segments[segment].generic
        line = self._line()
        self.segments[segment].line = line
        before = shadow.writer[index]
        self._compare(before, region, where, write, True, segment, knowledge, fenced, asynchronous)
        if not write:
            if region.name.startswith("shared") and before.size and int(before.min()) < 0:
                self._uninitialised(region, segment, before, where)
            row = shadow.reader(reader if reader is not None else (group.cta.index, group.warps[0]))
            row[0][index] = segment
            row[1], row[2] = min(row[1], where.first), max(row[2], where.last)
            return
        for row in shadow.readers.values():
            if row[1] < where.last and where.first < row[2]:
                self._compare(
                    row[0][index], region, where, write, False, segment, knowledge, fenced, asynchronous
                )
                row[0][index] = -1
        shadow.writer[index] = segment

    def _compare(
        self, before, region, where, write, was_write, segment, knowledge, fenced, asynchronous
    ) -> None:
        if not before.size:
            return
        first = int(before[0])
        previous = [first] if (before == first).all() else np.unique(before).tolist()
        for p in previous:
            if p < 0 or p == segment:
                continue
            if not knowledge >> p & 1:
                kind = ("write" if was_write else "read") + "-" + ("write" if write else "read") + " race"
            elif was_write and asynchronous and self.segments[p].generic and not fenced >> p & 1:
                kind = "missing proxy fence"
            else:
                continue
            self._report(kind, p, segment, region, where, before)

    def _report(self, kind: str, previous: int, segment: int, region, where: Where, before) -> None:
        old, new = self.segments[previous], self.segments[segment]
        key = (kind, old.line, new.line, old.what, new.what)
        if key in self.findings:
            return
        at = np.flatnonzero(before == previous)
        cell = int(where.first if isinstance(where.index, slice) else where.index[at[0]])
        cell += int(at[0]) if isinstance(where.index, slice) else 0
        text = (f"{new.what} by {new.who} at PTX line {new.line} "
                f"and earlier {old.what} by {old.who} at PTX line {old.line}, "
                f"{region.name}, offset {cell * self.cell:#x}")  # fmt: skip
        self.findings[key] = Finding(kind, text, (old.line, new.line))

    def _uninitialised(self, region, segment: int, before, where: Where) -> None:
        new = self.segments[segment]
        key = ("uninitialised read", new.line)
        if key not in self.findings:
            at = int(np.flatnonzero(before < 0)[0])
            cell = where.first + at if isinstance(where.index, slice) else int(where.index[at])
            text = (
                f"{new.what} by {new.who} at PTX line {new.line} of {region.name}, "
                f"offset {cell * self.cell:#x}, which nothing wrote"
            )
            self.findings[key] = Finding("uninitialised read", text, (0, new.line))

    def add(self, kind: str, text: str, line: int | None = None) -> None:
        """Report a defect that is not a pair of accesses."""
        line = self._line() if line is None else line
        self.findings.setdefault((kind, line, text), Finding(kind, f"{text}, PTX line {line}", (0, line)))

    def cluster_ended(self, cluster) -> None:
        """Every warp of a cluster has ended: its mbarriers may not still expect bytes."""
        for cta in cluster.ctas:
            for bar in cta.mbarriers.values():
                if bar.tx:
                    self.add("leftover", f"{bar} when its CTA ended", 0)

    def _line(self) -> int:
        ins = self.device.current_instruction()
        return 0 if ins is None else ins.line


class WarpTracker:
    """What one warp knows, and its operations under way."""

    def __init__(self, detector: Detector, group):
        self.detector, self.group = detector, group
        self.knowledge = 0  # finished segments this warp may rely on
        self.fenced = 0  # those whose plain writes the async proxy sees too
        self.initialised = 0  # segments holding mbarrier.init that a fence.mbarrier_init has covered
        self.inits: list = []
        self.current = detector.segment("access", group, True)
        self.pending: dict[object, set[int]] = {}  # accumulator list -> products not waited for
        self.ordered = False  # whether a wgmma.fence has run
        self.stale: set = set()  # accumulator lists read since the last wgmma.fence

    def known(self) -> int:
        """Everything this warp has done or may rely on."""
        return self.knowledge | 1 << self.current

    def renew(self) -> None:
        """Begin a new segment."""
        self.knowledge = self.known()
        self.current = self.detector.segment("access", self.group, True)

    # ---- barriers: objects with `knowledge` (being collected) and `released` (what waiters get)

    def release_to(self, barrier) -> None:
        """Give what this warp knows to a barrier it arrives at."""
        old = barrier.knowledge or (0, 0)
        barrier.knowledge = (old[0] | self.known(), old[1] | self.fenced)
        self.renew()

    def release_inits(self, barrier) -> None:
        """A relaxed arrival passes on only the mbarrier initialisations a fence has released."""
        old = barrier.knowledge or (0, 0)
        barrier.knowledge = (old[0] | self.initialised, old[1] | self.initialised)

    def acquire_from(self, barrier) -> None:
        """Learn what those who arrived knew."""
        known, fenced = barrier.released or (0, 0)
        self.knowledge |= known
        self.fenced |= fenced

    def barrier_init(self, bar) -> None:
        """An mbarrier was initialised by this warp."""
        bar.init = self.current
        self.inits.append(bar)

    def uses(self, bar, asynchronous: bool) -> None:
        """An mbarrier is used: its initialisation must be ordered before, and fenced for the async proxy."""
        if bar.init is None:
            return
        if bar.init != self.current and not self.known() >> bar.init & 1:
            self.detector.add("mbarrier used before its initialisation is visible", str(bar).split(" (")[0])
        elif asynchronous and not (bar.fenced or self.fenced >> bar.init & 1):
            self.detector.add(
                "mbarrier initialised without a fence before a bulk copy uses it", str(bar).split(" (")[0]
            )

    def arrive(self, bars: list) -> None:
        """mbarrier.arrive."""
        for bar in bars:
            self.uses(bar, False)
            old = bar.knowledge or (0, 0)
            bar.knowledge = (old[0] | self.known(), old[1] | self.fenced)
        self.renew()

    def waited(self, bar, state: int, parity: bool) -> None:
        """A wait on an mbarrier succeeded."""
        self.uses(bar, False)
        self.acquire_from(bar)

    def fence(self, op: str) -> None:
        """fence instructions."""
        if op.startswith("fence.proxy.async"):
            self.fenced |= self.known()
            for bar in self.inits:
                bar.fenced = True
            self.renew()
        elif op.startswith("fence.mbarrier_init"):
            for bar in self.inits:
                bar.fenced = True
                self.initialised |= 1 << bar.init
            self.renew()

    # ---- asynchronous operations

    def issue(self, what: str) -> AsyncOp:
        """A bulk copy was issued."""
        return AsyncOp(self, self.detector.segment(what, self.group, False))

    def issue_wgmma(self, where, a, b, form) -> AsyncOp:
        """wgmma.mma_async: its operands are read from now until its wait."""
        token = AsyncOp(self, self.detector.segment("wgmma", self.group, False))
        n, k, _, a_type, b_type, _, (trans_a, trans_b) = form
        if not self.ordered or where in self.stale:
            self.detector.add(
                "missing wgmma.fence",
                f"none between the accumulators' last use by {self.detector.segments[token.number].who} and wgmma",
            )
        cta, first = self.group.cta, self.group.warps[0] % 4
        if not isinstance(a, tuple):
            chunks = operand_chunks(_first(a), 64, k * ITEM_BYTES[a_type], trans_a, ITEM_BYTES[a_type])
            if not trans_a:  # a warp reads its 16 rows
                chunks = chunks[16 * first : 16 * first + 16]
            token.read_shared(cta, chunks)
        token.read_shared(
            cta, operand_chunks(_first(b), n, k * ITEM_BYTES[b_type], trans_b, ITEM_BYTES[b_type])
        )
        self.pending.setdefault(where, set()).add(token.number)
        return token

    def done(self, token: AsyncOp) -> None:
        """This warp has waited for an operation of its own."""
        self.knowledge |= 1 << token.number
        for numbers in self.pending.values():
            numbers.discard(token.number)

    def wgmma_fence(self) -> None:
        """wgmma.fence."""
        self.ordered = True
        self.stale.clear()

    def wgmma_waited(self) -> None:
        """wgmma.wait_group: nothing beyond `done` of each product."""

    def accumulator(self, index: int, write: bool) -> None:
        """A register of an accumulator list is read or written."""
        if self.pending.get(index):
            verb = "written" if write else "read"
            self.detector.add(
                "wgmma register used before its wait",
                f"accumulators {verb} by CTA {self.group.cta.index} warp {self.group.warps[0]}",
            )
        if not write:  # compilers put the zeroing moves behind the fence, so writes say nothing
            self.stale.add(index)

    def ended(self) -> None:
        """The warp ends: what it still owes."""
        group = self.group
        who = f"CTA {group.cta.index} warp {group.warps[0]}"
        if group.wgmma_open or group.wgmma_groups:
            self.detector.add("leftover", f"{who} ends with wgmma groups it never waited for", 0)
        unread = [s for stores in (*group.bulk_groups, group.bulk_open) for s in stores if not s.awaited]
        if unread:
            self.detector.add("leftover", f"{who} ends with bulk stores whose reads it never waited for", 0)
        if group.copy_open or any(group.copy_groups):
            self.detector.add("leftover", f"{who} ends with cp.async copies it never waited for", 0)


class AsyncOp:
    """An asynchronous operation as a segment: issued with what its warp knew then."""

    __slots__ = ("tracker", "number", "knowledge", "fenced")

    def __init__(self, tracker: WarpTracker, number: int):
        self.tracker, self.number = tracker, number
        self.knowledge, self.fenced = tracker.known(), tracker.fenced

    def read_shared(self, cta, chunks: np.ndarray) -> None:
        """The operation reads these 16-byte chunks."""
        self._touch(cta, chunks, False)

    def write_shared(self, cta, chunks: np.ndarray) -> None:
        """The operation writes these 16-byte chunks."""
        self._touch(cta, chunks, True)

    def _touch(self, cta, chunks, write: bool) -> None:
        detector, group = self.tracker.detector, self.tracker.group
        what = detector.segments[self.number].what
        where = detector.chunks(chunks)
        detector.check(
            cta.shared,
            where,
            write,
            self.number,
            self.knowledge,
            self.fenced,
            (what, group.cta.index, group.warps[0]),
            group,
        )

    def uses(self, bar) -> None:
        """The operation will complete on an mbarrier."""
        self.tracker.uses(bar, True)

    def complete_on(self, bar) -> None:
        """Waiters of the mbarrier will know of this operation."""
        old = bar.knowledge or (0, 0)
        bar.knowledge = (old[0] | 1 << self.number, old[1])


def _first(x) -> int:
    return int(x[0]) if x.__class__ is ND else x
