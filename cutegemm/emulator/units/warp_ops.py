# SPDX-License-Identifier: Apache-2.0
"""Operations across the lanes of a warp (shfl, vote, redux, match, elect), and special registers.

Source: PTX ISA 9.0, 9.7.9.6 (shfl.sync), 9.7.13.7 (vote.sync), 9.7.13.8 (match.sync), 9.7.13.9 (activemask),
9.7.13.10 (redux.sync), 9.7.13.12 (elect.sync), 10 (special registers).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Kind, Mask, Value, Vector
from cutegemm.emulator.numbers.values import M32, ND, REDUCTIONS, SINT
from cutegemm.emulator.state.geometry import WARP
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault

_WEIGHTS = np.uint64(1) << np.arange(WARP, dtype=np.uint64)  # bits of the lanes in a mask


def vector(group: WarpSet, x: Value, kind: Kind = np.uint32) -> Vector:
    """A value as a vector over the group's lanes."""
    return x if x.__class__ is ND else np.full(group.lanes, x, kind)


def settle(x: Vector) -> Value:
    """A vector, or an int if all lanes agree, which keeps warp indices uniform."""
    first = x[0]
    return first.item() if (x == first).all() else x


def _live(group: WarpSet, m: Mask) -> npt.NDArray[np.bool_]:
    return np.ones(group.lanes, bool) if m is None else m


def _named(group: WarpSet, members: Value) -> npt.NDArray[np.bool_]:
    """The lanes that are in their own member mask."""
    named: npt.NDArray[np.bool_] = (vector(group, members) >> group.lane) & np.uint32(1) != 0
    return named


def _is_full(members: Value) -> bool:
    return members.__class__ is not ND and members == M32


def warp_sync(group: WarpSet, m: Mask, members: Value = M32) -> None:
    """bar.warp.sync, and the synchronisation by .sync operations across lanes; only for the race detector."""
    if not group.tracker.follows:
        return
    if m is None and _is_full(members):
        group.tracker.lanes_synchronised()
        return
    for lanes, mask in _cohorts(group, m, members):
        synchronised = lanes & _named(group, mask)
        if not synchronised[lanes].all():
            lane = int(np.flatnonzero(lanes & ~synchronised)[0]) % WARP
            group.tracker.defect("lane missing from its member mask", f"lane {lane} with mask {mask:#x}")
        if group.whole_warps(synchronised):
            group.tracker.lanes_synchronised()
        elif np.count_nonzero(synchronised) > 1:
            group.tracker.some_synchronised(synchronised)


def _cohorts(group: WarpSet, m: Mask, members: Value) -> list[tuple[npt.NDArray[np.bool_], int]]:
    """The active lanes by member mask: lanes with the same mask take part in one operation."""
    live = _live(group, m)
    if members.__class__ is not ND:
        return [(live, int(members))]
    return [(live & (members == mask), int(mask)) for mask in np.unique(members[live])]


