# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies of 4, 8 or 16 bytes per thread from global to shared memory, and their groups.

Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async), 9.7.13.15.16 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.memory import Fault, lane_of, locate
from cutegemm.emulator.units.barriers import find

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Mask, Value, Vector
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.state.memory import Region
    from cutegemm.emulator.units.barriers import MBarrier
    from cutegemm.emulator.watch.tracker import AsyncOp


def async_copy(
    group: Group, m: Mask, destination: Value, source: Value, size: int, used: Value, around_l1: bool
) -> None:
    """cp.async: copies `used` bytes per lane and zero-fills up to `size`; .cg goes around L1."""
    lanes = np.arange(group.lanes) if m is None else np.flatnonzero(m)

    def spread(x: Value) -> Vector:
        return x[lanes] if x.__class__ is ND else np.full(len(lanes), x, np.uint64)

    to, origin, amount = spread(destination), spread(source).astype(np.uint64), spread(used).astype(np.int64)
    region, offset = _located(group, m, to, size, "shared")
    if (amount > size).any():
        raise Fault(f"cp.async reads {int(amount.max())} bytes into {size}")
    if int(np.bitwise_or.reduce(origin)) % size:
        raise Fault(f"cp.async from a global address that is not {size}-byte aligned")
    reads = np.flatnonzero(amount)
    place = None
    if len(reads):
        each = int(amount.max()) if (amount[reads] == size).all() else 1
        place = _located(group, m, origin[reads], each, "global")
    device = group.device
    device.watch.async_copy((lanes, region, offset), place and (lanes[reads], *place), size, around_l1)
    token = None if group.tracker is None else group.tracker.issue_copy(m)
    if token is not None:
        where = token.tracker.detector.cells.where
        token.check(region, where(offset, size), True)
        if place is not None:
            token.check(place[0], where(place[1], size), False)
    copy = Copy(functools.partial(_copy, region, offset.astype(np.int64), place, reads, amount, size), token)
    if device.completion.at_once:
        copy.finish()
    group.copy_open.append(copy)
    device.events += 1


def _located(group: Group, m: Mask, a: Vector, size: int, space: str) -> tuple[Region, Vector]:
    """As `locate`, of lanes that all reach one buffer."""
    region, offset = locate(group, m, a, size, space)
    if region is None:
        raise Fault(
            "the lanes of one cp.async reach several buffers; the emulator does not split such accesses"
        )
    return region, offset


class Copy:
    """The copies of one cp.async instruction, done once; `token` is the race detector's."""

    __slots__ = ("action", "token", "tracked")

    action: Callable[[], None] | None

    def __init__(self, action: Callable[[], None], token: AsyncOp | None) -> None:
        self.action, self.token = action, token
        self.tracked = False  # whether an mbarrier tells of its completion

    def finish(self) -> None:
        """Copy, if that has not happened yet."""
        if self.action is not None:
            self.action()
            self.action = None


def _copy(
    region: Region,
    offset: Vector,
    place: tuple[Region, Vector] | None,
    reads: Vector,
    amount: Vector,
    size: int,
) -> None:
    data = np.zeros((len(offset), size), np.uint8)
    if place is not None:
        source, start = place
        columns = np.arange(size)
        index = start.astype(np.int64)[:, None] + columns
        keep = columns < amount[reads][:, None]
        data[reads] = np.where(keep, source.data[np.where(keep, index, start.astype(np.int64)[:, None])], 0)
    region.data[offset[:, None] + np.arange(size)] = data


def async_commit(group: Group, m: Mask) -> None:
    """cp.async.commit_group."""
    group.copy_groups.append(group.copy_open)
    group.copy_open = []
    if group.tracker is not None:
        group.tracker.copying = None


def async_wait(group: Group, m: Mask, pending: int) -> None:
    """cp.async.wait_group (or wait_all for a negative number)."""
    if pending < 0:
        async_commit(group, m)
        pending = 0
    group.device.watch.waited_for(
        group.copy_groups[: max(len(group.copy_groups) - pending, 0)], group.program
    )
    while len(group.copy_groups) > pending:
        for copy in group.copy_groups.pop(0):
            copy.finish()
            if copy.token is not None and group.tracker is not None:
                group.tracker.done(copy.token)


def async_arrive(group: Group, m: Mask, address: Value, no_increment: bool) -> None:
    """cp.async.mbarrier.arrive: an arrival once the copies that these threads have issued are complete."""
    under_way = [copy for copies in (*group.copy_groups, group.copy_open) for copy in copies]
    bars = [find(group, lane_of(address, lane)) for lane in range(group.lanes) if m is None or m[lane]]
    for copy in under_way:
        copy.tracked = True
    if not no_increment:
        for bar in bars:
            bar.pending += 1
    if group.tracker is not None:
        group.tracker.copying = None
    group.device.submit(functools.partial(_arrived, under_way, bars))


def _arrived(copies: list[Copy], bars: list[MBarrier]) -> None:
    for copy in copies:
        copy.finish()
        if copy.token is not None:
            for bar in bars:
                copy.token.complete_on(bar)
    for bar in bars:
        bar.pending -= 1
        bar.advance()
