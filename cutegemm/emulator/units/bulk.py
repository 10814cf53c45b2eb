# SPDX-License-Identifier: Apache-2.0
"""Bulk copies of contiguous bytes, functions that tensor copies share with them, and asynchronous stores.

st.async and red.async are not ordered before later accesses of their thread. Threads that wait for the mbarrier see
them. They belong to the generic proxy and need no proxy fence.

Source: PTX ISA 9.0, 9.7.9.12 (st.async), 9.7.9.25 (cp.async.bulk, its groups and their waits), 9.7.13.8 (red.async).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers.types import Chunks, Mask, Value
from cutegemm.emulator.numbers.values import M32, ND, lane_of
from cutegemm.emulator.state.clusters import CTA, MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import OFFSET_MASK, RANK_SHIFT, Fault, MemoryRegion
from cutegemm.emulator.state.pending import BulkStore, Pending
from cutegemm.emulator.units.access import locate
from cutegemm.emulator.units.atomics import Reduce, combine, reducer
from cutegemm.emulator.units.barriers import find

Reduction: TypeAlias = tuple[str, str, int]  # operation, type, bytes of an element


def distinct(group: WarpSet, m: Mask, *operands: Any) -> list[tuple[Any, ...]]:
    """Operands of the requests: one for each warp and set of operands, as ptxas issues a bulk instruction."""
    if m is None and len(group.warps) == 1 and not any(o.__class__ is ND for o in operands):
        return [operands]
    if m is not None and np.count_nonzero(m) == 1:
        lane = int(m.argmax())
        return [tuple([int(o[lane]) if o.__class__ is ND else o for o in operands])]
    requests = [(lane >> 5, *(lane_of(o, lane) for o in operands)) for lane in group.active(m).tolist()]
    return [request[1:] for request in dict.fromkeys(requests)]


def targets(
    group: WarpSet, destination: int, barrier: int, multicast: int | None
) -> tuple[list[CTA], list[MBarrier]]:
    """The CTAs of the cluster that a load writes to, and their mbarriers."""
    ranks, peers = [destination >> RANK_SHIFT & 0xFF], group.cta.peers
    if multicast is not None:
        ranks = [r for r in range(16) if multicast >> r & 1]
    last = max(ranks, default=0)
    if last >= len(peers):
        raise Fault(f"a load writes to CTA {last} of a cluster of {len(peers)}")
    bars = [find(group, barrier & OFFSET_MASK | r << RANK_SHIFT) for r in ranks]
    return [peers[r] for r in ranks], bars


def issue_load(
    group: WarpSet,
    read: Callable[[], np.ndarray],
    chunks: Chunks,
    ctas: list[CTA],
    bars: list[MBarrier],
    token: Any,
    reduce: Reduce | None = None,
) -> None:
    """Issue a copy to (or reduction into) the same chunks of some CTAs, each with an mbarrier."""
    for cta, bar in zip(ctas, bars, strict=True):
        token.write_shared(cta, chunks)
        token.uses(bar)

    def finish() -> None:
        data = read()
        for cta, bar in zip(ctas, bars, strict=True):
            _put(cta.shared, chunks, reduce, data)
            complete(bar, 16 * len(chunks), token)

    group.device.submit(finish)


def _put(region: MemoryRegion, chunks: Chunks, reduce: Reduce | None, data: np.ndarray) -> None:
    """Write bytes to some chunks, or reduce them into memory."""
    if reduce is not None:
        data = reduce(region.take(chunks), data)
    region.view(16)[chunks] = data.view("V16").ravel()


def complete(bar: MBarrier, amount: int, token: Any) -> None:
    """complete_tx of `amount` bytes on an mbarrier."""
    bar.cta.must_live("a copy completes in")
    token.complete_on(bar, amount)
    bar.expect(-amount)
    bar.advance()


def issue_store(group: WarpSet, chunks: Chunks, token: Any, write: Callable[[np.ndarray], None]) -> None:
    """Issue a store of chunks of shared memory, in the open bulk group; `write` gets their bytes."""
    device = group.device

    def finish(data: np.ndarray) -> None:
        write(data)
        device.events += 1

    store = BulkStore(functools.partial(group.cta.shared.take, chunks), finish, token)
    group.bulk.open.append(store)
    device.events += 1
    device.completion.store(store)


def wait_group(group: WarpSet, queue: Pending, pending: int, read_only: bool = False) -> None:
    """cp.async[.bulk].wait_group[.read]: wait for all but the last `pending` groups (or for their reads)."""
    finished = queue.groups[: max(len(queue.groups) - pending, 0)]
    group.device.watch.waited_for(finished)
    for operation in (x for issued in finished for x in issued):
        operation.awaited = True
        if read_only:
            operation.read()
        else:
            operation.finish()
        group.tracker.done(operation.token, not read_only)
    if not read_only:
        del queue.groups[: len(finished)]


def _shared(group: WarpSet, address: int, size: int, other: int = 0) -> Chunks:
    """The chunks of `size` bytes of shared memory; `other` is the address in global memory."""
    offset, region = address & OFFSET_MASK, group.cta.shared
    if size % 16 or offset % 16 or other % 16:
        places = f"shared offset {offset:#x}{region.part(offset)}" + (
            f", global address {other:#x}" if other else ""
        )
        raise Fault(f"bulk copy of {size} bytes, {places}: size and addresses must be multiples of 16 bytes")
    if offset < region.first or offset + size > region.size:
        raise Fault(f"bulk copy of {size} bytes at shared offset {offset:#x} leaves shared memory")
    return np.arange(offset // 16, (offset + size) // 16)


def _global(group: WarpSet, address: int, size: int) -> tuple[MemoryRegion, int, Chunks]:
    """Region, first byte and chunks of `size` bytes of global memory."""
    region = group.device.memory.find_all(address, size, f"bulk copy of {size} bytes")
    start = address - region.base
    return region, start, np.arange(start // 16, (start + size) // 16)


def bulk_load(
    group: WarpSet,
    m: Mask,
    destination: Value,
    source: Value,
    size: Value,
    barrier: Value,
    multicast: Value | None,
) -> None:
    """cp.async.bulk from global to shared memory."""
    for d, s, n, bar, mask in distinct(group, m, destination, source, size, barrier, multicast):
        chunks = _shared(group, d, n, s)
        region, start, origin = _global(group, s, n)
        ctas, bars = targets(group, d, bar, mask)
        token = group.tracker.issue("bulk load", m=m)
        token.read_global(region, (start, (n,), ()))
        group.device.watch.bulk(region, start, n, False, len(ctas))
        issue_load(group, functools.partial(region.take, origin), chunks, ctas, bars, token)


def bulk_exchange(
    group: WarpSet,
    m: Mask,
    destination: Value,
    source: Value,
    size: Value,
    barrier: Value,
    reduction: Reduction | None,
) -> None:
    """cp.async.bulk (or cp.reduce.async.bulk) from this CTA's shared memory to that of a CTA of the cluster."""
    for d, s, n, bar in distinct(group, m, destination, source, size, barrier):
        chunks, origin = _shared(group, d, n), _shared(group, s, n)
        arrives = find(group, bar)
        cta = group.cta.peers[d >> RANK_SHIFT & 0xFF]
        if arrives.cta is not cta:
            raise Fault("a bulk copy and its mbarrier must lie in the same CTA's shared memory")
        token = group.tracker.issue("bulk copy", m=m)
        token.read_shared(group.cta, origin)
        read = functools.partial(group.cta.shared.take, origin)
        issue_load(group, read, chunks, [cta], [arrives], token, reduction and reducer(*reduction))


