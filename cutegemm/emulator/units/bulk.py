# SPDX-License-Identifier: Apache-2.0
"""Bulk copies: stores under way and their groups, plain runs of bytes, and what tensor copies share with them.

Source: PTX ISA 9.0, 9.7.9.25 (cp.async.bulk, its groups and their waits).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.addresses import RANK_SHIFT
from cutegemm.emulator.state.memory import OFFSET_MASK, Fault, Region, lane_of
from cutegemm.emulator.units.barriers import find
from cutegemm.emulator.units.reductions import reduce_bytes

if TYPE_CHECKING:
    from cutegemm.emulator.numbers.types import Bytes, Chunks, Mask, Value
    from cutegemm.emulator.state.group import Group
    from cutegemm.emulator.units.barriers import MBarrier
    from cutegemm.emulator.units.cta import CTA
    from cutegemm.emulator.watch.tracker import AsyncOp

Reduction: TypeAlias = tuple[str, str, int]  # operation, type, bytes of an element


def distinct(group: Group, m: Mask, *operands: Any) -> list[tuple[Any, ...]]:
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


def announce(token: AsyncOp | None, ctas: list[CTA], bars: list[MBarrier], chunks: Chunks) -> None:
    """Tell the race detector, at issue, what a load will write and where it will complete."""
    if token is not None:
        for cta, bar in zip(ctas, bars, strict=True):
            token.write_shared(cta, chunks)
            token.uses(bar)
            token.phases[id(bar)] = bar.phase


def complete(bar: MBarrier, amount: int, token: AsyncOp | None = None) -> None:
    """complete_tx of `amount` bytes on an mbarrier."""
    bar.cta.must_live("a copy completes")
    if token is not None:
        token.complete_on(bar)
        if token.phases.get(id(bar), bar.phase) != bar.phase:
            token.tracker.detector.add(
                "wrong expect_tx",
                f"{bar} completed its phase before a copy of {amount} bytes that was issued for it",
            )
    bar.expect(-amount)
    bar.advance()


class BulkStore:
    """A store under way: first its shared bytes are read, later its global bytes are written."""

    def __init__(
        self, cta: CTA, chunks: Chunks, write: Callable[..., None], inner: int, token: AsyncOp | None
    ) -> None:
        self.cta, self.chunks, self.write, self.inner, self.token = cta, chunks, write, inner, token
        self.data: np.ndarray | None = None
        self.done = self.awaited = False

    def read(self) -> None:
        """Read the source from shared memory, if that has not happened yet."""
        if self.data is None:
            self.data = self.cta.shared.view(16)[self.chunks].view(np.uint8).reshape(-1, self.inner)

    def finish(self) -> None:
        """Write to global memory, if that has not happened yet."""
        if not self.done:
            self.read()
            self.write(data=self.data)
            self.done = True
            self.cta.device.events += 1


def bulk_commit(group: Group, m: Mask) -> None:
    """cp.async.bulk.commit_group."""
    group.bulk_groups.append(group.bulk_open)
    group.bulk_open = []


def bulk_wait(group: Group, m: Mask, pending: int, read_only: bool) -> None:
    """cp.async.bulk.wait_group[.read]: all but the last `pending` groups have been read (or are complete)."""
    finished = group.bulk_groups[: max(len(group.bulk_groups) - pending, 0)]
    group.device.watch.waited_for(finished, group.program)
    for stores in finished:
        for store in stores:
            store.read()
            store.awaited = True
            if not read_only:
                store.finish()
            if group.tracker is not None and store.token is not None:
                group.tracker.done(store.token, not read_only)
    if not read_only:
        del group.bulk_groups[: len(finished)]


def _run(group: Group, shared: int, size: int, other: int | None = None) -> np.ndarray:
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


def _global_run(group: Group, address: int, size: int) -> Region:
    region = group.device.memory.find(address, address + size)
    if region is None:
        raise Fault(f"bulk copy of {size} bytes at {address:#x}: {group.device.memory.describe(address)}")
    return region


def bulk_load(
    group: Group,
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
        peers = group.cta.peers
        ranks = [d >> RANK_SHIFT & 0xFF] if mask is None else [r for r in range(16) if mask >> r & 1]
        bars = [find(group, bar & OFFSET_MASK | r << RANK_SHIFT) for r in ranks]
        ctas = [peers[r] for r in ranks]
        token = None if group.tracker is None else group.tracker.issue("bulk load", m=m)
        start = s - region.base
        if token is not None:
            token.read_global(region, start, n)
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
    token: AsyncOp | None,
) -> None:
    moved = data[start : start + size].copy().view("V16")
    for cta, bar in zip(ctas, bars, strict=True):
        cta.shared.view(16)[chunks] = moved
        complete(bar, size, token)


def bulk_exchange(
    group: Group,
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
        token = None if group.tracker is None else group.tracker.issue("bulk copy", m=m)
        if token is not None:
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
    token: AsyncOp | None,
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
    group: Group, m: Mask, destination: Value, source: Value, size: Value, reduction: Reduction | None = None
) -> None:
    """cp.async.bulk (or cp.reduce with (operation, type, bytes)) from shared to global memory."""
    for d, s, n in distinct(group, m, destination, source, size):
        chunks = _run(group, s, n, d)
        region = _global_run(group, d, n)
        token = None if group.tracker is None else group.tracker.issue("bulk store", m=m)
        start = d - region.base
        if token is not None:
            token.read_shared(group.cta, chunks)
            token.write_global(region, start, n, atomic=reduction is not None)
        write = functools.partial(_write, region.data, start, n, reduction)
        group.device.watch.bulk(region, start, n, True, 1)
        group.bulk_open.append(BulkStore(group.cta, chunks, write, n, token))
        group.device.events += 1
        group.device.completion.store(group.bulk_open[-1])


def _write(memory: Bytes, start: int, size: int, reduction: Reduction | None, data: Bytes) -> None:
    new = data.ravel()
    if reduction is not None:
        operation, kind, item = reduction
        old = np.ascontiguousarray(memory[start : start + size])
        new = reduce_bytes(old, np.ascontiguousarray(new), kind, item, operation)
    memory[start : start + size] = new
