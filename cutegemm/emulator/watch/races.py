# SPDX-License-Identifier: Apache-2.0
"""Race detector: happens-before over warps, barriers, mbarriers, asynchronous copies and products, and proxies.

Each warp's run is cut into segments at its releases; each asynchronous operation is a segment of its own. A warp
knows a set of finished segments (a bit set in a Python int); barriers carry such sets from those who arrive to
those who wait. Two accesses to the same bytes, one of them a write, race unless the later one knows the earlier
one's segment. An asynchronous operation must besides know, through fence.proxy.async, of writes made by plain
instructions, be it in shared or in global memory. Bit sets are used rather than vector clocks because asynchronous
operations are not ordered.

Needs one warp per group. Source: PTX ISA 9.0, 8 (memory consistency model), 8.6 (proxies), 9.7.13.4 (fence.proxy).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.state.memory import Region
from cutegemm.emulator.watch import scan
from cutegemm.emulator.watch.cells import Cells, Where, cell_bytes
from cutegemm.emulator.watch.findings import BY_THE_LETTER, OBSERVED, Cause, Findings
from cutegemm.emulator.watch.lanes import Lanes
from cutegemm.emulator.watch.shadow import (
    NOTHING,
    Access,
    Known,
    Lines,
    Row,
    Segment,
    Shadow,
    SyncPlace,
)
from cutegemm.emulator.watch.tracker import WarpTracker

if TYPE_CHECKING:
    from cutegemm.emulator.machine import Device
    from cutegemm.emulator.numbers.types import Mask, Value
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.units.cta import Cluster
    from cutegemm.emulator.units.products import Form


class Detector:
    """The detector of one launch."""

    def __init__(self, device: Device, cell: int | None = None) -> None:
        self.segments: list[Segment] = []
        self.launch = -1
        self.programs: list[Lines] = []  # of each launch
        self.start = NOTHING  # what a warp knows when the launch starts
        self.before = 0  # segments of earlier launches that griddepcontrol.wait makes known
        self.enter(device)
        # Place of a strong access, and CTA or None -> knowledge passed through it.
        self.sync: dict[SyncPlace, Known] = {}
        self.strict = device.options.strict
        self.cell = cell_bytes(device.program) if cell is None else cell
        self.cells = Cells(self.cell)
        self.spare: dict[int, list[Row]] = {}  # empty rows by their cells

    def enter(self, device: Device) -> None:
        """A launch starts: the first one, or the next of a sequence whose launches may overlap."""
        self.device = device
        self.findings = Findings()
        self.launch += 1
        self.programs.append(Lines(device.program))
        self.first = len(self.segments)  # number of the launch's first segment
        self.waited: set[tuple[int, int, int]] = set()  # CTAs of which a thread executed griddepcontrol.wait
        # CTA -> whether its first trigger came after a wait.
        self.triggers: dict[tuple[int, int, int], bool] = {}

    def warp(self, group: Group) -> WarpTracker:
        """The tracker of a warp."""
        return WarpTracker(self, group)

    def segment(self, what: str, tracker: WarpTracker, generic: bool) -> int:
        """A new segment's number."""
        self.segments.append(
            Segment(what, tracker.who, 0, generic, False, self.launch, tracker.group.cta.index)
        )
        return len(self.segments) - 1

    def name_of(self, group: Group) -> str:
        """A warp's name in findings."""
        where = f"launch {self.launch} " if self.launch else ""
        return f"{where}CTA {group.cta.index} warp {group.warps[0]}"

    def shadow(self, region: Region) -> Shadow:
        """The shadow of a region."""
        if region.shadow is None:
            region.shadow = Shadow(region, self.cell, self.spare)
        return region.shadow

    # ---- accesses

    def access(
        self,
        group: Group,
        m: Mask,
        region: Region,
        offset: Value,
        size: int,
        write: bool,
        space: str,
        strong: str,
    ) -> None:
        """An access by a warp (called by the device for its observers)."""
        if space in ("param", "local"):
            return
        if strong:
            for o in {int(o) for o in np.atleast_1d(offset)}:
                self.strong(group, region, o, strong, not write, write)
            return
        t = group.tracker
        assert t is not None  # as long as there is a detector
        known = t.known if t.waited_lanes is None else t.knowledge_of(m)
        lanes = Lanes(t, region, m, offset, size, write, space == "matrix")
        where = self.cells.where(offset, size)
        lanes.shared = where.shared
        self.check(region, where, write, t.current, known, None, lanes)
        t.lane_accesses.append(lanes)

    def atomic(self, group: Group, lane: int, region: Region, offset: Value, size: int, order: str) -> None:
        """An atomic operation by one lane."""
        self.strong(group, region, int(offset), order, True, True)

    def strong(
        self, group: Group, region: Region, offset: int, order: str, reads: bool, writes: bool
    ) -> None:
        """An atomic, volatile, relaxed, acquire or release access: it does not race, and orders as PTX ISA 8.8 says.

        A release passes on all its warp knows, a relaxed write what a fence before it has released; an acquire
        learns what was passed, a relaxed read once a fence follows it. What is done in the scope of the CTA
        reaches that CTA alone.
        """
        t, (order, _, scope) = group.tracker, order.partition(".")
        assert t is not None
        everywhere, here = (id(region), offset, None), (id(region), offset, group.cta.index)
        if reads:
            near = self.sync.get(here, NOTHING)
            passed = near if scope else near | self.sync.get(everywhere, NOTHING)
            if order in ("acquire", "acq_rel"):
                t.known |= passed
                t.lanes_met()
            else:
                t.seen |= passed
                t.seen_near |= near
        if writes:
            releases = order in ("release", "acq_rel")
            self._pass(here, t.everything() if releases else t.released_near)
            if not scope:
                self._pass(everywhere, t.everything() if releases else t.released)
            t.renew()

    def _pass(self, place: SyncPlace, known: Known) -> None:
        self.sync[place] = self.sync.get(place, NOTHING) | known

    def check(
        self,
        region: Region,
        where: Where,
        write: bool,
        segment: int,
        known: Known,
        reader: object,
        lanes: Lanes | None = None,
    ) -> None:
        """Record an access and report those it races with.

        `reader` names an asynchronous reader's row. Of asynchronous reads of global memory, which are wide and
        seldom written over, and of reductions, which do not race with each other, only lists are kept.
        """
        shadow = self.shadow(region)
        where = where.within(shadow.cells)
        if not len(where.starts):
            return
        now = self.segments[segment]
        now.line = self.current_line()
        access = Access(
            region, where, write, segment, known, known.shared if shadow.shared else known.world, lanes
        )
        row, listed = shadow.written_by, shadow.reductions
        writers = self._meet(row, True, access) if shadow.written else [-1]
        if listed and not now.atomic:
            for old in shadow.meeting(listed, where):
                self._compare(old, True, access._replace(lanes=None))
        if write:
            self._write(shadow, access)
            return
        if shadow.shared and (writers is None or -1 in writers):
            self._uninitialised(region, segment, row.cells[where.index], where)
        if not shadow.shared and not now.generic:
            shadow.wide_reads.append((where, segment))
            return
        shadow.read(reader if reader is not None else now.who, where, segment)

    def read_operands(
        self,
        region: Region,
        a: int | None,
        b: int,
        form: Form,
        warp: int,
        segment: int,
        known: Known,
        reader: object,
    ) -> None:
        """Record what warp `warp` of a warpgroup reads with a wgmma of these descriptors (`a` None: from registers).

        All at once where nothing is amiss.
        """
        together, apart = self.cells.operands(a, b, form, warp)
        shadow = self.shadow(region)
        if shadow.written and not shadow.reductions and together.last <= shadow.cells:
            found = scan.found(shadow.written_by.at, together.runs)
            if (
                found is not None
                and -1 not in found
                and self._harmless(found, True, segment, known, known.shared, None)
            ):
                self.segments[segment].line = self.current_line()
                shadow.read(reader, together, segment)
                return
        for where in apart:
            self.check(region, where, False, segment, known, reader)

    def _write(self, shadow: Shadow, access: Access) -> None:
        """The part of `check` that is of writes: they end what was known of readers."""
        where, segment = access.where, access.segment
        for row in shadow.readers.values():
            if row.first < where.last and where.first < row.last and self._meet(row, False, access) != [-1]:
                scan.put(row.at, where.runs, -1)
        for old in shadow.meeting(shadow.wide_reads, where):
            self._compare(old, False, access._replace(lanes=None))
        if self.segments[segment].atomic:
            shadow.reductions.append((where, segment))
            return
        shadow.written = True
        scan.put(shadow.written_by.at, where.runs, segment)

    def _meet(self, row: Row, was_write: bool, access: Access) -> list[int] | None:
        """Report what an access races with in a row; the segments there, None when they are many."""
        _, where, _, segment, known, fenced, lanes = access
        found = scan.found(row.at, where.runs)
        if found is None or not self._harmless(found, was_write, segment, known, fenced, lanes):
            self._compare(row.cells[where.index], was_write, access)
        return found

    def _harmless(
        self, found: list[int], was_write: bool, segment: int, known: Known, fenced: int, lanes: Lanes | None
    ) -> bool:
        """Whether there is nothing to report of an access after these: what `_compare` says case by case."""
        done, now_async = known.segments, not self.segments[segment].generic
        for p in found:
            if p < 0:
                continue
            if lanes is not None and lanes.may_meet(p):
                return False
            if p == segment:
                continue
            if not done >> p & 1:
                return False
            if was_write and now_async and self.segments[p].generic and not fenced >> p & 1:
                return False
        return True

    def _compare(self, before: np.ndarray, was_write: bool, access: Access) -> None:
        region, where, write, segment, known, fenced, lanes = access
        now = self.segments[segment]
        first = int(before.flat[0])
        previous = [first] if (before == first).all() else np.unique(before).tolist()
        for p in previous:
            if p < 0:
                continue
            label = OBSERVED
            if lanes is not None and lanes.may_meet(p) and lanes.meets(was_write):
                kind = "race between lanes of a warp"
            elif p == segment:
                continue
            elif not known.segments >> p & 1:
                kind = ("write" if was_write else "read") + "-" + ("write" if write else "read") + " race"
                if known.grouped >> p & 1:
                    label = BY_THE_LETTER
            elif was_write and not now.generic and self.segments[p].generic and not fenced >> p & 1:
                kind = "missing proxy fence"
            else:
                continue
            self._report(kind, label, p, segment, region, where, before)

    def _report(
        self,
        kind: str,
        label: str,
        previous: int,
        segment: int,
        region: Region,
        where: Where,
        before: npt.NDArray[np.int32],
    ) -> None:
        old, new = self.segments[previous], self.segments[segment]
        lines = (old.line, new.line)
        memory = "shared memory" if region.name.startswith("shared") else region.name
        blocks = (self._block(old.line, old.launch), self._block(new.line, new.launch))
        cause = Cause(kind, label, memory, old.what, new.what, blocks)
        if self.findings.seen(cause, lines):
            return
        cell = int(where.index[int(np.flatnonzero(before == previous)[0])])
        text = (
            f"{new.what} by {new.who} at {self.line_text(new.line, new.launch)} "
            f"and earlier {old.what} by {old.who} at {self.line_text(old.line, old.launch)}, "
            f"{region.name}, offset {cell * self.cell:#x}"
        )
        self.findings.add(cause, text, lines)

    def _uninitialised(self, region: Region, segment: int, before: np.ndarray, where: Where) -> None:
        empty = np.flatnonzero(before < 0)
        if not len(empty):
            return
        new = self.segments[segment]
        block = self._block(new.line)
        cause = Cause("uninitialised read", OBSERVED, "shared memory", "", new.what, (block, block))
        if not self.findings.seen(cause, (0, new.line)):
            cell = int(where.index[empty[0]])
            text = (
                f"{new.what} by {new.who} at {self.line_text(new.line)} of {region.name}, "
                f"offset {cell * self.cell:#x}, which nothing wrote"
            )
            self.findings.add(cause, text, (0, new.line))

    def add(self, kind: str, text: str, line: int | None = None, label: str = OBSERVED) -> None:
        """Report a defect that is not a pair of accesses."""
        line = self.current_line() if line is None else line
        what = re.sub(r"\(.*?\)|0x[0-9a-f]+|\d+", "", text) if line == 0 else ""
        cause = Cause(kind, label, "", "", what, (self._block(line), self._block(line)))
        if not self.findings.seen(cause, (0, line)):
            self.findings.add(cause, f"{text}, {self.line_text(line)}", (0, line))

    def _block(self, line: int, launch: int = -1) -> tuple[int, int]:
        """The launch and the basic block of a PTX line."""
        return (launch, self.programs[launch].blocks.get(line, -line))

    def cluster_ended(self, cluster: Cluster) -> None:
        """Every warp of a cluster has ended: its mbarriers may not still expect bytes, its memory's shadow goes."""
        for cta in cluster.ctas:
            if cta.shared.shadow is not None:
                cta.shared.shadow.give_back(self.spare)
                cta.shared.shadow = None
            for bar in cta.mbarriers.values():
                if bar.tx:
                    self.add("wrong expect_tx", f"{bar} when its CTA ended{bar.mismatch()}", 0)

    def line_text(self, line: int, launch: int = -1) -> str:
        """A PTX line of a launch, with the source line it comes from where debug information says so."""
        source = self.programs[launch].sources.get(line)
        return f"PTX line {line}" + (f" ({source[0].rsplit('/', 1)[-1]}:{source[1]})" if source else "")

    def current_line(self) -> int:
        """The PTX line being executed, 0 outside of the program."""
        ins = self.device.program.current_instruction()
        return 0 if ins is None else ins.line
