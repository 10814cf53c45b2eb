# SPDX-License-Identifier: Apache-2.0
"""Bulk copies of contiguous bytes, their groups, and what tensor copies share with them; asynchronous stores.

st.async and red.async are not ordered with their thread's later accesses; who waits for the mbarrier sees them. They
belong to the generic proxy, so no proxy fence is asked for.

Source: PTX ISA 9.0, 9.7.9.12 (st.async), 9.7.9.25 (cp.async.bulk, its groups and their waits), 9.7.13.8 (red.async).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers.types import Bytes, Chunks, Mask, Value
from cutegemm.emulator.numbers.values import M32, ND, lane_of
from cutegemm.emulator.state.clusters import CTA, MBarrier
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Token
from cutegemm.emulator.state.memory import OFFSET_MASK, RANK_SHIFT, Fault, MemoryRegion
from cutegemm.emulator.state.pending import BulkStore
from cutegemm.emulator.units.access import locate
from cutegemm.emulator.units.atomics import combine, reduce_bytes
from cutegemm.emulator.units.barriers import find

Reduction: TypeAlias = tuple[str, str, int]  # operation, type, bytes of an element


def distinct(group: WarpSet, m: Mask, *operands: Any) -> list[tuple[Any, ...]]:
    """Operands of the distinct requests: one per warp, since ptxas issues a bulk instruction once per warp."""
    if m is None and len(group.warps) == 1 and not any(o.__class__ is ND for o in operands):
        return [operands]
    if m is not None and np.count_nonzero(m) == 1:
        lane = int(m.argmax())
        return [tuple([int(o[lane]) if o.__class__ is ND else o for o in operands])]
    out, seen = [], set()
    for lane in range(group.lanes) if m is None else np.flatnonzero(m).tolist():
        key = (lane >> 5, *(lane_of(o, lane) for o in operands))
        if key not in seen:
            seen.add(key)
            out.append(key[1:])
    return out


def ranks_of(destination: int, multicast: int | None) -> list[int]:
    """The CTAs of a cluster that a load writes to."""
    if multicast is None:
        return [destination >> RANK_SHIFT & 0xFF]
    return [r for r in range(16) if multicast >> r & 1]


def announce(token: Token, ctas: list[CTA], bars: list[MBarrier], chunks: Chunks) -> None:
    """Report, at issue, what a load will write and where it will complete."""
    for cta, bar in zip(ctas, bars, strict=True):
        token.write_shared(cta, chunks)
        token.uses(bar)


def complete(bar: MBarrier, amount: int, token: Token) -> None:
    """complete_tx of `amount` bytes on an mbarrier."""
    bar.cta.must_live("a copy completes")
    token.complete_on(bar, amount)
    bar.expect(-amount)
    bar.advance()


def issue_store(
    group: WarpSet, chunks: Chunks, inner: int, token: Token, write: Callable[[np.ndarray], None]
) -> None:
    """A store of shared chunks, `inner` bytes a row, joins the open bulk group."""
    device = group.device

    def finish(data: np.ndarray) -> None:
        write(data)
        device.events += 1

    store = BulkStore(group.cta.shared, chunks, inner, token, finish)
    group.bulk.open.append(store)
    device.events += 1
    device.completion.store(store)


def bulk_wait(group: WarpSet, m: Mask, pending: int, read_only: bool) -> None:
    """cp.async.bulk.wait_group[.read]: all but the last `pending` groups have been read (or are complete)."""
    groups = group.bulk.groups
    finished = groups[: max(len(groups) - pending, 0)]
    group.device.watch.waited_for(finished, group.program)
    for stores in finished:
        for store in stores:
            store.read()
            store.awaited = True
            if not read_only:
                store.finish()
            group.tracker.done(store.token, not read_only)
    if not read_only:
        del groups[: len(finished)]


def _run(group: WarpSet, shared: int, size: int, other: int | None = None) -> np.ndarray:
    """16-byte chunk numbers of a run of bytes in shared memory.

    Raises:
        Fault: an address or the size is not 16-byte aligned, or the run leaves shared memory.
    """
    offset = shared & OFFSET_MASK
    if size % 16 or offset % 16 or (other or 0) % 16:
        raise Fault(f"bulk copy of {size} bytes, shared offset {offset:#x}: not 16-byte aligned")
    region = group.cta.shared
    if offset < region.first or offset + size > region.size:
        raise Fault(f"bulk copy of {size} bytes at shared offset {offset:#x} leaves shared memory")
    return np.arange(offset // 16, (offset + size) // 16)


def _global_run(group: WarpSet, address: int, size: int) -> MemoryRegion:
    region = group.device.memory.find(address, address + size)
    if region is None:
        raise Fault(f"bulk copy of {size} bytes at {address:#x}: {group.device.memory.describe(address)}")
    return region


def bulk_load(
    group: WarpSet,
    m: Mask,
    destination: Value,
    source: Value,
    size: Value,
    barrier: Value,
    multicast: Value | None,
) -> None:
    """cp.async.bulk from global to shared memory: `size` bytes in a row."""
    for d, s, n, bar, mask in distinct(group, m, destination, source, size, barrier, multicast):
        chunks = _run(group, d, n, s)
        region = _global_run(group, s, n)
        ranks = ranks_of(d, mask)
        bars = [find(group, bar & OFFSET_MASK | r << RANK_SHIFT) for r in ranks]
        ctas = [group.cta.peers[r] for r in ranks]
        token = group.tracker.issue("bulk load", m=m)
        start = s - region.base
        token.read_global(region, (start, (n,), ()))
        announce(token, ctas, bars, chunks)
        group.device.watch.bulk(region, start, n, False, len(ctas))
        group.device.submit(functools.partial(_finish_bulk, region.data, start, n, chunks, ctas, bars, token))


def _finish_bulk(
    data: Bytes,
    start: int,
    size: int,
    chunks: Chunks,
    ctas: list[CTA],
    bars: list[MBarrier],
    token: Token,
) -> None:
    moved = data[start : start + size].copy().view("V16")
    for cta, bar in zip(ctas, bars, strict=True):
        cta.shared.view(16)[chunks] = moved
        complete(bar, size, token)


def bulk_exchange(
    group: WarpSet,
    m: Mask,
    destination: Value,
    source: Value,
    size: Value,
    barrier: Value,
    reduction: Reduction | None,
) -> None:
    """cp.async.bulk (or cp.reduce: (operation, type, bytes)) from this CTA's shared memory to one of the cluster."""
    for d, s, n, bar in distinct(group, m, destination, source, size, barrier):
        chunks, origin = _run(group, d, n), _run(group, s, n)
        arrives = find(group, bar)
        cta = group.cta.peers[d >> RANK_SHIFT & 0xFF]
        if arrives.cta is not cta:
            raise Fault("a bulk copy and its mbarrier must lie in the same CTA's shared memory")
        token = group.tracker.issue("bulk copy", m=m)
        token.read_shared(group.cta, origin)
        announce(token, [cta], [arrives], chunks)
        group.device.submit(
            functools.partial(_finish_exchange, group.cta, origin, cta, chunks, arrives, n, reduction, token)
        )


