# SPDX-License-Identifier: Apache-2.0
"""Groups of warps of a CTA that run in lockstep, their divergence and reconvergence.

If whole warps take different paths and a path contains a wait, the group is split for good. If lanes of a warp
diverge, or no path contains a wait, the paths run one after the other under a mask until they reconverge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.undefined import Undefined
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.accumulators import Accumulators
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.geometry import WARP, lane_facts
from cutegemm.emulator.state.hooks import UNTRACKED
from cutegemm.emulator.state.memory import Fault, MemoryRegion
from cutegemm.emulator.state.pending import Pending, Warpgroup

SPLIT = -3  # a branch has split the group; `successors` continue in its place


class Diverged(Exception):
    """The group must be split before it continues: warps with equal `keys` stay together."""

    def __init__(self, keys: np.ndarray) -> None:
        super().__init__()
        self.keys = keys


@dataclass
class Reconvergence:
    """Where diverged paths reconverge, and which of them has not run."""

    block: int
    path: int | None  # first block of the other path; None once it runs
    path_lanes: Any
    lanes: Any  # of both paths
    alone: bool = False  # whether some lanes have passed an earlier reconvergence point without the others


@functools.lru_cache(4096)
def _active_warps(mask: bytes) -> int:
    return int(np.frombuffer(mask, bool).reshape(-1, WARP).any(1).sum())


@functools.lru_cache(4096)
def _halves(predicate: bytes, negate: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """How many lanes take a branch, which lanes do, which do not."""
    p = np.frombuffer(predicate, bool)
    taken, other = (~p, p) if negate else (p, ~p)
    return int(np.count_nonzero(taken)), taken, other


class WarpSet:
    """Warps that run in lockstep: registers, mask, program counter, pending asynchronous operations."""

    def __init__(self, cta: CTA, warps: list[int]) -> None:
        self.cta, self.warps = cta, warps
        self.device, self.program = cta.device, cta.device.program
        self.lanes = WARP * len(warps)
        self.registers: list[Any] = [None] * len(self.program.slots)
        self.matrices: list[Accumulators | None] = [None] * len(self.program.accumulators)
        self.stack: list[Reconvergence] = []
        self.pc, self.done, self.budget = 0, False, 0
        self.stretch = 0  # blocks run since the group last polled or blocked
        # for a deadlock report: the text of what the group waits for, the block, and whether it polls
        self.waiting: tuple[Callable[[], str], int, bool] | None = None
        # for the meter: the last wait counted, and the instructions executed before the last wgmma
        self.blocked_at: tuple[int, int] | None = None
        self.wgmma_clock: int | None = None
        # phases of a CTA barrier and of the cluster barrier at which the group has arrived but not waited
        self.bar_ticket: int | None = None
        self.cluster_ticket: int | None = None
        self.bulk, self.copies, self.wgmmas = Pending(), Pending(), Pending()
        self.wgmma_issued, self.wgmma_committing = 0, False
        self.warpgroups: list[Warpgroup] | None = None  # of the warps; None until the first use
        self.successors: list[WarpSet] = []  # of a group that was split
        self.counts = [0] * len(self.program.blocks)
        # block -> how often each warp ran it while other warps were inactive
        self.uneven: dict[int, np.ndarray] = {}
        self.tracker: Any = UNTRACKED
        self.lane, self.leaders, exists, special = lane_facts(tuple(warps), self.device.geometry.block)
        self.special = {**cta.special, **special}
        self.set_mask(exists)
        if self.program.local_size:
            self.pitch = -(-self.program.local_size // 16) * 16
            self.local = MemoryRegion(np.full(self.pitch * self.lanes, 0xAB, np.uint8), 0, "local memory")

    def active(self, m: Mask) -> npt.NDArray[np.int64]:
        """The numbers of the active lanes `m`."""
        return np.arange(self.lanes) if m is None else np.flatnonzero(m)

    def local_bases(self, m: Mask) -> npt.NDArray[np.uint64]:
        """Byte offset of each active lane's local memory."""
        bases = np.arange(self.lanes, dtype=np.uint64) * np.uint64(self.pitch)
        return bases if m is None else bases[m]

    def set_mask(self, mask: Mask) -> None:
        """Set the active lanes (None: all)."""
        self.mask = mask
        self.active_warps = len(self.warps) if mask is None else _active_warps(mask.tobytes())

    def whole_warps(self, m: Mask) -> bool:
        """Whether the lanes `m` are all live lanes of each warp that they belong to."""
        if m is None:
            return True
        rows = m.reshape(-1, WARP)
        base = self.live()
        live = np.ones_like(rows) if base is None else base.reshape(-1, WARP)
        return bool((rows == live)[rows.any(1)].all())

    def live(self) -> Mask:
        """The lanes that have not exited: the active ones, and those of paths that have not reached the end."""
        live, end = self.mask, self.program.exit
        for point in reversed(self.stack):
            if point.block != end:
                # no lane of these paths has exited
                live = point.lanes
            elif point.path is not None and point.path != end and live is not None:
                live = live | point.path_lanes
        return live

    # ---- divergence

    def reconverge(self, pc: int) -> int:
        """A path has reached its reconvergence point: returns the start of the other path, or `pc` if both have run."""
        top = self.stack[-1]
        if top.path is None:
            self.set_mask(top.lanes)
            self.stack.pop()
            return pc
        following, top.path = top.path, None
        self.set_mask(top.path_lanes)
        return following

    def switch_paths(self) -> None:
        """Run other lanes of divergent code, since the active ones make no progress.

        The hardware schedules the lanes of a warp independently, so some may spin until others store. Those have not
        run yet, or they wait at the reconvergence point, which they now pass alone: up to an instruction that needs the
        whole warp (`Translation.alone`).
        """
        while len(self.stack) > 1 and self.stack[-1].path is self.stack[-2].path is None:
            if self.stack[-1].block != self.stack[-2].block:
                break
            self.stack.pop()
        active = self.mask
        if not self.stack or active is None:
            return
        top = self.stack[-1]
        following, others = top.path, top.path_lanes
        if following is None:
            every = np.ones(self.lanes, bool) if top.lanes is None else top.lanes
            following, others = top.block, every & ~active
            top.block = self.stack[-2].block if len(self.stack) > 1 else self.program.exit
            if not others.any() or following == top.block:
                top.block = following
                return
            top.alone = True
        top.path, top.path_lanes = self.pc, active
        self.pc = following
        self.set_mask(others)

    def branch(self, p: Value, negate: bool, target: int, fall: int, join: int, splits: bool) -> int:
        """Next block after a conditional branch on predicate `p`."""
        if p.__class__ is not ND:
            return target if bool(p) != negate else fall
        mask = self.mask
        if mask is None:
            count, taken, other = _halves(p.tobytes(), negate)
            total = self.lanes
        else:
            p = ~p if negate else p
            taken, other = p & mask, p
            count, total = int(np.count_nonzero(taken)), int(np.count_nonzero(mask))
        if count == total:
            return target
        if count == 0:
            return fall
        if splits and len(self.warps) > 1 and not self.stack:
            return self._split(taken, target, fall, join)
        if mask is None:  # masks are distinguished by identity (`races/lanes.py`)
            taken, other = taken.copy(), other.copy()
        else:
            other = mask & ~p
        if fall == join or target == join:
            if not (self.stack and self.stack[-1].block == join and self.stack[-1].path is None):
                self.stack.append(Reconvergence(join, None, None, mask))
            self.set_mask(taken if fall == join else other)
            return target if fall == join else fall
        self.stack.append(Reconvergence(join, fall, other, mask))
        self.set_mask(taken)
        return target

    def _split(self, taken: npt.NDArray[np.bool_], target: int, fall: int, join: int) -> int:
        """Split the group: warps that take the branch, warps that do not, and each warp that diverges."""
        t = taken.reshape(-1, WARP)
        live = np.ones_like(t) if self.mask is None else self.mask.reshape(-1, WARP)
        some = np.asarray(t.any(1))
        every, present = np.asarray((t == live).all(1)), np.asarray(live.any(1))
        groups: list[tuple[npt.NDArray[np.bool_], int | None]]
        groups = [(some & every, target), (present & ~some, fall)]
        groups += [(np.arange(len(some)) == w, None) for w in np.flatnonzero(some & ~every)]
        groups = [(which, pc) for which, pc in groups if which.any()]
        first, start = groups[0]
        if len(groups) == 1 and start is not None:
            return start
        groups[0] = first | ~present, start  # warps that have exited stay with the first group
        self.successors = []
        for which, pc in groups:
            g = self.take(which)
            lanes = np.repeat(which, WARP)
            g.pc = g.branch(taken[lanes], False, target, fall, join, False) if pc is None else pc
            self.successors.append(g)
        self.counts[self.pc] += self.active_warps  # count the block that ends in this branch
        self.device.watch.ran(self, self.pc, self.mask)
        return SPLIT

    def split_by(self, keys: np.ndarray) -> list[WarpSet]:
        """Split the group by keys; each new group runs the current block again."""
        if self.stack:
            raise Fault("warps diverge inside divergent code; run with warps_per_group=1")
        return [self.take(keys == key) for key in dict.fromkeys(keys.tolist())]

    def take(self, which: npt.NDArray[np.bool_]) -> WarpSet:
        """A new group with some of the warps and their state, at the same block."""
        for work in (*self.wgmmas.all(), *self.copies.all()):
            work.finish()  # these may complete at any time; complete them before a split
        new = WarpSet(self.cta, [w for w, keep in zip(self.warps, which, strict=True) if keep])
        new.pc = self.pc
        lanes = np.repeat(which, WARP)
        if self.mask is not None:
            new.set_mask(None if self.mask[lanes].all() else self.mask[lanes])
        for i, v in enumerate(self.registers):
            if v.__class__ is ND:
                v = v[lanes]
                raw = v.tobytes()
                v = v[0].item() if raw == raw[: v.itemsize] * len(v) else v
            elif v.__class__ is Undefined:
                v = v.each(lambda x: x[lanes] if x.__class__ is ND else x)
            new.registers[i] = v
        rows = np.repeat(which, 16)
        new.matrices = [None if matrix is None else matrix.take(rows) for matrix in self.matrices]
        if self.program.local_size:
            data = self.local.data.reshape(-1, self.pitch)[lanes].ravel().copy()
            new.local = MemoryRegion(data, 0, "local memory")
        new.bulk, new.copies, new.wgmmas = self.bulk.copy(), self.copies.copy(), self.wgmmas.copy()
        new.wgmma_issued, new.wgmma_committing = self.wgmma_issued, self.wgmma_committing
        return new

    def wait_for(self, what: Callable[[], str], polls: bool = False) -> None:
        """Note what the group waits for or polls."""
        self.waiting = what, self.pc, polls

    def matrix(self, index: int) -> Accumulators:
        """The matrix of an accumulator list."""
        matrix = self.matrices[index]
        if matrix is None:
            registers, half = len(self.program.accumulators[index]), self.program.half_lists[index]
            matrix = self.matrices[index] = Accumulators.empty(len(self.warps), registers, half)
        return matrix
