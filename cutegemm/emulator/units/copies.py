# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies of 4, 8 or 16 bytes per thread from global to shared memory, and their groups.

Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async), 9.7.13.15.16 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

import functools

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.clusters import MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault, MemoryRegion
from cutegemm.emulator.state.pending import AsyncCopy
from cutegemm.emulator.units.access import locate
from cutegemm.emulator.units.barriers import find


def async_copy(
    group: WarpSet, m: Mask, destination: Value, source: Value, size: int, used: Value, around_l1: bool
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
    to_place, source_place = (lanes, region, offset), place and (lanes[reads], *place)
    device.watch.async_copy(to_place, source_place, size, around_l1)
    token = group.tracker.issue_copy(m)
    token.copied(to_place, source_place, size)
    copy = AsyncCopy(
        functools.partial(_copy, region, offset.astype(np.int64), place, reads, amount, size), token
    )
    if device.completion.at_once:
        copy.finish()
    group.copies.open.append(copy)
    device.events += 1


def _located(group: WarpSet, m: Mask, a: Vector, size: int, space: str) -> tuple[MemoryRegion, Vector]:
    """As `locate`, of lanes that all reach one buffer."""
    region, offset = locate(group, m, a, size, space)
    if region is None:
        raise Fault(
            "the lanes of one cp.async reach several buffers; the emulator does not split such accesses"
        )
    return region, offset


def _copy(
    region: MemoryRegion,
    offset: Vector,
    place: tuple[MemoryRegion, Vector] | None,
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


def async_commit(group: WarpSet, m: Mask) -> None:
    """cp.async.commit_group."""
    group.copies.commit()
    group.tracker.copies_closed()


def async_wait(group: WarpSet, m: Mask, pending: int) -> None:
    """cp.async.wait_group (or wait_all for a negative number)."""
    if pending < 0:
        async_commit(group, m)
        pending = 0
    groups = group.copies.groups
    group.device.watch.waited_for(groups[: max(len(groups) - pending, 0)], group.program)
    while len(groups) > pending:
        for copy in groups.pop(0):
            copy.finish()
            group.tracker.done(copy.token)


def async_arrive(group: WarpSet, m: Mask, address: Value, no_increment: bool) -> None:
    """cp.async.mbarrier.arrive: an arrival once the copies that these threads have issued are complete."""
    copies = list(group.copies.all())
    bars = [find(group, lane_of(address, lane)) for lane in range(group.lanes) if m is None or m[lane]]
    for copy in copies:
        copy.tracked = True
    if not no_increment:
        for bar in bars:
            bar.pending += 1
    group.tracker.copies_closed()
    group.device.submit(functools.partial(_arrived, copies, bars))


def _arrived(copies: list[AsyncCopy], bars: list[MBarrier]) -> None:
    for copy in copies:
        copy.finish()
        for bar in bars:
            copy.token.complete_on(bar)
    for bar in bars:
        bar.pending -= 1
        bar.advance()