def _finish_exchange(
    source: CTA,
    origin: Chunks,
    cta: CTA,
    chunks: Chunks,
    bar: MBarrier,
    size: int,
    reduction: Reduction | None,
    token: Token,
) -> None:
    data = source.shared.view(16)[origin]
    target = cta.shared.view(16)
    if reduction is not None:
        operation, kind, item = reduction
        old = target[chunks].view(np.uint8)
        data = reduce_bytes(old, data.view(np.uint8), kind, item, operation).view("V16")
    target[chunks] = data
    complete(bar, size, token)


def bulk_store(
    group: WarpSet,
    m: Mask,
    destination: Value,
    source: Value,
    size: Value,
    reduction: Reduction | None = None,
) -> None:
    """cp.async.bulk (or cp.reduce with (operation, type, bytes)) from shared to global memory."""
    for d, s, n in distinct(group, m, destination, source, size):
        chunks = _run(group, s, n, d)
        region = _global_run(group, d, n)
        token = group.tracker.issue("bulk store", m=m)
        start = d - region.base
        token.read_shared(group.cta, chunks)
        token.write_global(region, (start, (n,), ()), reduction is not None)
        write = functools.partial(_write, region.data, start, n, reduction)
        group.device.watch.bulk(region, start, n, True, 1)
        issue_store(group, chunks, n, token, write)


def _write(memory: Bytes, start: int, size: int, reduction: Reduction | None, data: Bytes) -> None:
    new = data.ravel()
    if reduction is not None:
        operation, kind, item = reduction
        old = np.ascontiguousarray(memory[start : start + size])
        new = reduce_bytes(old, np.ascontiguousarray(new), kind, item, operation)
    memory[start : start + size] = new


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
    """One st.async (or, with an operation, red.async) per active lane, `values` of `size` bytes each."""
    token = group.tracker.issue("asynchronous store", generic=True)
    writes = []
    for lane in range(group.lanes) if m is None else np.flatnonzero(m).tolist():
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
