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
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.races import scan
from cutegemm.emulator.races.cells import Cells, CellSet, cell_bytes
from cutegemm.emulator.races.histories import StrongCells
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.races.shadow import (
    NOTHING,
    Access,
    Earlier,
    Knowledge,
    LineTable,
    Segment,
    Shadow,
    ShadowRow,
    SyncPlace,
)
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.units.wgmma_operands import Form
from cutegemm.emulator.watch.findings import BY_THE_LETTER, OBSERVED, Cause, Findings


class Detector:
    """What one launch, or several that overlap, did to memory, and what of it races."""

    def __init__(self, program: Translation, strict: bool = False, cell: int | None = None) -> None:
        self.segments: list[Segment] = []
        self.launch = -1
        self.programs: list[LineTable] = []  # of each launch
        self.start = NOTHING  # what a warp knows when the launch starts
        self.before = 0  # segments of earlier launches that griddepcontrol.wait makes known
        self.strict = strict
        self.cell = cell_bytes(program) if cell is None else cell
        self.cells = Cells(self.cell)
        self.shadows: dict[MemoryRegion, Shadow] = {}
        self.spare: dict[int, list[ShadowRow]] = {}  # empty rows by their cells
        self.sync: dict[SyncPlace, Knowledge] = {}  # knowledge passed through places of strong accesses
        self.enter(program)

    def enter(self, program: Translation) -> None:
        """A launch starts: the first one, or the next of a sequence whose launches may overlap."""
        self.program = program
        self.findings = Findings()
        self.launch += 1
        self.programs.append(LineTable(program))
        self.first = len(self.segments)  # number of the launch's first segment
        self.waited: set[Triple] = set()  # CTAs of which a thread executed griddepcontrol.wait
        # CTA -> whether its first trigger came after a wait.
        self.triggers: dict[Triple, bool] = {}

    def segment(self, what: str, who: str, cta: Triple, generic: bool) -> int:
        """A new segment's number."""
        self.segments.append(Segment(what, who, generic, False, self.launch, cta))
        return len(self.segments) - 1

    def name_of(self, group: WarpSet) -> str:
        """A warp's name in findings."""
        where = f"launch {self.launch} " if self.launch else ""
        return f"{where}CTA {group.cta.index} warp {group.warps[0]}"

    def shadow(self, region: MemoryRegion) -> Shadow:
        """The shadow of a region."""
        made = self.shadows.get(region)
        if made is None:
            made = self.shadows[region] = Shadow(region, self.cell, self.spare)
        return made

    # ---- accesses

    def check(
        self,
        region: MemoryRegion,
        where: CellSet,
        write: bool,
        segment: int,
        known: Knowledge,
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
        now, line = self.segments[segment], self.current_line()
        fenced = known.shared if shadow.shared else known.world
        access = Access(region, where, write, segment, line, known, fenced, lanes)
        if lanes is not None:
            lanes.line = line
        row, listed = shadow.written_by, shadow.reductions
        writers = self._meet(row, True, access) if shadow.written else [-1]
        if shadow.strong is not None and not now.atomic:
            self._meet_strong(shadow.strong, access)
        if listed and not now.atomic:
            for old in shadow.meeting(listed, where):
                self._compare(old, True, access._replace(lanes=None))
        if write:
            self._write(shadow, access)
            return
        if shadow.shared and (writers is None or -1 in writers):
            self._uninitialised(shadow, access)
        if not shadow.shared and not now.generic:
            shadow.wide_reads.append((where, scan.word(segment, line)))
            return
        shadow.read(reader if reader is not None else now.who, where, scan.word(segment, line))

    def read_operands(
        self,
        region: MemoryRegion,
        a: int | None,
        b: int,
        form: Form,
        warp: int,
        segment: int,
        known: Knowledge,
        reader: object,
    ) -> None:
        """Record what warp `warp` of a warpgroup reads with a wgmma of these descriptors (`a` None: from registers).

        All at once where nothing is reported.
        """
        together, apart = self.cells.operands(a, b, form, warp)
        shadow = self.shadow(region)
        apart_from_strong = shadow.strong is None or not shadow.strong.reach(together)
        if shadow.written and not shadow.reductions and together.last <= shadow.cells and apart_from_strong:
            found = scan.found(shadow.written_by.at, together.runs)
            if (
                found is not None
                and -1 not in found
                and self._harmless(found, True, segment, known, known.shared, None)
            ):
                shadow.read(reader, together, scan.word(segment, self.current_line()))
                return
        for where in apart:
            self.check(region, where, False, segment, known, reader)

    def _write(self, shadow: Shadow, access: Access) -> None:
        """The part of `check` for writes, which clear the readers."""
        where, word = access.where, scan.word(access.segment, access.line)
        for row in shadow.readers.values():
            if row.first < where.last and where.first < row.last and self._meet(row, False, access) != [-1]:
                scan.put(row.at, where.runs, -1)
        for old in shadow.meeting(shadow.wide_reads, where):
            self._compare(old, False, access._replace(lanes=None))
        if self.segments[access.segment].atomic:
            shadow.reductions.append((where, word))
            return
        shadow.written = True
        if shadow.strong is not None:
            shadow.strong.clear(where)
        scan.put(shadow.written_by.at, where.runs, word)

    def _meet(self, row: ShadowRow, was_write: bool, access: Access) -> list[int] | None:
        """Report what an access races with in a row; the segments found there, None if there are many."""
        _, where, _, segment, _, known, fenced, lanes = access
        found = scan.found(row.at, where.runs)
        if found is None or not self._harmless(found, was_write, segment, known, fenced, lanes):
            self._compare(~row.cells[where.index], was_write, access)
        return found

    def check_strong(self, shadow: Shadow, access: Access, reads: bool) -> None:
        """Report the plain and asynchronous accesses that a strong access races with."""
        writers = self._meet(shadow.written_by, True, access) if shadow.written else [-1]
        if access.write:
            where = access.where
            for row in shadow.readers.values():
                if row.first < where.last and where.first < row.last:
                    self._meet(row, False, access)
            for old in shadow.meeting(shadow.wide_reads, where):
                self._compare(old, False, access._replace(lanes=None))
        if shadow.shared and reads and (writers is None or -1 in writers):
            self._uninitialised(shadow, access)

    def _meet_strong(self, cells: StrongCells, access: Access) -> None:
        """Report the strong accesses that a plain or asynchronous one races with."""
        lanes, now = access.lanes, self.segments[access.segment]
        for wrote, p, line, cell in _met(cells, access):
            kind = f"{'write' if wrote else 'read'}-{'write' if access.write else 'read'} race"
            self.report(kind, OBSERVED, Earlier(p, line, wrote), access, cell * self.cell)
        for cell in cells.near(access.where) if lanes is not None or not now.generic else ():
            history = cells.cells[cell]
            if lanes is not None:
                for wrote, bits in ((True, history.writes), (False, history.reads)):
                    own = [p for p in lanes.recent.unmet if bits >> p & 1]
                    if own and (wrote or access.write) and (found := lanes.meets(wrote, True)) is not None:
                        earlier = Earlier(own[-1], found[0], wrote)
                        self.report("race between lanes of a warp", OBSERVED, earlier, access, found[1])
                        return
            elif missing := history.writes & access.known.segments & ~access.fenced:
                p = missing.bit_length() - 1
                earlier = Earlier(p, history.lines[p], True)
                self.report("missing proxy fence", OBSERVED, earlier, access, cell * self.cell)

    def _harmless(
        self,
        found: list[int],
        was_write: bool,
        segment: int,
        known: Knowledge,
        fenced: int,
        lanes: Lanes | None,
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

    def _compare(self, before: npt.NDArray[np.int64], was_write: bool, access: Access) -> None:
        _, _, write, segment, _, known, fenced, lanes = access
        now = self.segments[segment]
        first = int(before.flat[0])
        previous = [first] if (before == first).all() else np.unique(before).tolist()
        for cell in previous:
            if cell < 0:
                continue
            p, line = scan.access_of(cell)
            label = OBSERVED
            at = -1
            if lanes is not None and lanes.may_meet(p) and (met := lanes.meets(was_write)) is not None:
                kind = "race between lanes of a warp"
                line, at = met
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
            if at < 0:
                at = int(access.where.index[int(np.flatnonzero(before == cell)[0])]) * self.cell
            self.report(kind, label, Earlier(p, line, was_write), access, at)

    def report(self, kind: str, label: str, earlier: Earlier, access: Access, at: int) -> None:
        """A pair of accesses; `at` is a byte of the region that both reach."""
        old, new = self.segments[earlier.segment], self.segments[access.segment]
        was, now = old.name(earlier.wrote), new.name(access.write)
        lines = (earlier.line, access.line)
        name = access.region.name
        memory = "shared memory" if name.startswith("shared") else name
        sides = ((lines[0], old.launch), (lines[1], new.launch))
        blocks = (self._block(*sides[0]), self._block(*sides[1]))
        sources = (self._source(*sides[0]), self._source(*sides[1]))
        cause = Cause(kind, label, memory, old.what, new.what, blocks, sources)
        if self.findings.seen(cause, lines):
            return
        text = (
            f"{now} by {new.who} at {self.line_text(lines[1], new.launch)} "
            f"and earlier {was} by {old.who} at {self.line_text(lines[0], old.launch)}, "
            f"{name}, offset {at:#x}{access.region.part(at)}"
        )
        self.findings.add(cause, text, lines)

    def _uninitialised(self, shadow: Shadow, access: Access) -> None:
        unwritten = shadow.writer[access.where.index] == 0
        if shadow.strong is not None and unwritten.any():
            unwritten &= ~shadow.strong.written(access.where)
        empty = np.flatnonzero(unwritten)
        if not len(empty):
            return
        new, line = self.segments[access.segment], access.line
        block, source = self._block(line), self._source(line)
        sources = (source, source)
        cause = Cause("uninitialised read", OBSERVED, "shared memory", "", new.what, (block, block), sources)
        if not self.findings.seen(cause, (0, line)):
            cell = int(access.where.index[empty[0]])
            text = (
                f"{new.name(False)} by {new.who} at {self.line_text(line)} of {access.region.name}, "
                f"offset {cell * self.cell:#x}{access.region.part(cell * self.cell)}, which nothing wrote"
            )
            self.findings.add(cause, text, (0, line))

    def add(self, kind: str, text: str, line: int | None = None, label: str = OBSERVED) -> None:
        """Report a defect that is not a pair of accesses."""
        line = self.current_line() if line is None else line
        what = re.sub(r"\(.*?\)|0x[0-9a-f]+|\d+", "", text) if line == 0 else ""
        block, source = self._block(line), self._source(line)
        cause = Cause(kind, label, "", "", what, (block, block), (source, source))
        if not self.findings.seen(cause, (0, line)):
            self.findings.add(cause, f"{text}, {self.line_text(line)}", (0, line))

    def _block(self, line: int, launch: int = -1) -> tuple[int, int]:
        """The launch and the basic block of a PTX line."""
        return (launch, self.programs[launch].blocks.get(line, -line))

    def _source(self, line: int, launch: int = -1) -> tuple[int, str, int] | None:
        """The launch, and the source file and line of a PTX line, where debug information says so."""
        source = self.programs[launch].sources.get(line)
        return None if source is None else (launch, *source)

    def ended(self, cta: CTA) -> None:
        """Every warp of its cluster has ended: its mbarriers may not still expect bytes, its memory's shadow goes."""
        shadow = self.shadows.pop(cta.shared, None)
        if shadow is not None:
            shadow.give_back(self.spare)
        for bar in cta.mbarriers.values():
            if bar.tx:
                self.add("wrong expect_tx", f"{bar} when its CTA ended{bar.mismatch()}", 0)

    def line_text(self, line: int, launch: int = -1) -> str:
        """A PTX line of a launch, with the source line it comes from where debug information says so."""
        source = self.programs[launch].sources.get(line)
        return f"PTX line {line}" + (f" ({source[0].rsplit('/', 1)[-1]}:{source[1]})" if source else "")

    def current_line(self) -> int:
        """The PTX line being executed, 0 outside of the program."""
        ins = self.program.current_instruction()
        return 0 if ins is None else ins.line


def _met(cells: StrongCells, access: Access) -> Iterator[tuple[bool, int, int, int]]:
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
