# SPDX-License-Identifier: Apache-2.0
"""Loads and stores: NumPy indexing gathers and scatters the lanes; bounds and alignment are checked.

Source: PTX ISA 9.0, 9.7.9.8 (ld), 9.7.9.11 (st).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND, lane_of, wrap
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Touch
from cutegemm.emulator.state.memory import (
    LOCAL_WINDOW,
    OFFSET_MASK,
    RANK_SHIFT,
    WIDTHS,
    Fault,
    MemoryRegion,
    resolve,
)

POLL_COST = 300  # a polling load uses so many blocks of a group's time slice, so that other warps run


@overload
def locate(group: WarpSet, m: Mask, a: int, size: int, space: str) -> tuple[MemoryRegion, int]: ...
@overload
def locate(
    group: WarpSet, m: Mask, a: Vector, size: int, space: str
) -> tuple[MemoryRegion | None, Vector]: ...
def locate(group: WarpSet, m: Mask, a: Any, size: int, space: str) -> tuple[MemoryRegion | None, Any]:
    """Region and byte offsets of one access of `size` bytes per lane; `a` holds only active lanes.

    The region is None if the lanes access several regions.

    Raises:
        Fault: out of bounds or misaligned.
    """
    if space == "shared":
        return _locate_shared(group, a, size)
    if space == "param":
        region = group.device.params
    elif space == "local":
        region = group.local
        a = a + group.local_bases(m)
    elif space == "several":
        return None, a
    else:
        return _locate_global(group, a, size)
    offset = a - (np.uint64(region.base) if a.__class__ is ND else region.base)
    high = int(offset.max()) if offset.__class__ is ND else offset
    if not 0 <= high <= region.size - size:
        raise Fault(f"out of bounds: address {high:#x}, {size} bytes, {region.name}")
    return region, offset


def _locate_global(group: WarpSet, a: Any, size: int) -> tuple[MemoryRegion | None, Any]:
    memory, lanes = group.device.memory, a.__class__ is ND
    low, high = (int(a.min()), int(a.max())) if lanes else (a, a)
    region = memory.find(low, high + size)
    if region is None:
        inside = (x for x in np.atleast_1d(a).tolist() if x < LOCAL_WINDOW or not lanes)
        bad = next((x for x in inside if memory.find(x, x + size) is None), None)
        if bad is None:
            return None, a
        raise Fault(f"global access out of bounds: address {bad:#x}, {size} bytes, {memory.describe(bad)}")
    if (int(np.bitwise_or.reduce(a)) if lanes else a) & (size - 1):
        bad = next(x for x in np.atleast_1d(a).tolist() if x % size)
        raise Fault(f"misaligned global access: address {bad:#x}, {size} bytes")
    return region, a - (np.uint64(region.base) if lanes else region.base)


def _locate_shared(group: WarpSet, a: Any, size: int) -> tuple[MemoryRegion | None, Any]:
    peers = group.cta.peers
    if a.__class__ is not ND:
        rank, offset = a >> RANK_SHIFT, a & OFFSET_MASK
        both = low = high = offset
    else:
        a = a.astype(np.uint32)
        ranks = a >> np.uint32(RANK_SHIFT)
        rank = int(ranks[0])
        if len(peers) > 1 and not (ranks == rank).all():
            return None, a
        offset = a & np.uint32(OFFSET_MASK)
        both, low, high = int(np.bitwise_or.reduce(offset)), int(offset.min()), int(offset.max())
    if rank >= len(peers):
        raise Fault(f"shared access to CTA {rank} of a cluster of {len(peers)}: address {high:#x}")
    peers[rank].must_live("a shared access reaches")
    target = peers[rank].shared
    if high + size > target.size or low < target.first:
        raise Fault(
            f"shared access out of bounds: offset {high:#x}, {size} bytes of {target.size} "
            f"(user memory starts at {target.first:#x})"
        )
    if both & (size - 1):
        raise Fault(f"misaligned shared access: offset {high:#x}, {size} bytes")
    return target, offset


def by_region(group: WarpSet, m: Mask, a: Vector, size: int, space: str) -> list[Vector]:
    """Masks of active lanes that access the same region; `a` holds only active lanes."""
    masks: dict[MemoryRegion, Vector] = {}
    for lane, address in zip(group.active(m).tolist(), a.tolist(), strict=True):
        own, at = resolve(address) if space in ("global", "several") else (space, address)
        region = group.local if own == "local" else locate(group, m, at, size, own)[0]
        masks.setdefault(region, np.zeros(group.lanes, bool))[lane] = True
    return list(masks.values())


def _addresses(group: WarpSet, m: Mask, a: Any, space: str) -> tuple[str, Any]:
    """Space and addresses of the active lanes; one int if all have the same, except in local memory."""
    if m is not None and a.__class__ is ND:
        a = a[m]
    if space == "generic":
        space, a = resolve(a)
    if space == "local" and a.__class__ is not ND:
        a = np.full(len(group.active(m)), a, np.uint64)
    return space, a


def load(
    group: WarpSet, m: Mask, a: Value, size: int, count: int, space: str, order: str
) -> tuple[Value, ...]:
    """A load of `count` values per lane: ints, or vectors over all lanes (zero in inactive lanes).

    `order` is "" for a plain load, else relaxed (volatile too) or acquire; such a load may be polling.
    """
    if order:
        group.budget -= POLL_COST
    given = "generic" if space == "const" else space
    space, x = _addresses(group, m, a, given)
    region, offset = locate(group, m, x, size * count, space)
    if region is None:
        split = (
            load(group, one, a, size, count, given, order)
            for one in by_region(group, m, x, size * count, space)
        )
        return tuple(functools.reduce(operator.or_, values) for values in zip(*split, strict=True))
    if order:
        polled(group, region, offset)
    if group.device.watch.hears("access"):
        group.device.watch.access(group, Touch(m, region, offset, size * count, False, space, order))
    if offset.__class__ is not ND:
        first = offset // size
        return tuple(region.view(size)[first : first + count].tolist())
    index = (offset // offset.dtype.type(size * count)).astype(np.int64)
    values = region.view(size, count)[index]
    values = np.ascontiguousarray(values.T) if count > 1 else values[None]
    if m is None:
        return tuple(values)
    out = np.zeros((count, group.lanes), values.dtype)
    out[:, m] = values
    return tuple(out)


def polled(group: WarpSet, region: MemoryRegion, offset: Value) -> None:
    """Note the address of a strong read: if it polls, a deadlock report names it."""
    first = int(offset[0]) if offset.__class__ is ND else offset
    group.wait_for(functools.partial("byte {:#x} of {}".format, first - region.first, region.name), True)


def store(
    group: WarpSet, m: Mask, a: Value, values: Sequence[Value], size: int, space: str, order: str = ""
) -> None:
    """A store of `values`, one per vector element; if lanes collide, the last one wins."""
    group.device.events += 1
    count = len(values)
    given = space
    space, x = _addresses(group, m, a, given)
    offset: Any  # a vector, or one int for all lanes
    region, offset = locate(group, m, x, size * count, space)
    if region is None:
        for one in by_region(group, m, x, size * count, space):
            store(group, one, a, values, size, given, order)
        return
    if group.device.watch.hears("access"):
        group.device.watch.access(group, Touch(m, region, offset, size * count, True, space, order))
        if not order and space != "local":
            group.tracker.stored(m, values)
    view = region.view(size)
    if offset.__class__ is not ND:
        last = int(group.active(m)[-1])
        for i, v in enumerate(values):
            view[offset // size + i] = wrap(lane_of(v, last), 8 * size)
        return
    index = (offset // offset.dtype.type(size)).astype(np.int64)
    for i, v in enumerate(values):
        if v.__class__ is ND:
            v = (v if m is None else v[m]).astype(WIDTHS[size])
        else:
            v = v & ((1 << 8 * size) - 1)
        view[index + i if i else index] = v
