# SPDX-License-Identifier: Apache-2.0
"""Coverage: the synchronisation that a run exercised, and shapes that would exercise the missing synchronisation.

Some races need a reused pipeline stage, a second tile of a CTA or a wait that blocks, so a run without these does not
find them. Every run with the race detector therefore lists waits that never blocked, mbarriers that completed at most
one phase, CTAs that ran their outer loop once, and synchronisation that never ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.flow import Block
from cutegemm.emulator.state.clusters import Cluster, MBarrier
from cutegemm.emulator.state.geometry import BlockCounts, Triple
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer
from cutegemm.emulator.state.tensors import Tensor, TensorMap
from cutegemm.emulator.watch.warp_roles import ISSUE, wait_kind

SYNCHRONISATION = (
    "fence", "mbarrier", "bar.", "barrier", "wgmma.fence", "wgmma.commit", "wgmma.wait", "cp.async.bulk",
    "cp.async.wait", "cp.async.commit", "griddepcontrol", "setmaxnreg", "st.async", "red.async",
)  # fmt: skip
MOST_SHOWN = 8  # PTX lines or offsets that a gap lists


@dataclass(frozen=True)
class Wait:
    """A wait: its PTX line and opcode, how often a warp reached it, and how often it had to wait."""

    line: int
    op: str
    reached: int
    waited: int


@dataclass(frozen=True)
class Slot:
    """An mbarrier at an offset in shared memory, and the most phases that it completed in a CTA."""

    offset: int
    phases: int


@dataclass
class Coverage:
    """What a run exercised; `gaps` lists what it did not exercise, `hints` shapes that would."""

    waits: list[Wait] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    tiles: dict[tuple[int, ...], int] = field(default_factory=dict)  # CTA -> iterations of its outer loop
    never: list[tuple[int, str]] = field(default_factory=list)  # (PTX line, opcode) that never ran
    hints: list[str] = field(default_factory=list)

    @property
    def idle_waits(self) -> list[Wait]:
        """Waits that warps reached but never had to wait at."""
        return [w for w in self.waits if w.reached and not w.waited]

    @property
    def single_slots(self) -> list[Slot]:
        """Mbarriers that were never used twice."""
        return [s for s in self.slots if s.phases < 2]

    @property
    def single_tiles(self) -> list[tuple[int, ...]]:
        """CTAs that had at most one tile."""
        return [cta for cta, iterations in self.tiles.items() if iterations < 2]

    @property
    def gaps(self) -> list[str]:
        """What the run did not exercise, one line for each kind."""
        single = f"{len(self.single_tiles)} of {len(self.tiles)} CTAs had one tile"
        lists: dict[str, Sequence[object]] = {
            "waits that never had to wait": [f"{w.op} at PTX line {w.line}" for w in self.idle_waits],
            "mbarriers never used twice, by offset (phases completed)": [
                f"{s.offset:#x} ({s.phases})" for s in self.single_slots
            ],
            single: self.single_tiles,
            "synchronisation that never ran": [f"{op} at PTX line {line}" for line, op in self.never],
        }
        return [what if what is single else f"{what}: {_some(x)}" for what, x in lists.items() if x]

    def __str__(self) -> str:
        lines = [*self.gaps, *(f"  {hint}" for hint in self.hints)]
        return "\n".join(lines) or "all synchronisation was exercised"


def _some(texts: Iterable[object]) -> str:
    shown = list(map(str, texts))
    more = f" and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    return ", ".join(shown[:MOST_SHOWN]) + more


def joined(launches: list[Coverage]) -> Coverage:
    """The coverage of consecutive launches."""
    if len(launches) == 1:
        return launches[0]
    out = Coverage()
    for i, one in enumerate(launches):
        out.waits += one.waits
        out.slots += one.slots
        out.tiles |= {(i, *cta): iterations for cta, iterations in one.tiles.items()}
        out.never += one.never
        out.hints += [f"launch {i}: {hint}" for hint in one.hints]
    return out


class Watcher(Observer):
    """Collects coverage during a launch."""

    def __init__(self, program: Translation) -> None:
        self.program = program
        self.waited: Counter[int] = Counter()  # id of a wait -> how often it had to wait
        self.phases: dict[int, int] = {}  # offset of an mbarrier -> most phases it completed
        self.counts: dict[int, int] = {}  # offset of an mbarrier -> arrivals it was initialised for
        self.fulls: set[int] = set()  # offsets of mbarriers that copies complete on
        self.tiles: dict[tuple[int, ...], int] = {}
        self.loads: dict[int, TensorLoads] = {}  # id of a tensor -> its loads
        self.latches = tile_loops(program.blocks)

    def blocked(self, group: WarpSet, block: int) -> None:
        self.polled(block)

    def polled(self, block: int) -> None:
        self.waited[id(self.program.blocks[block].code[0])] += 1

    def waited_for(self, groups: Sequence[object]) -> None:
        if any(groups):
            self.waited[id(self.program.current_instruction())] += 1

    def tensor_load(
        self, group: WarpSet, tensor: Tensor, at: tuple[int, ...], bars: Sequence[MBarrier]
    ) -> None:
        self.fulls |= {bar.offset for bar in bars}
        self.loads.setdefault(id(tensor), TensorLoads(tensor.map)).add(group.cta.index, at)

    def warp_ended(self, group: WarpSet) -> None:
        if self.latches:
            iterations = max(group.counts[n] for n in self.latches)
            cta = group.cta.index
            self.tiles[cta] = max(self.tiles.get(cta, 0), iterations)

    def cluster_ended(self, cluster: Cluster) -> None:
        for cta in cluster.ctas:
            for offset, bar in cta.mbarriers.items():
                self.phases[offset] = max(self.phases.get(offset, 0), bar.phase)
                self.counts[offset] = bar.count

    def coverage(self, counts: BlockCounts) -> Coverage:
        """The coverage of the launch."""
        blocks = self.program.blocks
        out = Coverage(tiles={cta: iterations for cta, iterations in self.tiles.items() if iterations})
        for block, executed in zip(blocks, counts.per_block(len(blocks)), strict=True):
            for ins in block.code:
                if wait_kind(ins.op) not in (None, ISSUE):
                    out.waits.append(Wait(ins.line, ins.op, executed, self.waited[id(ins)]))
                if not executed and ins.op.startswith(SYNCHRONISATION):
                    out.never.append((ins.line, ins.op))
        out.slots = [Slot(offset, phases) for offset, phases in sorted(self.phases.items())]
        out.hints = self._hints(out)
        return out

    def _hints(self, out: Coverage) -> list[str]:
        """The smallest shapes that would close the gaps, as extents of the loaded tensors."""
        hints = []
        fulls = [s for s in out.slots if s.offset in self._stages()]
        need, tiles = 2 * len(fulls), max(out.tiles.values(), default=1)
        for loads in self.loads.values() if any(s.phases < 2 for s in fulls) else ():
            if loads.most < need:
                dim, extents, box = loads.inner_dimension, loads.map.dims, loads.map.box
                step = max(16 // loads.map.item, 1)  # elements; strides are multiples of 16 bytes
                least = -(-((-(-need // tiles) - 1) * box[dim] + 1) // step) * step
                hints.append(
                    f"each of {len(fulls)} slots twice: extent {dim} (innermost 0) of the tensor {extents} with boxes "
                    f"{box}, now {extents[dim]}, at least {least}"
                )
        if out.single_tiles:
            total, ctas = sum(out.tiles.values()), len(out.tiles)
            fewer = f", or at most {total // 2} CTAs" if total > 1 else ""
            hints.append(
                f"two tiles for each CTA: at least {2 * ctas} tiles for {ctas} CTAs (now {total}){fewer}"
            )
        return list(dict.fromkeys(hints))

    def _stages(self) -> set[int]:
        """Mbarriers that copies complete on, and the unused ones with the same count right after them."""
        stages = set(self.fulls)
        for offset in sorted(self.counts):
            unused = not self.phases.get(offset)
            if unused and offset - 8 in stages and self.counts[offset] == self.counts.get(offset - 8):
                stages.add(offset)
        return stages


class TensorLoads:
    """Boxes loaded through one tensor map."""

    def __init__(self, tensor_map: TensorMap) -> None:
        self.map = tensor_map
        self.per_cta: Counter[Triple] = Counter()
        self.last: dict[Triple, tuple[int, ...]] = {}
        self.changes: Counter[int] = Counter()  # dimension -> how often it changed between loads of a CTA

    def add(self, cta: Triple, at: tuple[int, ...]) -> None:
        """Count a load of a CTA."""
        self.per_cta[cta] += 1
        before = self.last.get(cta, at)
        self.changes.update(i for i, (a, b) in enumerate(zip(before, at, strict=True)) if a != b)
        self.last[cta] = at

    @property
    def most(self) -> int:
        """The most boxes that a CTA loaded."""
        return max(self.per_cta.values(), default=0)

    @property
    def inner_dimension(self) -> int:
        """The dimension that changes most often: K, for the operands of a GEMM."""
        return self.changes.most_common(1)[0][0] if self.changes else 0


def tile_loops(blocks: list[Block]) -> list[int]:
    """Last blocks of the loops over tiles: outermost loops that contain another loop and synchronisation.

    Each backward branch in the text counts as a loop from its target to itself.
    """
    synchronises = [any(i.op.startswith(SYNCHRONISATION) for i in block.code) for block in blocks]
    edges = [(s, n) for n, block in enumerate(blocks) for s in block.successors if s < n]
    loops = [(a, b) for a, b in edges if any(synchronises[a : b + 1])]

    def around(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
        return outer != inner and outer[0] <= inner[0] and inner[1] <= outer[1]

    nests = [loop for loop in loops if any(around(loop, other) for other in loops)]
    return [last for first, last in nests if not any(around(other, (first, last)) for other in nests)]
