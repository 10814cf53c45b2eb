# SPDX-License-Identifier: Apache-2.0
"""A group of warps of one CTA that run in lockstep, how it diverges and how it reconverges.

Where whole warps branch differently around a wait, the group is split for good. Where lanes differ within a warp, or
the paths hold no wait, one path runs after the other under a mask until they reconverge.
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

SPLIT = -3  # a branch has split the group; its parts go on in its place


class Diverged(Exception):
    """The warps of a group must be split before they go on: `keys` has a value per warp, equal ones stay together."""

    def __init__(self, keys: np.ndarray) -> None:
        super().__init__()
        self.keys = keys


@dataclass
class Reconvergence:
    """Where diverged paths reconverge: the block, the path still to run (None: done), its lanes, all lanes."""

    block: int
    path: int | None
    path_lanes: Any
    lanes: Any


@functools.lru_cache(4096)
def _active_warps(mask: bytes) -> int:
    return int(np.frombuffer(mask, bool).reshape(-1, WARP).any(1).sum())


@functools.lru_cache(4096)
def _halves(predicate: bytes, negate: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """How many lanes take a branch on a predicate, which do, which do not."""
    p = np.frombuffer(predicate, bool)
    taken, other = (~p, p) if negate else (p, ~p)
    return int(np.count_nonzero(taken)), taken, other


class WarpSet:
    """Warps in lockstep: registers, mask, program counter, and asynchronous operations under way."""

    def __init__(self, cta: CTA, warps: list[int]) -> None:
        self.cta, self.warps = cta, warps
        self.device, self.program = cta.device, cta.device.program
        self.lanes = WARP * len(warps)
        self.registers: list[Any] = [None] * len(self.program.slots)
        self.matrices: list[Accumulators | None] = [None] * len(self.program.accumulators)
        self.stack: list[Reconvergence] = []
        self.pc, self.done, self.budget = 0, False, 0
        self.stretch = 0  # blocks run since it last polled or blocked
        # for a deadlock report: the text of what the group waits for, in which block, and whether it polls
        self.waiting: tuple[Callable[[], str], int, bool] | None = None
        # of the meter: the wait counted last, and the instructions executed when the last wgmma was issued
        self.blocked_at: tuple[int, int] | None = None
        self.wgmma_clock: int | None = None
        # phases of a barrier and of the cluster's that it has arrived at and not waited for
        self.bar_ticket: int | None = None
        self.cluster_ticket: int | None = None
        self.bulk, self.copies, self.products = Pending(), Pending(), Pending()
        self.wgmma_issued, self.wgmma_committing = 0, False
        self.warpgroups: list[Warpgroup] | None = None  # that the warps belong to, once asked for
        self.parts: list[WarpSet] = []  # that go on in its place once it was split
        self.counts = [0] * len(self.program.blocks)
        # Block -> how often each warp ran it while some warps were inactive.
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
        """Make `mask` the active lanes (None: all)."""
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
        """The lanes that have not exited: those that run, and those of paths that have not reached the end."""
        live, end = self.mask, self.program.exit
        for point in reversed(self.stack):
            if point.block != end:
                # no lane has exited below here
                live = point.lanes
            elif point.path is not None and point.path != end and live is not None:
                live = live | point.path_lanes
        return live

    # ---- divergence

    def reconverge(self, pc: int) -> int:
        """A path has reached its reconvergence point: run the other one, or go on together from `pc`."""
        top = self.stack[-1]
        if top.path is None:
            self.set_mask(top.lanes)
            self.stack.pop()
            return pc
        following, top.path = top.path, None
        self.set_mask(top.path_lanes)
        return following

    def branch(self, p: Value, negate: bool, target: int, fall: int, meet: int, splits: bool) -> int:
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
            return self._split(taken, target, fall, meet)
        if mask is None:  # masks are distinguished by identity (`races/lanes.py`)
            taken, other = taken.copy(), other.copy()
        else:
            other = mask & ~p
        if fall == meet or target == meet:
            if not (self.stack and self.stack[-1].block == meet and self.stack[-1].path is None):
                self.stack.append(Reconvergence(meet, None, None, mask))
            self.set_mask(taken if fall == meet else other)
            return target if fall == meet else fall
        self.stack.append(Reconvergence(meet, fall, other, mask))
        self.set_mask(taken)
        return target

    def _split(self, taken: npt.NDArray[np.bool_], target: int, fall: int, meet: int) -> int:
        """Split by warps: a group of those that take the branch, of those that do not, and of each mixed warp."""
        t = taken.reshape(-1, WARP)
        live = np.ones_like(t) if self.mask is None else self.mask.reshape(-1, WARP)
        some = np.asarray(t.any(1))
        every, present = np.asarray((t == live).all(1)), np.asarray(live.any(1))
        parts: list[tuple[npt.NDArray[np.bool_], int | None]]
        parts = [(some & every, target), (present & ~some, fall)]
        parts += [(np.arange(len(some)) == w, None) for w in np.flatnonzero(some & ~every)]
        parts = [(which, pc) for which, pc in parts if which.any()]
        parts[0] = (parts[0][0] | ~present, parts[0][1])  # warps that have exited stay with the first part
        if len(parts) == 1 and parts[0][1] is not None:
            return parts[0][1]
        self.parts = []
        for which, pc in parts:
            g = self.take(which)
            lanes = np.repeat(which, WARP)
            g.pc = g.branch(taken[lanes], False, target, fall, meet, False) if pc is None else pc
            self.parts.append(g)
        self.counts[self.pc] += self.active_warps  # the block that ends in this branch has run
        self.device.watch.ran(self, self.pc, self.mask)
        return SPLIT

    def split_by(self, keys: np.ndarray) -> list[WarpSet]:
        """Groups of the warps with equal keys, each to run the current block again."""
        if self.stack:
            raise Fault("warps diverge inside divergent code; run with warps_per_group=1")
        return [self.take(keys == key) for key in dict.fromkeys(keys.tolist())]

    def take(self, which: npt.NDArray[np.bool_]) -> WarpSet:
        """A new group of some of this group's warps, with their registers, at the same block."""
        for work in (*self.products.all(), *self.copies.all()):
            work.finish()  # it may complete at any time; before a split it does
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
        new.bulk, new.copies, new.products = self.bulk.copy(), self.copies.copy(), self.products.copy()
        new.wgmma_issued, new.wgmma_committing = self.wgmma_issued, self.wgmma_committing
        return new

    def wait_for(self, what: Callable[[], str], polls: bool = False) -> None:
        """Remember what the group is blocked on or polls."""
        self.waiting = what, self.pc, polls

    def matrix(self, index: int) -> Accumulators:
        """The matrix of an accumulator list, made on first use."""
        made = self.matrices[index]
        if made is None:
            registers, half = len(self.program.accumulators[index]), self.program.half_lists[index]
            made = self.matrices[index] = Accumulators.empty(len(self.warps), registers, half)
        return made
