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

import numpy as np

from cutegemm.emulator.memory import Region
from cutegemm.emulator.shadow import NOTHING, Finding, Known, Segment, Shadow, Where, cell_bytes
from cutegemm.emulator.tracker import WarpTracker
from cutegemm.emulator.values import ND
from cutegemm.emulator.wgmma import operand_chunks


class Detector:
    """The detector of one launch."""

    def __init__(self, device):
        self.device = device
        self.segments: list[Segment] = []
        self.findings: dict[tuple, Finding] = {}
        self.sync: dict[
            tuple, Known
        ] = {}  # place of a strong access, and CTA or None -> knowledge passed through it
        self.cell = cell_bytes(device.program)
        self.sources = {ins.line: ins.source for block in device.program.blocks for ins in block.code}
        self.operands: dict[tuple, Where] = {}  # of wgmma, which reads the same stages over and over

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

    def operand(
        self, descriptor: int, extent: int, k: int, mn_major: bool, item: int, rows: int | None
    ) -> Where:
        """Cells of an operand of wgmma, or of the 16 rows of it that warp `rows` of its warpgroup reads."""
        key = (descriptor, extent, k, mn_major, item, rows)
        made = self.operands.get(key)
        if made is None:
            chunks = operand_chunks(descriptor, extent, k * item, mn_major, item)
            made = self.chunks(chunks if rows is None else chunks[16 * rows : 16 * rows + 16])
            self.operands[key] = made
        return made

    def box(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Where:
        """Cells of rows of bytes from `offset` on: `shape` ends with a row's bytes, `strides` are of the others."""
        cell = self.cell
        row = -(-(offset % cell + shape[-1]) // cell)
        first = offset // cell
        steps = tuple(s // cell for s in strides)
        last = first + row + sum((n - 1) * s for n, s in zip(shape, steps))
        if len(shape) == 1:
            return Where(slice(first, last), first, last)
        return Where(None, first, last, ((*shape[:-1], row), (*steps, 1)))

    # ---- accesses

    def access(self, group, m, region, offset, size, write, space, strong) -> None:
        """An access by a warp (called by the device for its observers)."""
        if space in ("param", "local"):
            return
        if strong:
            for o in {int(o) for o in np.atleast_1d(offset)}:
                self.strong(group, region, o, strong, not write, write)
            return
        t = group.tracker
        self.check(region, self.where(offset, size), write, t.current, t.known, None)

    def atomic(self, group, lane, region, offset, size, order) -> None:
        """An atomic operation by one lane."""
        self.strong(group, region, int(offset), order, True, True)

    def strong(self, group, region, offset: int, order: str, reads: bool, writes: bool) -> None:
        """An atomic, volatile, relaxed, acquire or release access: it does not race, and orders as PTX ISA 8.8 says.

        A release passes on all its warp knows, a relaxed write what a fence before it has released; an acquire
        learns what was passed, a relaxed read once a fence follows it. What is done in the scope of the CTA
        reaches that CTA alone.
        """
        t, (order, _, scope) = group.tracker, order.partition(".")
        everywhere, here = (id(region), offset, None), (id(region), offset, group.cta.index)
        if reads:
            near = self.sync.get(here, NOTHING)
            passed = near if scope else near | self.sync.get(everywhere, NOTHING)
            if order in ("acquire", "acq_rel"):
                t.known |= passed
            else:
                t.seen |= passed
                t.seen_near |= near
        if writes:
            releases = order in ("release", "acq_rel")
            self._pass(here, t.everything() if releases else t.released_near)
            if not scope:
                self._pass(everywhere, t.everything() if releases else t.released)
            t.renew()

    def _pass(self, place: tuple, known: Known) -> None:
        self.sync[place] = self.sync.get(place, NOTHING) | known

    def check(self, region, where: Where, write: bool, segment: int, known: Known, reader) -> None:
        """Record an access and report those it races with.

        `reader` names an asynchronous reader's row. Of asynchronous reads of global memory, which are wide and
        seldom written over, and of reductions, which do not race with each other, only lists are kept.
        """
        shadow = self.shadow(region)
        now = self.segments[segment]
        now.line = self._line()
        shared = region.name.startswith("shared")
        fenced = known.shared if shared else known.world
        before = where.take(shadow.writer) if shadow.written else None
        if before is not None:
            self._compare(before, region, where, write, True, segment, known.segments, fenced)
        if shadow.reductions and not now.atomic:
            for old in shadow.meeting(shadow.reductions, where):
                self._compare(old, region, where, write, True, segment, known.segments, fenced)
        if not write:
            if shared and (before is None or (before.size and int(before.min()) < 0)):
                self._uninitialised(region, segment, before, where)
            if not shared and not now.generic:
                shadow.wide_reads.append((where, segment))
                return
            row = shadow.reader(reader if reader is not None else now.who)
            where.put(row[0], segment)
            row[1], row[2] = min(row[1], where.first), max(row[2], where.last)
            return
        for row in shadow.readers.values():
            if row[1] < where.last and where.first < row[2]:
                old = where.take(row[0])
                self._compare(old, region, where, write, False, segment, known.segments, fenced)
                where.put(row[0], -1)
        for old in shadow.meeting(shadow.wide_reads, where):
            self._compare(old, region, where, write, False, segment, known.segments, fenced)
        if now.atomic:
            shadow.reductions.append((where, segment))
            return
        shadow.written = True
        where.put(shadow.writer, segment)

    def _compare(self, before, region, where, write, was_write, segment, known: int, fenced: int) -> None:
        if not before.size:
            return
        now = self.segments[segment]
        first = int(before.flat[0])
        previous = [first] if (before == first).all() else np.unique(before).tolist()
        for p in previous:
            if p < 0 or p == segment:
                continue
            if not known >> p & 1:
                kind = ("write" if was_write else "read") + "-" + ("write" if write else "read") + " race"
            elif was_write and not now.generic and self.segments[p].generic and not fenced >> p & 1:
                kind = "missing proxy fence"
            else:
                continue
            self._report(kind, p, segment, region, where, before)

    def _report(self, kind: str, previous: int, segment: int, region, where: Where, before) -> None:
        old, new = self.segments[previous], self.segments[segment]
        key = (kind, old.line, new.line, old.what, new.what)
        if key in self.findings:
            return
        cell = where.cell(int(np.flatnonzero(before == previous)[0]))
        text = (f"{new.what} by {new.who} at {self.line_text(new.line)} "
                f"and earlier {old.what} by {old.who} at {self.line_text(old.line)}, "
                f"{region.name}, offset {cell * self.cell:#x}")  # fmt: skip
        self.findings[key] = Finding(kind, text, (old.line, new.line))

    def _uninitialised(self, region, segment: int, before, where: Where) -> None:
        new = self.segments[segment]
        key = ("uninitialised read", new.line)
        if key not in self.findings:
            cell = where.cell(0 if before is None else int(np.flatnonzero(before < 0)[0]))
            text = (
                f"{new.what} by {new.who} at {self.line_text(new.line)} of {region.name}, "
                f"offset {cell * self.cell:#x}, which nothing wrote"
            )
            self.findings[key] = Finding("uninitialised read", text, (0, new.line))

    def add(self, kind: str, text: str, line: int | None = None) -> None:
        """Report a defect that is not a pair of accesses."""
        line = self._line() if line is None else line
        self.findings.setdefault(
            (kind, line, text), Finding(kind, f"{text}, {self.line_text(line)}", (0, line))
        )

    def cluster_ended(self, cluster) -> None:
        """Every warp of a cluster has ended: its mbarriers may not still expect bytes."""
        for cta in cluster.ctas:
            for bar in cta.mbarriers.values():
                if bar.tx:
                    self.add("leftover", f"{bar} when its CTA ended", 0)

    def line_text(self, line: int) -> str:
        """A PTX line, with the source line it comes from where debug information says so."""
        source = self.sources.get(line)
        return f"PTX line {line}" + (f" ({source[0].rsplit('/', 1)[-1]}:{source[1]})" if source else "")

    def _line(self) -> int:
        ins = self.device.current_instruction()
        return 0 if ins is None else ins.line
