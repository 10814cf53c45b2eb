# SPDX-License-Identifier: Apache-2.0
"""A group of warps of one CTA that run in lockstep, how it diverges and how it reconverges.

Where whole warps branch differently around a wait, the group is split for good; lanes that differ within a warp
(or whose paths hold no wait) run one path after the other under a mask until the paths reconverge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.numbers.undefined import Undefined
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.accumulators import Accumulators
from cutegemm.emulator.state.clusters import CTA, WARP, LaneFacts
from cutegemm.emulator.state.hooks import UNTRACKED, Tracker
from cutegemm.emulator.state.memo import remember
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
    path_lanes: np.ndarray | None
    lanes: np.ndarray | None


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
        self.waiting: tuple[Any, ...] | None = None  # what a blocked group waits for, for the deadlock report
        self.waiting_at = 0  # and the block where it does
        self.blocked_at: tuple[int, int] | None = None  # of the meter: the wait counted last
        self.wgmma_clock: int | None = (
            None  # of the meter: instructions executed when the last wgmma was issued
        )
        self.bar_ticket: int | None = None
        self.cluster_ticket: int | None = None
        self.bulk, self.copies, self.products = Pending(), Pending(), Pending()
        self.wgmma_issued, self.wgmma_committing = 0, False
        self.warpgroups: list[Warpgroup] | None = None  # that the warps belong to, once asked for
        self.parts: list[WarpSet] = []  # that go on in its place once it was split
        self.counts = [0] * len(self.program.blocks)
        # Block -> how often each warp ran it while some warps were inactive.
        self.uneven: dict[int, np.ndarray] = {}
        self.active_warps = len(warps)
        self.tracker: Tracker = UNTRACKED
        self.mask: np.ndarray | None = None
        self._set_lanes()

    def _set_lanes(self) -> None:
        """Lane numbers and special registers; those that do not depend on the CTA are made once per launch."""
        key = tuple(self.warps)
        made = self.device.lane_cache.get(key)
        if made is None:
            made = self.device.lane_cache[key] = self._make_lanes()
        self.lane, self.leaders, exists, special = made
        if exists is not None:
            self.set_mask(exists)
        self.special = {**self.cta.special, **special}
        if self.program.local_size:
            self.pitch = -(-self.program.local_size // 16) * 16
            self.local = MemoryRegion(np.full(self.pitch * self.lanes, 0xAB, np.uint8), 0, "local memory")

    def _make_lanes(self) -> LaneFacts:
        device = self.device
        linear = np.concatenate([np.arange(WARP, dtype=np.uint32) + np.uint32(WARP * w) for w in self.warps])
        bx, by, bz = device.geometry.block
        exists = linear < device.geometry.threads if int(linear[-1]) >= device.geometry.threads else None
        one = len(self.warps) == 1
        lane = np.arange(self.lanes, dtype=np.uint32) % np.uint32(WARP)
        special: dict[str, Value] = {"laneid": lane}
        special["warpid"] = self.warps[0] if one else linear // np.uint32(WARP)
        special["tid.x"] = linear % np.uint32(bx) if by * bz > 1 else linear
        special["tid.y"] = linear // np.uint32(bx) % np.uint32(by) if by > 1 else 0
        special["tid.z"] = linear // np.uint32(bx * by) if bz > 1 else 0
        one_hot = np.uint32(1) << lane
        special["lanemask_eq"] = one_hot
        special["lanemask_lt"] = one_hot - np.uint32(1)
        special["lanemask_le"] = one_hot | (one_hot - np.uint32(1))
        special["lanemask_gt"] = ~special["lanemask_le"]
        special["lanemask_ge"] = ~special["lanemask_lt"]
        return lane, lane == 0, exists, special

    def local_bases(self, m: Mask) -> npt.NDArray[np.uint64]:
        """Byte offset of each active lane's local memory."""
        bases = np.arange(self.lanes, dtype=np.uint64) * np.uint64(self.pitch)
        return bases if m is None else bases[m]

    def set_mask(self, mask: Mask) -> None:
        """Make `mask` the active lanes (None: all)."""
        self.mask = mask
        if mask is None:
            self.active_warps = len(self.warps)
            return
        key = mask.tobytes()
        counts = self.device.mask_cache
        if key not in counts:
            remember(counts, key, int(mask.reshape(-1, WARP).any(1).sum()))
        self.active_warps = counts[key]

    def whole_warps(self, m: Mask) -> bool:
        """Whether the lanes `m` are, of every warp they belong to, all that have not exited."""
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

    def branch(
        self, p: Value, negate: bool, target: int, fall: int, meet: int, splits: bool, mask: Mask
    ) -> int:
        """Next block after a conditional branch on predicate `p`."""
        if p.__class__ is not ND:
            return target if bool(p) != negate else fall
        if mask is None:
            count, taken, other = self._halves(p, negate)
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
            return self._split(taken, mask, target, fall, meet)
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

    def _halves(self, p: np.ndarray, negate: bool) -> tuple[int, np.ndarray, np.ndarray]:
        """How many lanes take a branch on `p`, which do, which do not; cached."""
        key = (p.tobytes(), negate)
        made = self.device.branch_cache.get(key)
        if made is None:
            taken, other = (~p, p.copy()) if negate else (p.copy(), ~p)
            made = remember(self.device.branch_cache, key, (int(np.count_nonzero(taken)), taken, other))
        return made

    def _split(self, taken: npt.NDArray[np.bool_], mask: Mask, target: int, fall: int, meet: int) -> int:
        """Split by warps: all lanes take the branch, none do, some do; a new group for each."""
        t = taken.reshape(-1, WARP)
        live = np.ones_like(t) if mask is None else mask.reshape(-1, WARP)
        some = np.asarray(t.any(1))
        every, present = np.asarray((t == live).all(1)), np.asarray(live.any(1))
        parts: list[tuple[npt.NDArray[np.bool_], int | None]]
        parts = [(some & every, target), (present & ~some, fall)]
        parts += [(np.arange(len(some)) == w, None) for w in np.flatnonzero(some & ~every)]
        parts = [(which, pc) for which, pc in parts if which.any()]
        parts[0] = (parts[0][0] | ~present, parts[0][1])  # warps that have exited stay with the first part
        if len(parts) == 1 and parts[0][1] is not None:
            return parts[0][1]
        made = []
        for which, pc in parts:
            g = self.take(which)
            lanes = np.repeat(which, WARP)
            if mask is not None and not mask[lanes].all():
                g.set_mask(mask[lanes])
            g.pc = g.branch(taken[lanes], False, target, fall, meet, False, g.mask) if pc is None else pc
            made.append(g)
        self.counts[self.pc] += self.active_warps  # the block that ends in this branch has run
        self.device.watch.ran(self, self.pc, mask)
        self.parts = made
        return SPLIT

    def wait_for(self, *what: Any) -> None:
        """Remember what the group is blocked on, for a deadlock report."""
        self.waiting, self.waiting_at = what, self.pc

    def matrix(self, index: int) -> Accumulators:
        """The matrix of an accumulator list, made on first use."""
        made = self.matrices[index]
        if made is None:
            half = self.program.half_lists[index]
            made = Accumulators(len(self.warps), len(self.program.accumulators[index]), half)
            self.matrices[index] = made
        return made

    def split_by(self, keys: np.ndarray) -> list[WarpSet]:
        """Groups of the warps with equal keys, each to run the current block again."""
        if self.stack:
            raise Fault("warps diverge inside divergent code; run with warps_per_group=1")
        made = []
        for key in dict.fromkeys(keys.tolist()):
            which = keys == key
            g = self.take(which)
            if self.mask is not None:
                lanes = np.repeat(which, WARP)
                g.set_mask(None if self.mask[lanes].all() else self.mask[lanes])
            g.pc = self.pc
            made.append(g)
        return made

    def take(self, which: npt.NDArray[np.bool_]) -> WarpSet:
        """A new group of some of this group's warps, with their registers."""
        for work in (*self.products.all(), *self.copies.all()):
            work.finish()  # it may complete at any time; before a split it does
        new = WarpSet(self.cta, [w for w, keep in zip(self.warps, which, strict=True) if keep])
        lanes = np.repeat(which, WARP)
        for i, v in enumerate(self.registers):
            if v.__class__ is ND:
                v = v[lanes]
                raw = v.tobytes()
                v = v[0].item() if raw == raw[: v.itemsize] * len(v) else v
            elif v.__class__ is Undefined:
                v = v.each(lambda x: x[lanes] if x.__class__ is ND else x)
            new.registers[i] = v
        rows = np.repeat(which, 16)
        for i, matrix in enumerate(self.matrices):
            if matrix is not None:
                new.matrices[i] = matrix.take(rows, int(which.sum()))
        if self.program.local_size:
            new.local = MemoryRegion(
                self.local.data.reshape(-1, self.pitch)[lanes].ravel().copy(), 0, "local memory"
            )
        new.bulk, new.copies, new.products = self.bulk.copy(), self.copies.copy(), self.products.copy()
        new.wgmma_issued, new.wgmma_committing = self.wgmma_issued, self.wgmma_committing
        return new
