# SPDX-License-Identifier: Apache-2.0
"""Operations across the lanes of a warp: shuffle, vote, reduction, election, and special registers.

Source: PTX ISA 9.0, 9.7.9.6 (shfl.sync), 9.7.13.7 (vote.sync), 9.7.13.8 (match.sync), 9.7.13.9 (activemask),
9.7.13.10 (redux.sync), 9.7.13.12 (elect.sync), 10 (special registers).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Kind, Mask, Value, Vector
from cutegemm.emulator.numbers.values import M32, ND, REDUCTIONS, SINT
from cutegemm.emulator.state.clusters import WARP
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memo import remember
from cutegemm.emulator.state.memory import Fault


def vector(group: WarpSet, x: Value, kind: Kind = np.uint32) -> Vector:
    """A value as a vector over the group's lanes."""
    return x if x.__class__ is ND else np.full(group.lanes, x, kind)


def settle(group: WarpSet, x: Vector) -> Value:
    """A vector back to an int where all lanes agree (cheap for one warp, and what keeps warp indices uniform)."""
    first = x[0]
    return first.item() if (x == first).all() else x


def warp_sync(group: WarpSet, m: Mask, members: Value = M32) -> None:
    """bar.warp.sync, and every .sync operation across lanes: the lanes synchronise; only the race detector uses it."""
    if not group.tracker.follows:
        return
    if m is None and members.__class__ is not ND and members == M32:
        group.tracker.lanes_met()
        return
    for lanes, mask in _cohorts(group, m, members):
        met = lanes & _named(group, mask)
        if not met[lanes].all():
            lane = int(np.flatnonzero(lanes & ~met)[0]) % WARP
            group.tracker.defect("lane missing from its member mask", f"lane {lane} with mask {mask:#x}")
        if group.whole_warps(met):
            group.tracker.lanes_met()
        elif np.count_nonzero(met) > 1:
            group.tracker.some_met(met)


def _cohorts(group: WarpSet, m: Mask, members: Value) -> list[tuple[npt.NDArray[np.bool_], int]]:
    """The active lanes by the member mask they give: only lanes with the same mask take part in one operation."""
    live = np.ones(group.lanes, bool) if m is None else m
    if members.__class__ is not ND:
        return [(live, int(members))]
    masks = vector(group, members)
    return [(live & (masks == mask), int(mask)) for mask in np.unique(masks[live])]


def _named(group: WarpSet, mask: int) -> npt.NDArray[np.bool_]:
    """The lanes that a member mask names."""
    named: npt.NDArray[np.bool_] = (np.uint32(mask) >> group.lane) & np.uint32(1) != 0
    return named


def shuffle(
    group: WarpSet, m: Mask, a: Value, b: Value, c: Value, members: Value, mode: str
) -> tuple[Value, bool | Vector]:
    """shfl.sync: value and in-range predicate per lane. Lanes outside the mask hold unspecified values."""
    if not group.tracker.follows:
        return _shuffle(group, m, a, b, c, mode)
    warp_sync(group, m, members)
    if m is not None or members.__class__ is ND or members != M32:
        member = (vector(group, members) >> group.lane) & np.uint32(1) != 0
        live = member if m is None else member & m
        # Where each lane reads from: shuffle the lanes' own numbers.
        source, inside = _shuffle(group, None, np.arange(group.lanes, dtype=np.uint32), b, c, mode)
        reads = np.broadcast_to(live & inside, group.lanes)
        absent = reads & ~live[np.broadcast_to(source, group.lanes)]
        if absent.any():
            lane = int(np.flatnonzero(absent)[0])
            origin = int(np.broadcast_to(source, group.lanes)[lane]) % WARP
            group.tracker.defect("shfl from an inactive lane", f"lane {lane % WARP} reads lane {origin}")
    return _shuffle(group, m, a, b, c, mode)


def _shuffle(group: WarpSet, m: Mask, a: Value, b: Value, c: Value, mode: str) -> tuple[Value, bool | Vector]:
    if a.__class__ is not ND and mode == "idx":
        return a, True
    a = vector(group, a)
    if (
        mode == "idx"
        and b.__class__ is not ND
        and c.__class__ is not ND
        and (c >> 8) & 31 == 0
        and c & 31 == 31
    ):
        rows = a.reshape(-1, WARP)
        return settle(group, np.repeat(rows[:, b & 31], WARP)), True
    lane = group.lane.astype(np.int64)
    b, c = vector(group, b).astype(np.int64), vector(group, c).astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    top = (lane & segment) | (clamp & ~segment)
    low = lane & segment
    b = b & 31
    if mode == "idx":
        source = low | (b & ~segment)
        inside = source <= top
    elif mode == "up":
        source = lane - b
        inside = source >= top  # for .up the clamp field is the segment's lowest lane
    elif mode == "down":
        source = lane + b
        inside = source <= top
    elif mode == "bfly":
        source = lane ^ b
        inside = source <= top
    else:
        raise Fault(f"shfl mode {mode}")
    source = np.where(inside, source, lane)
    warp = np.arange(group.lanes) // WARP * WARP
    return a[warp + source], inside


def active_lanes(group: WarpSet, m: Mask) -> Value:
    """Bit mask of each warp's active lanes."""
    if m is None:
        return M32
    return _per_warp(group, m)


def _per_warp(group: WarpSet, p: Vector) -> Value:
    weights = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
    masks = (p.reshape(-1, WARP) * weights).sum(1).astype(np.uint32)
    return settle(group, np.repeat(masks, WARP))


