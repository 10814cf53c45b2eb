# SPDX-License-Identifier: Apache-2.0
"""cp.async: copies of 4, 8 or 16 bytes per thread from global to shared memory.

Source: PTX ISA 9.0, 9.7.9.25.3 (cp.async), 9.7.13.15.16 (cp.async.mbarrier.arrive).
"""

from __future__ import annotations

import functools

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND, lane_of
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault, MemoryRegion
from cutegemm.emulator.state.pending import AsyncCopy
from cutegemm.emulator.units.access import by_region, locate
from cutegemm.emulator.units.barriers import find


def async_copy(
    group: WarpSet, m: Mask, destination: Value, source: Value, size: int, used: Value, around_l1: bool
) -> None:
    """cp.async: copy `used` bytes per lane, and fill with zeros up to `size`; `around_l1` is .cg."""
    lanes = group.active(m)

    def spread(x: Value) -> Vector:
        return x[lanes] if x.__class__ is ND else np.full(len(lanes), x, np.uint64)

    to, origin, amount = spread(destination), spread(source).astype(np.uint64), spread(used).astype(np.int64)
    region, offset = locate(group, m, to, size, "shared")
    if region is None:
        raise Fault("cp.async to the shared memory of several CTAs")
    if (amount > size).any():
        raise Fault(f"cp.async reads {int(amount.max())} bytes into {size}")
    if int(np.bitwise_or.reduce(origin)) % size:
        raise Fault(f"cp.async from a global address that is not {size}-byte aligned")
    reads = np.flatnonzero(amount)
    place: tuple[MemoryRegion, Vector] | None = None
    if len(reads):
        each = int(amount.max()) if (amount[reads] == size).all() else 1
        buffer, start = locate(group, m, origin[reads], each, "global")
        if buffer is None:  # one copy for the lanes of each buffer
            origin[amount == 0] = origin[reads[0]]
            for one in by_region(group, m, origin, each, "global"):
                async_copy(group, one, destination, source, size, used, around_l1)
            return
        place = buffer, start
    device = group.device
    to_place, source_place = (lanes, region, offset), place and (lanes[reads], *place)
    device.watch.async_copy(to_place, source_place, size, around_l1)
    token = group.tracker.issue_copy(m)
    token.copied(to_place, source_place, size)
    action = functools.partial(_copy, region, offset.astype(np.int64), place, reads, amount, size)
    copy = AsyncCopy(action, token)
    if device.completion.eager:
        copy.finish()
    group.copies.open.append(copy)
    device.events += 1


def _copy(
    region: MemoryRegion,
    offset: Vector,
    place: tuple[MemoryRegion, Vector] | None,
    reads: Vector,
    amount: Vector,
    size: int,
) -> None:
    columns = np.arange(size)
    data = np.zeros((len(offset), size), np.uint8)
    if place is not None:
        source, start = place[0].data, place[1].astype(np.int64)[:, None]
        keep = columns < amount[reads][:, None]
        data[reads] = np.where(keep, source[np.where(keep, start + columns, start)], 0)
    region.data[offset[:, None] + columns] = data


def async_commit(group: WarpSet) -> None:
    """cp.async.commit_group."""
    group.copies.commit()
    group.tracker.copies_closed()


def async_arrive(group: WarpSet, m: Mask, address: Value, no_increment: bool) -> None:
    """cp.async.mbarrier.arrive: arrive once the earlier copies of these threads are complete."""
    copies = list(group.copies.all())
    bars = [find(group, lane_of(address, lane)) for lane in group.active(m).tolist()]
    for copy in copies:
        copy.awaited = True
    if not no_increment:
        for bar in bars:
            bar.pending += 1
    group.tracker.copies_closed()

    def arrive() -> None:
        for copy in copies:
            copy.finish()
            for bar in bars:
                copy.token.complete_on(bar)
        for bar in bars:
            bar.pending -= 1
            bar.advance()

    group.device.submit(arrive)
