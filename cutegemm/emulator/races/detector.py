# SPDX-License-Identifier: Apache-2.0
"""Race detector: happens-before for warps, barriers, mbarriers, asynchronous copies, wgmma and proxies.

A warp begins a new segment after each release; each asynchronous operation is a segment of its own. A warp knows
a set of finished segments (a bit set in a Python int). Barriers pass such sets from arriving to waiting warps. Two
accesses to the same bytes, one of them a write, race unless the later one knows the earlier one's segment. A
fence.proxy.async must also have made the writes of plain instructions known to an asynchronous operation that accesses
the same memory. Asynchronous operations are not ordered, so bit sets are used instead of vector clocks.

The detector needs one warp per group.

Source: PTX ISA 9.0, 8 (memory consistency model), 8.6 (proxies), 9.7.13.4 (fence.proxy).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import numpy as np

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.races import scan
from cutegemm.emulator.races.cells import Cells, CellSet, cell_bytes
from cutegemm.emulator.races.lanes import Lanes
from cutegemm.emulator.races.operand_loads import OperandLoads
from cutegemm.emulator.races.shadow import (
    NOTHING,
    Access,
    Earlier,
    Knowledge,
    Segment,
    Shadow,
    ShadowRow,
    StrongCells,
    SyncPlace,
)
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.geometry import Triple
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.state.tensors import swizzle_name
from cutegemm.emulator.units.wgmma_operands import Form, swizzle_mode
from cutegemm.emulator.watch.findings import BY_THE_LETTER, LEFTOVER, OBSERVED, Cause, Findings


class LineTable:
    """The instructions of a launch by PTX line, for findings."""

    def __init__(self, program: Translation, launch: int) -> None:
        self.launch = launch
        self.lines = {ins.line: (n, ins) for n, block in enumerate(program.blocks) for ins in block.code}

    def block(self, line: int) -> tuple[int, int]:
        """The launch and the basic block of a line."""
        return self.launch, self.lines[line][0] if line in self.lines else -line

    def source(self, line: int) -> tuple[object, ...] | None:
        """The launch, source line and callers of a PTX line, if there is debug information."""
        ins = self.lines[line][1] if line in self.lines else None
        return None if ins is None or ins.source is None else (self.launch, ins.source, ins.callers)

    def text(self, line: int) -> str:
        """A PTX line, with its source line if known."""
        return self.lines[line][1].place if line in self.lines else f"PTX line {line}"


class Detector:
    """Finds races between the accesses of one launch, or of several that overlap."""

    def __init__(self, program: Translation, strict: bool, cell: int | None = None) -> None:
        self.segments: list[Segment] = []
        self.launches: list[LineTable] = []
        self.start = NOTHING  # what a warp knows when the launch starts
        self.before = 0  # segments of earlier launches that griddepcontrol.wait makes known
        self.strict = strict
        self.cell = cell_bytes(program) if cell is None else cell
        self.cells = Cells(self.cell)
        self.shadows: dict[MemoryRegion, Shadow] = {}
        self.spare: dict[int, list[ShadowRow]] = {}  # empty rows by number of cells
        self.operand_loads = OperandLoads()
        self.sync: dict[SyncPlace, Knowledge] = {}  # knowledge that strong accesses pass through a place
        self.enter(program)

    def enter(self, program: Translation) -> None:
        """A launch starts: the first one, or one that may overlap the launches before."""
        self.program = program
        self.findings = Findings()
        self.launches.append(LineTable(program, len(self.launches)))
        self.first = len(self.segments)  # number of the launch's first segment
        self.waited: set[Triple] = set()  # CTAs in which a thread executed griddepcontrol.wait
        # CTA -> whether its first trigger came after a wait.
        self.triggers: dict[Triple, bool] = {}

    @property
    def launch(self) -> int:
        """Number of the launch that runs."""
        return len(self.launches) - 1

    def segment(self, what: str, who: str, cta: Triple, generic: bool) -> int:
        """A new segment's number."""
        self.segments.append(Segment(what, who, generic, False, len(self.launches) - 1, cta))
        return len(self.segments) - 1

    def shadow(self, region: MemoryRegion) -> Shadow:
        """The shadow of a region."""
        shadow = self.shadows.get(region)
        if shadow is None:
            shadow = self.shadows[region] = Shadow(region, self.cell, self.spare)
        return shadow

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
        """Record a plain or asynchronous access and report those it races with.

        `reader` names the row of an asynchronous reader. Reductions do not race with each other, and asynchronous
        reads of global memory are wide and rarely overwritten: both are kept in lists instead of rows.
        """
        shadow = self.shadows.get(region) or self.shadow(region)
        where = where.within(shadow.cells)
        if not len(where.starts):
            return
        now, line = self.segments[segment], self.current_line()
        if lanes is not None:
            lanes.line = line
        fenced = known.shared if shadow.shared else known.world
        access = Access(region, where, write, segment, line, known, fenced, lanes)
        self.compare(shadow, access, not write)
        if not now.atomic:
            if shadow.strong is not None:
                self._compare_strong(shadow.strong, access)
            if shadow.reductions:
                self._compare_listed(shadow, shadow.reductions, True, access)
        word = scan.word(segment, line)
        if not write:
            if shadow.shared or now.generic:
                shadow.read(now.who if reader is None else reader, where, word)
            else:
                shadow.wide_reads.append((where, word))
            return
        for row in shadow.readers.values():
            if where.overlaps(row):
                scan.put(row.at, where.runs, -1)
        if now.atomic:
            shadow.reductions.append((where, word))
            return
        shadow.written = True
        if shadow.strong is not None:
            shadow.strong.clear(where)
        shadow.written_by.put(where, word)

    def check_swizzle(self, region: MemoryRegion, operand: tuple[int, bool, Form], segment: int) -> None:
        """Report that a tensor load wrote an operand with another swizzle than wgmma's descriptor has.

        operand: descriptor, whether it is A's, and form of the wgmma.
        """
        row, mode = self.shadow(region).written_by, swizzle_mode(operand[0])
        if not self.operand_loads.differ(mode):
            return
        where = self.cells.operand(*operand)
        for word in row.words(where):
            wrote = self.operand_loads.of_word(word, mode)
            if wrote != mode:
                access = Access(region, where, False, segment, self.current_line(), NOTHING, 0, None)
                earlier = Earlier(*scan.access_of(word), True)
                kind = f"swizzle mismatch ({swizzle_name(wrote)} written, {swizzle_name(mode)} read)"
                self.report(kind, OBSERVED, earlier, access, row.first_cell(where, word) * self.cell)

    def set_apart(self, old: Lanes, segment: int, who: str) -> None:
        """Count an access as one by another segment, in the cells where it is still the last one."""
        shadow = self.shadow(old.region)
        row = shadow.written_by if old.write else shadow.readers.get(who)
        index = self.cells.where(old.offset, old.size).within(shadow.cells).index
        if row is not None and len(index):
            mine = index[~row.cells[index] & scan.SEGMENT == old.segment]
            row.cells[mine] = ~scan.word(segment, old.line)
        old.segment = segment

    def compare(self, shadow: Shadow, access: Access, reads: bool) -> None:
        """Report the plain and asynchronous accesses that an access races with, and a read of unwritten bytes."""
        where = access.where
        writers = self._compare_row(shadow.written_by, True, access) if shadow.written else [-1]
        if access.write:
            for row in shadow.readers.values():
                if where.overlaps(row):
                    self._compare_row(row, False, access)
            self._compare_listed(shadow, shadow.wide_reads, False, access)
        if reads and shadow.shared and -1 in writers:
            self._uninitialised(shadow, access)

    def _compare_row(self, row: ShadowRow, was_write: bool, access: Access) -> list[int]:
        """Report the accesses in a row that an access races with; returns the words of its cells."""
        words = row.words(access.where)
        self._compare_words(words, lambda word: row.first_cell(access.where, word), was_write, access)
        return words

    def _compare_listed(
        self, shadow: Shadow, listed: list[tuple[CellSet, int]], was_write: bool, access: Access
    ) -> None:
        cells = shadow.overlapping(listed, access.where)
        self._compare_words(list(cells), cells.__getitem__, was_write, access._replace(lanes=None))

    def _compare_strong(self, cells: StrongCells, access: Access) -> None:
        """Report the strong accesses that a plain or asynchronous one races with."""
        lanes, now = access.lanes, self.segments[access.segment]
        for wrote, p, line, cell in _unordered(cells, access):
            kind = f"{'write' if wrote else 'read'}-{'write' if access.write else 'read'} race"
            self.report(kind, OBSERVED, Earlier(p, line, wrote), access, cell * self.cell)
        for cell in cells.near(access.where) if lanes is not None or not now.generic else ():
            history = cells.cells[cell]
            if lanes is not None:
                for wrote, bits in ((True, history.writes), (False, history.reads)):
                    own = [p for p in lanes.recent.segments if bits >> p & 1]
                    if own and (wrote or access.write) and (other := lanes.conflict(wrote, True)):
                        line, at = other
                        earlier = Earlier(own[-1], line, wrote)
                        self.report("race between lanes of a warp", OBSERVED, earlier, access, at)
                        return
            elif missing := history.writes & access.known.segments & ~access.fenced:
                p = missing.bit_length() - 1
                earlier = Earlier(p, history.lines[p], True)
                self.report("missing proxy fence", OBSERVED, earlier, access, cell * self.cell)

    def _compare_words(
        self, words: list[int], cell_of: Callable[[int], int], was_write: bool, access: Access
    ) -> None:
        """Report which of the accesses `words` an access races with; `cell_of` gives a cell that both reach."""
        _, _, write, segment, _, known, fenced, lanes = access
        done, now_async = known.segments, not self.segments[segment].generic
        for word in sorted(words):
            if word < 0:
                continue
            p, line = scan.access_of(word)
            label, at = OBSERVED, -1
            if lanes is not None and p in lanes.recent.segments and (other := lanes.conflict(was_write)):
                kind = "race between lanes of a warp"
                line, at = other
            elif p == segment:
                continue
            elif not done >> p & 1:
                kind = f"{'write' if was_write else 'read'}-{'write' if write else 'read'} race"
                if known.grouped >> p & 1:
                    label = BY_THE_LETTER
            elif was_write and now_async and self.segments[p].generic and not fenced >> p & 1:
                kind = "missing proxy fence"
            else:
                continue
            at = cell_of(word) * self.cell if at < 0 else at
            self.report(kind, label, Earlier(p, line, was_write), access, at)

    # ---- findings

    def report(self, kind: str, label: str, earlier: Earlier, access: Access, at: int) -> None:
        """Report a pair of accesses; `at` is a byte of the region that both reach."""
        old, new = self.segments[earlier.segment], self.segments[access.segment]
        sides = (self.launches[old.launch], earlier.line), (self.launches[new.launch], access.line)
        name = access.region.name
        memory = "shared memory" if name.startswith("shared") else name

        def text() -> str:
            was, now = (table.text(line) for table, line in sides)
            return (
                f"{new.name(access.write)} by {new.who} at {now} "
                f"and earlier {old.name(earlier.wrote)} by {old.who} at {was}, "
                f"{name}, offset {at:#x}{access.region.part(at)}"
            )

        self._add(kind, label, memory, (old.what, new.what), sides, text)

    def _add(
        self,
        kind: str,
        label: str,
        memory: str,
        operations: tuple[str, str],
        sides: tuple[tuple[LineTable, int], tuple[LineTable, int]],
        text: Callable[[], str],
    ) -> None:
        """Add a finding; `sides` are the launches and PTX lines of its two accesses."""
        one, other = sides
        blocks = one[0].block(one[1]), other[0].block(other[1])
        sources = one[0].source(one[1]), other[0].source(other[1])
        cause = Cause(kind, label, memory, *operations, blocks, sources)
        self.findings.add(cause, (one[1] if one is not other else 0, other[1]), text)

    def _uninitialised(self, shadow: Shadow, access: Access) -> None:
        unwritten = shadow.written_by.cells[access.where.index] == 0
        if shadow.strong is not None and unwritten.any():
            unwritten &= ~shadow.strong.written(access.where)
        empty = np.flatnonzero(unwritten)
        if not len(empty):
            return
        new, region, at = self.segments[access.segment], access.region, 0
        side = self.launches[-1], access.line
        at = int(access.where.index[empty[0]]) * self.cell
        text = functools.partial(
            "{} by {} at {} of {}, offset {:#x}{}, which nothing wrote".format,
            new.name(False), new.who, side[0].text(access.line), region.name, at, region.part(at),
        )  # fmt: skip
        self._add("uninitialised read", OBSERVED, "shared memory", ("", new.what), (side, side), text)

    def add(self, kind: str, text: str, line: int | None = None) -> None:
        """Report a defect of one operation."""
        side = self.launches[-1], self.current_line() if line is None else line
        what = re.sub(r"\(.*?\)|0x[0-9a-f]+|\d+", "", text) if line == 0 else ""
        full = f"{text}, {side[0].text(side[1])}" if side[1] else text
        self._add(kind, OBSERVED, "", ("", what), (side, side), lambda: full)

    def ended(self, cta: CTA) -> None:
        """Every warp of a CTA's cluster has ended: drop its shadow, and report mbarriers that still expect bytes."""
        shadow = self.shadows.pop(cta.shared, None)
        if shadow is not None:
            for word, cells, first in self.operand_loads.unread(shadow):
                self._unread(cta.shared, scan.access_of(word), cells * self.cell, first * self.cell)
            shadow.give_back()
        for bar in cta.mbarriers.values():
            if bar.tx:
                rest = bar.mismatch().removeprefix("; wrong expect_tx: ")
                self.add("wrong expect_tx", f"{bar} when its CTA ended: {rest}{bar.arrival}", 0)

    def _unread(self, region: MemoryRegion, load: tuple[int, int], size: int, at: int) -> None:
        """Report that wgmma read only a part of what a tensor load brought, as it does with wrong strides."""
        segment = self.segments[load[0]]
        place = self.launches[segment.launch].text(load[1])
        text = (
            f"wgmma reads only a part of the tensor load by {segment.who} at {place}: "
            f"nothing reads {size} bytes, {region.name}, offset {at:#x}{region.part(at)}"
        )
        self.add(LEFTOVER, text, 0)

    def current_line(self) -> int:
        """The PTX line that executes, 0 outside of the program."""
        ins = self.program.current_instruction()
        return 0 if ins is None else ins.line


def _unordered(cells: StrongCells, access: Access) -> Iterator[tuple[bool, int, int, int]]:
    """Strong accesses that are not ordered before a plain or asynchronous one.

    Yields whether the access wrote, its segment, line and cell.
    """
    done = access.known.segments | 1 << access.segment
    for cell in cells.near(access.where):
        history = cells.cells[cell]
        for wrote, bits in ((True, history.writes), (False, history.reads if access.write else 0)):
            missing = bits & ~done
            missing = missing and history.unseen(missing, done)
            if missing:
                p = missing.bit_length() - 1
                yield wrote, p, history.lines[p], cell