def _by_cohort(group: WarpSet, m: Mask, members: Value, act: Callable[[Mask], Value]) -> Value:
    """What `act` gives each lane, from the lanes that its member mask names."""
    warp_sync(group, m, members)
    if members.__class__ is not ND and members == M32:
        return act(m)
    out: Vector | None = None
    for lanes, mask in _cohorts(group, m, members):
        made = np.asarray(act(lanes & _named(group, mask)))
        out = np.zeros(group.lanes, np.bool_ if made.dtype == np.bool_ else np.uint32) if out is None else out
        out[lanes] = np.broadcast_to(made, group.lanes)[lanes]
    assert out is not None  # at least one lane is active
    return settle(group, out)


def vote(group: WarpSet, m: Mask, p: Value, members: Value, mode: str) -> Value:
    """vote.sync.all/any/uni/ballot over the active lanes that `members` names."""
    return _by_cohort(group, m, members, lambda live: _vote(group, live, p, mode))


def _vote(group: WarpSet, m: Mask, p: Value, mode: str) -> Value:
    if p.__class__ is not ND:
        if mode == "ballot":
            return active_lanes(group, m) if p else 0
        return True if mode == "uni" else bool(p)
    live = np.ones(group.lanes, bool) if m is None else m
    if mode == "ballot":
        return _per_warp(group, p & live)
    rows, living = p.reshape(-1, WARP), live.reshape(-1, WARP)
    every, some = (rows | ~living).all(1), (rows & living).any(1)
    out = {"all": every, "any": some, "uni": every | ~some}[mode]
    out = np.repeat(out, WARP)
    return bool(out[0]) if (out == out[0]).all() else out


def redux(group: WarpSet, m: Mask, a: Value, members: Value, operation: str, signed: bool) -> Value:
    """redux.sync: a reduction over the active lanes of each warp that `members` names."""
    return _by_cohort(group, m, members, lambda live: _redux(group, live, a, operation, signed))


def _redux(group: WarpSet, m: Mask, a: Value, operation: str, signed: bool) -> Value:
    live = np.ones(group.lanes, bool) if m is None else m
    view = vector(group, a)
    view = view.view(SINT[32]) if signed else view
    out = np.zeros(group.lanes, view.dtype)
    act = REDUCTIONS[operation]
    for start in range(0, group.lanes, WARP):
        chosen = view[start : start + WARP][live[start : start + WARP]]
        if len(chosen):
            out[start : start + WARP] = act.reduce(chosen, dtype=view.dtype)
    return settle(group, out.view(np.uint32))


def match(group: WarpSet, m: Mask, a: Value, membership: Value, mode: str) -> tuple[Vector, bool | Vector]:
    """match.sync: the lanes that hold the same value (any), or all of them and whether all agree (all)."""
    warp_sync(group, m, membership)
    live = np.ones(group.lanes, bool) if m is None else m
    live = live & ((vector(group, membership) >> group.lane) & np.uint32(1) != 0)
    values = vector(group, a, np.uint64).astype(np.uint64).reshape(-1, WARP)
    living = live.reshape(-1, WARP)
    same = (values[:, :, None] == values[:, None, :]) & living[:, None, :]
    weights = np.uint64(1) << np.arange(WARP, dtype=np.uint64)
    masks = (same * weights).sum(2).astype(np.uint32)
    if mode == "any":
        return masks.reshape(-1), True
    members = (living * weights).sum(1).astype(np.uint32)[:, None]
    agree = np.where(living, masks == members, True).all(1, keepdims=True) & np.ones((1, WARP), bool)
    return np.where(agree, members, np.uint32(0)).reshape(-1), agree.reshape(-1)


def elect(group: WarpSet, m: Mask, membership: Value) -> tuple[Value, Vector]:
    """elect.sync: the lowest active lane of the membership leads; returns (leader lane, predicate)."""
    warp_sync(group, m, membership)
    whole = membership.__class__ is not ND and membership == M32
    if m is None and whole:
        return 0, group.leaders
    if m is not None and whole:
        # a kernel uses few masks
        known, key = group.device.elected, m.tobytes()
        if key not in known:
            remember(known, key, _elected(group, m))
        leader, predicate = known[key]
        return leader, predicate.copy()
    member = group.lane == group.lane  # all
    if membership.__class__ is ND or membership != M32:
        member = (vector(group, membership) >> group.lane) & np.uint32(1) != 0
    return _elected(group, member if m is None else member & m)


def _elected(group: WarpSet, live: npt.NDArray[np.bool_]) -> tuple[Value, Vector]:
    """The lowest live lane of each warp, and where it is."""
    leader = live.reshape(-1, WARP).argmax(1).astype(np.uint32)
    lane = np.repeat(leader, WARP)
    return settle(group, lane), (group.lane == lane) & live


def special(group: WarpSet, name: str) -> int:
    """Clock registers: cycles are not modelled; they count translated blocks and the host's time."""
    if name.startswith("globaltimer"):
        return time.time_ns() & ((1 << 64) - 1 if name == "globaltimer" else M32)
    ticks = sum(group.counts)
    return ticks & M32 if name == "clock" else ticks


def trap(group: WarpSet, m: Mask, line: int) -> NoReturn:
    """trap stops the kernel."""
    raise Fault(f"the kernel executed trap at PTX line {line}")


def uninitialised(group: WarpSet) -> NoReturn:
    """A register that no instruction writes."""
    raise Fault("read of a register that is never written")