def bulk_store(
    group: WarpSet, m: Mask, destination: Value, source: Value, size: Value, reduction: Reduction | None
) -> None:
    """cp.async.bulk (or cp.reduce.async.bulk) from shared to global memory."""
    for d, s, n in distinct(group, m, destination, source, size):
        chunks = _shared(group, s, n, d)
        region, start, target = _global(group, d, n)
        token = group.tracker.issue("bulk store", m=m)
        token.read_shared(group.cta, chunks)
        token.write_global(region, (start, (n,), ()), reduction is not None)
        group.device.watch.bulk(region, start, n, True, 1)
        write = functools.partial(_put, region, target, reduction and reducer(*reduction))
        issue_store(group, chunks, token, write)


def store_async(
    group: WarpSet,
    m: Mask,
    address: Value,
    values: Sequence[Value],
    size: int,
    barrier: Value,
    operation: str | None = None,
    kind: str = "",
) -> None:
    """st.async, or red.async if there is an operation, of `values` of `size` bytes."""
    token = group.tracker.issue("asynchronous store", generic=True)
    writes = []
    for lane in group.active(m).tolist():
        where, bar = lane_of(address, lane), find(group, lane_of(barrier, lane))
        region, offset = locate(group, None, where & M32, size * len(values), "shared")
        cta = group.cta.peers[(where & M32) >> RANK_SHIFT]
        if bar.cta is not cta:
            raise Fault("an asynchronous store and its mbarrier must lie in the same CTA's shared memory")
        token.write_cells(cta, offset, size * len(values), bar)
        writes.append((region.view(size), offset // size, [lane_of(v, lane) for v in values], bar))

    def finish() -> None:
        for view, at, numbers, bar in writes:
            for i, number in enumerate(numbers):
                old = view[at + i : at + i + 1]
                new = np.array([number]).astype(old.dtype)
                old[:] = new if operation is None else combine(operation, kind, old, [new], False)
            complete(bar, size * len(numbers), token)

    group.device.submit(finish)