def shuffle(
    group: WarpSet, m: Mask, a: Value, b: Value, c: Value, members: Value, mode: str
) -> tuple[Value, bool | Vector]:
    """shfl.sync: value and in-range predicate per lane. Lanes outside the mask hold unspecified values."""
    if group.tracker.follows:
        warp_sync(group, m, members)
        if m is not None or not _is_full(members):
            _check_sources(group, _live(group, m), members, b, c, mode)
    whole = c.__class__ is not ND and c & 0x1F1F == 31  # one segment of 32 lanes
    if mode == "idx" and whole and a.__class__ is not ND:
        return a, True
    a = vector(group, a)
    if mode == "idx" and whole and b.__class__ is not ND:
        rows = a.reshape(-1, WARP)
        return settle(np.repeat(rows[:, b & 31], WARP)), True
    source, inside = _sources(group, b, c, mode)
    return a[np.arange(group.lanes) // WARP * WARP + source], inside


def _sources(group: WarpSet, b: Value, c: Value, mode: str) -> tuple[Vector, Vector]:
    """The lane of its warp that each lane reads, and whether that is in its segment; if not, it reads itself."""
    lane = group.lane.astype(np.int64)
    b, c = vector(group, b).astype(np.int64) & 31, vector(group, c).astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    low = lane & segment
    top = low | (clamp & ~segment)
    if mode == "up":
        source = lane - b
        inside = source >= top  # for .up the clamp field is the lowest lane of the segment
    else:
        source = {"idx": low | (b & ~segment), "down": lane + b, "bfly": lane ^ b}[mode]
        inside = source <= top
    return np.where(inside, source, lane), inside


def _check_sources(
    group: WarpSet, live: npt.NDArray[np.bool_], members: Value, b: Value, c: Value, mode: str
) -> None:
    """Report a lane that reads a lane that is inactive or not in its member mask."""
    source, inside = _sources(group, b, c, mode)
    readable = live[np.arange(group.lanes) // WARP * WARP + source] & (
        vector(group, members) >> source.astype(np.uint32) & np.uint32(1) != 0
    )
    absent = live & _named(group, members) & inside & ~readable
    if absent.any():
        lane = int(np.flatnonzero(absent)[0])
        text = f"lane {lane % WARP} reads lane {source[lane]}"
        group.tracker.defect("shfl from an inactive lane", text)


def active_lanes(group: WarpSet, m: Mask) -> Value:
    """Bit mask of each warp's active lanes."""
    return M32 if m is None else _per_warp(m)


def _per_warp(p: Vector) -> Value:
    masks = (p.reshape(-1, WARP) * _WEIGHTS).sum(1).astype(np.uint32)
    return settle(np.repeat(masks, WARP))


def _by_cohort(group: WarpSet, m: Mask, members: Value, act: Callable[[Mask], Value]) -> Value:
    """The result of `act` for each lane; `act` gets the lanes of the member mask."""
    warp_sync(group, m, members)
    if _is_full(members):
        return act(m)
    cohorts = _cohorts(group, m, members)
    results = [np.asarray(act(lanes & _named(group, mask))) for lanes, mask in cohorts]
    kind = np.bool_ if results[0].dtype == np.bool_ else np.uint32
    return settle(np.select([lanes for lanes, _ in cohorts], results).astype(kind))


def vote(group: WarpSet, m: Mask, p: Value, members: Value, mode: str) -> Value:
    """vote.sync.all/any/uni/ballot over the active lanes in `members`."""
    return _by_cohort(group, m, members, lambda live: _vote(group, live, p, mode))


def _vote(group: WarpSet, m: Mask, p: Value, mode: str) -> Value:
    if p.__class__ is not ND:
        if mode == "ballot":
            return active_lanes(group, m) if p else 0
        return True if mode == "uni" else bool(p)
    live = _live(group, m)
    if mode == "ballot":
        return _per_warp(p & live)
    rows, living = p.reshape(-1, WARP), live.reshape(-1, WARP)
    every, some = (rows | ~living).all(1), (rows & living).any(1)
    out = {"all": every, "any": some, "uni": every | ~some}[mode]
    return settle(np.repeat(out, WARP))


def redux(group: WarpSet, m: Mask, a: Value, members: Value, operation: str, is_signed: bool) -> Value:
    """redux.sync: a reduction over the active lanes of each warp in `members`."""
    return _by_cohort(group, m, members, lambda live: _redux(group, live, a, operation, is_signed))


def _redux(group: WarpSet, m: Mask, a: Value, operation: str, is_signed: bool) -> Value:
    view = vector(group, a)
    view = view.view(SINT[32]) if is_signed else view
    out = np.zeros(group.lanes, view.dtype)
    rows, living = view.reshape(-1, WARP), _live(group, m).reshape(-1, WARP)
    for warp, (row, live) in enumerate(zip(rows, living, strict=True)):
        if live.any():
            out[WARP * warp : WARP * warp + WARP] = REDUCTIONS[operation].reduce(row[live], dtype=view.dtype)
    return settle(out.view(np.uint32))


def match(group: WarpSet, m: Mask, a: Value, members: Value, mode: str) -> tuple[Vector, bool | Vector]:
    """match.sync: the lanes with the same value (any), or all lanes and whether they agree (all)."""
    warp_sync(group, m, members)
    living = (_live(group, m) & _named(group, members)).reshape(-1, WARP)
    values = vector(group, a, np.uint64).astype(np.uint64).reshape(-1, WARP)
    same = (values[:, :, None] == values[:, None, :]) & living[:, None, :]
    masks = (same * _WEIGHTS).sum(2).astype(np.uint32).reshape(-1) & members
    if mode == "any":
        return masks, True
    named = np.repeat((living * _WEIGHTS).sum(1).astype(np.uint32), WARP) & members
    return np.where(masks == named, named, np.uint32(0)), masks == named


def elect(group: WarpSet, m: Mask, members: Value) -> tuple[Value, Vector]:
    """elect.sync: the lowest active lane of the member mask leads; returns (leader lane, predicate)."""
    warp_sync(group, m, members)
    if _is_full(members):
        if m is None:
            return 0, group.leaders
        live = m
    else:
        live = _live(group, m) & _named(group, members)
    leader, predicate = _elected(live.tobytes())
    return leader, predicate.copy()


@functools.lru_cache(4096)
def _elected(live: bytes) -> tuple[Value, Any]:
    """The lowest live lane of each warp as a value and as a mask."""
    lanes = np.frombuffer(live, bool)
    leader = np.repeat(lanes.reshape(-1, WARP).argmax(1).astype(np.uint32), WARP)
    return settle(leader), (np.arange(len(lanes)) % WARP == leader) & lanes


def special(group: WarpSet, name: str) -> int:
    """Clock registers: executed blocks instead of cycles, and the time of the host."""
    if name.startswith("globaltimer"):
        return time.time_ns() & ((1 << 64) - 1 if name == "globaltimer" else M32)
    ticks = sum(group.counts)
    return ticks & M32 if name == "clock" else ticks


def trap(line: int) -> NoReturn:
    """trap."""
    raise Fault(f"the kernel executed trap at PTX line {line}")


def uninitialised() -> NoReturn:
    """Read of a register that no instruction writes."""
    raise Fault("read of a register that is never written")
