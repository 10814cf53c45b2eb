# SPDX-License-Identifier: Apache-2.0
"""Which parts of a kernel's synchronisation a run exercised, and what would exercise the rest.

A race that needs a pipeline stage to be reused, a second tile of a CTA or a wait that blocks is not found by a run
without them. Every run with the race detector says so: waits that never blocked, mbarriers that completed one phase
at most, CTAs that ran their outer loop once, synchronisation that never ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.flow import Block
from cutegemm.emulator.state.clusters import Cluster, MBarrier
from cutegemm.emulator.state.geometry import BlockCounts
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer
from cutegemm.emulator.state.tensors import Tensor, TensorMap

SYNCHRONISATION = (
    "fence", "mbarrier", "bar.", "barrier", "wgmma.fence", "wgmma.commit", "wgmma.wait", "cp.async.bulk",
    "cp.async.wait", "cp.async.commit", "griddepcontrol", "setmaxnreg", "st.async", "red.async",
)  # fmt: skip
WAITS = (
    "mbarrier.try_wait", "mbarrier.test_wait", "bar.sync", "bar.red", "barrier.sync", "barrier.cta.sync",
    "barrier.cluster.wait", "wgmma.wait_group", "cp.async.bulk.wait_group", "cp.async.wait",
)  # fmt: skip
MOST_SHOWN = 8  # lines or offsets a gap names


@dataclass(frozen=True)
class Wait:
    """A wait: its PTX line and opcode, how often a warp came to it, and how often there was something to wait for."""

    line: int
    op: str
    reached: int
    waited: int


@dataclass(frozen=True)
class Slot:
    """An mbarrier, by its offset in shared memory: the most phases it completed in a CTA."""

    offset: int
    phases: int


@dataclass
class Coverage:
    """What a run exercised. `gaps` describes what it did not; `hints` are shapes that would."""

    waits: list[Wait] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    tiles: dict[tuple[int, int, int], int] = field(
        default_factory=dict
    )  # CTA -> iterations of its outer loop
    # (PTX line, opcode) of synchronisation that never ran.
    never: list[tuple[int, str]] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    @property
    def idle_waits(self) -> list[Wait]:
        """Waits that were reached and never had anything to wait for."""
        return [w for w in self.waits if w.reached and not w.waited]

    @property
    def single_slots(self) -> list[Slot]:
        """Mbarriers that were never used twice."""
        return [s for s in self.slots if s.phases < 2]

    @property
    def single_tiles(self) -> list[tuple[int, int, int]]:
        """CTAs that had one tile at most."""
        return [cta for cta, turns in self.tiles.items() if turns < 2]

    @property
    def gaps(self) -> list[str]:
        """What was not exercised, a sentence each."""
        out = []
        if self.idle_waits:
            out.append(
                "waits that never had to wait: "
                + _some(f"{w.op} at PTX line {w.line}" for w in self.idle_waits)
            )
        if self.single_slots:
            slots = _some(f"{s.offset:#x} ({s.phases})" for s in self.single_slots)
            out.append(f"mbarriers never used twice, by offset (phases completed): {slots}")
        if self.single_tiles:
            out.append(f"{len(self.single_tiles)} of {len(self.tiles)} CTAs had one tile")
        if self.never:
            out.append(
                "synchronisation that never ran: "
                + _some(f"{op} at PTX line {line}" for line, op in self.never)
            )
        return out

    def __str__(self) -> str:
        return (
            "\n".join([*self.gaps, *(f"  {hint}" for hint in self.hints)])
            or "all synchronisation was exercised"
        )


def _some(items: Iterable[str]) -> str:
    shown = list(items)
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more


def joined(parts: list[Coverage]) -> Coverage:
    """What consecutive launches exercised, launch by launch."""
    if len(parts) == 1:
        return parts[0]
    out = Coverage()
    for i, part in enumerate(parts):
        out.waits += part.waits
        out.slots += part.slots
        out.tiles |= {(i, *cta): turns for cta, turns in part.tiles.items()}  # type: ignore[misc]
        out.never += part.never
        out.hints += [f"launch {i}: {hint}" for hint in part.hints]
    return out


class Watcher(Observer):
    """Collects coverage during a launch."""

    def __init__(self, program: Translation) -> None:
        self.program = program
        self.waited: Counter[int] = Counter()  # block -> waits that had something to wait for
        self.noted: Counter[int] = Counter()  # PTX line of a wait within a block -> the same
        self.phases: dict[int, int] = {}
        self.fulls: set[int] = set()  # offsets of mbarriers that copies complete on
        self.counts: dict[int, int] = {}  # offset of an mbarrier -> arrivals it was initialised for
        self.tiles: dict[tuple[int, int, int], int] = {}
        self.loads: dict[int, TensorLoads] = {}  # tensor map -> boxes loaded
        self.latches = tile_loops(program.blocks)

    def blocked(self, group: WarpSet, block: int) -> None:
        self.waited[block] += 1

    def polled(self, block: int) -> None:
        self.waited[block] += 1

    def waited_for(self, groups: Sequence[object], program: Translation) -> None:
        if any(groups) and (ins := program.current_instruction()) is not None:
            self.noted[ins.line] += 1

    def tensor_load(
        self, group: WarpSet, tensor: Tensor, at: tuple[int, ...], bars: Sequence[MBarrier]
    ) -> None:
        self.fulls |= {bar.offset for bar in bars}
        self.loads.setdefault(id(tensor), TensorLoads(tensor.map)).add(group.cta.index, at)

    def warp_ended(self, group: WarpSet) -> None:
        if self.latches:
            turns = max(group.counts[n] for n in self.latches)
            cta = group.cta.index
            self.tiles[cta] = max(self.tiles.get(cta, 0), turns)

    def cluster_ended(self, cluster: Cluster) -> None:
        for cta in cluster.ctas:
            for offset, bar in cta.mbarriers.items():
                self.phases[offset] = max(self.phases.get(offset, 0), bar.phase)
                self.counts[offset] = bar.count

    def coverage(self, counts: BlockCounts) -> Coverage:
        """What the launch exercised."""
        blocks = self.program.blocks
        executed = counts.per_block(len(blocks))
        out = Coverage(tiles={cta: turns for cta, turns in self.tiles.items() if turns})
        for n, block in enumerate(blocks):
            for ins in block.code:
                if ins.op.startswith(WAITS):
                    waited = self.noted[ins.line] or (self.waited[n] if block.code[0] is ins else 0)
                    out.waits.append(Wait(ins.line, ins.op, executed[n], waited))
                if not executed[n] and ins.op.startswith(SYNCHRONISATION):
                    out.never.append((ins.line, ins.op))
        out.slots = [Slot(offset, phases) for offset, phases in sorted(self.phases.items())]
        out.hints = self._hints(out)
        return out

    def _hints(self, out: Coverage) -> list[str]:
        """The nearest shapes that would close the gaps, in extents of the tensor maps that were loaded."""
        hints = []
        fulls = [s for s in out.slots if s.offset in self._ring()]
        need, turns = 2 * len(fulls), max(out.tiles.values(), default=1)
        for loads in self.loads.values() if any(s.phases < 2 for s in fulls) else ():
            if loads.most < need:
                dim, extents, box = loads.inner_dimension, loads.map.dims, loads.map.box
                step = max(16 // loads.map.item, 1)  # elements of the 16 bytes that strides are multiples of
                least = -(-((-(-need // turns) - 1) * box[dim] + 1) // step) * step
                hints.append(
                    f"each of {len(fulls)} slots twice: extent {dim} (innermost 0) of the tensor {extents} with boxes "
                    f"{box}, now {extents[dim]}, at least {least}"
                )
        if out.single_tiles:
            tiles = sum(out.tiles.values())
            fewer = f", or at most {tiles // 2} CTAs" if tiles > 1 else ""
            hints.append(
                f"two tiles for each CTA: at least {2 * len(out.tiles)} tiles for {len(out.tiles)} CTAs (now {tiles})"
                f"{fewer}"
            )
        return list(dict.fromkeys(hints))

    def _ring(self) -> set[int]:
        """Mbarriers that copies complete on, and their untouched neighbours with the same count."""
        ring = set(self.fulls)
        grown = True
        while grown:
            grown = False
            for offset in list(ring):
                near = offset + 8
                if near in self.counts and near not in ring and not self.phases.get(near):
                    if self.counts[near] == self.counts.get(offset):
                        ring.add(near)
                        grown = True
        return ring


class TensorLoads:
    """Boxes loaded through one tensor map."""

    def __init__(self, tensor_map: TensorMap) -> None:
        self.map = tensor_map
        self.per_cta: Counter[tuple[int, int, int]] = Counter()
        self.last: dict[tuple[int, int, int], tuple[int, ...]] = {}
        # Dimension -> how often it changed from one load of a CTA to the next.
        self.changes: Counter[int] = Counter()

    def add(self, cta: tuple[int, int, int], at: tuple[int, ...]) -> None:
        """A box at some coordinates was loaded for a CTA."""
        self.per_cta[cta] += 1
        before = self.last.get(cta)
        if before is not None:
            self.changes.update(i for i, (a, b) in enumerate(zip(before, at, strict=True)) if a != b)
        self.last[cta] = at

    @property
    def most(self) -> int:
        """Boxes of the CTA that loaded most."""
        return max(self.per_cta.values(), default=0)

    @property
    def inner_dimension(self) -> int:
        """The dimension that changes most often: K, for the operands of a GEMM."""
        return self.changes.most_common(1)[0][0] if self.changes else 0


def tile_loops(blocks: list[Block]) -> list[int]:
    """Last blocks of the loops that contain another loop and synchronisation: those over tiles.

    A backward edge of the text is taken as a loop from its target to its source.
    """
    edges = [(s, n) for n, block in enumerate(blocks) for s in block.successors if s <= n]
    work = [any(i.op.startswith(SYNCHRONISATION) for i in block.code) for block in blocks]
    spans = [(a, b) for a, b in edges if b > a and any(work[a : b + 1])]
    holding = [
        (a, b) for a, b in spans if any(a <= c and d <= b and (c, d) != (a, b) and d > c for c, d in spans)
    ]
    outer = [
        (a, b) for a, b in holding if not any(c <= a and b <= d and (c, d) != (a, b) for c, d in holding)
    ]
    return [b for _, b in outer]
