# SPDX-License-Identifier: Apache-2.0
"""Bulk copies: stores under way and their groups, plain runs of bytes, and what tensor copies share with them.

Source: PTX ISA 9.0, 9.7.9.25 (cp.async.bulk, its groups and their waits).
"""

from __future__ import annotations

import functools

import numpy as np

from cutegemm.emulator.memory import OFFSET_MASK, Fault, Region, lane_of
from cutegemm.emulator.program import RANK_SHIFT
from cutegemm.emulator.values import ND


def distinct(group, m, *operands):
    """Operands of the distinct requests: one per warp, since ptxas issues a bulk instruction once per warp."""
    if m is None and len(group.warps) == 1 and not any(o.__class__ is ND for o in operands):
        return [operands]
    out, seen = [], set()
    for lane in range(group.lanes) if m is None else np.flatnonzero(m).tolist():
        key = (lane >> 5, *(lane_of(o, lane) for o in operands))
        if key not in seen:
            seen.add(key)
            out.append(key[1:])
    return out


def announce(token, ctas, bars, chunks) -> None:
    """Tell the race detector, at issue, what a load will write and where it will complete."""
    if token is not None:
        for cta, bar in zip(ctas, bars, strict=True):
            token.write_shared(cta, chunks)
            token.uses(bar)


def complete(bar, amount: int, token=None) -> None:
    """complete_tx of `amount` bytes on an mbarrier."""
    bar.cta.must_live("a copy completes")
    if token is not None:
        token.complete_on(bar)
    bar.tx -= amount
    bar.advance()


class BulkStore:
    """A store under way: first its shared bytes are read, later its global bytes are written."""

    def __init__(self, cta, chunks, write, inner: int, token):
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


def bulk_commit(group, m) -> None:
    """cp.async.bulk.commit_group."""
    group.bulk_groups.append(group.bulk_open)
    group.bulk_open = []


def bulk_wait(group, m, pending, read_only) -> None:
    """cp.async.bulk.wait_group[.read]: all but the last `pending` groups have been read (or are complete)."""
    finished = group.bulk_groups[: max(len(group.bulk_groups) - pending, 0)]
    for stores in finished:
        for store in stores:
            store.read()
            store.awaited = True
            if not read_only:
                store.finish()
            if group.tracker is not None:
                group.tracker.done(store.token)
    if not read_only:
        del group.bulk_groups[: len(finished)]


def bulk_load(group, m, destination, source, size, barrier, multicast) -> None:
    """cp.async.bulk from global to shared memory: `size` bytes in a row."""
    for d, s, n, bar, mask in distinct(group, m, destination, source, size, barrier, multicast):
        region = group.device.memory.find(s, s + n)
        offset = d & OFFSET_MASK
        if region is None or s % 16 or offset % 16 or n % 16:
            raise Fault(
                f"bulk copy of {n} bytes from {s:#x} to shared offset {offset:#x}: "
                f"{group.device.memory.describe(s)}, or not 16-byte aligned"
            )
        peers = group.cta.peers
        ranks = [d >> RANK_SHIFT & 0xFF] if mask is None else [r for r in range(len(peers)) if mask >> r & 1]
        chunks = np.arange(offset // 16, (offset + n) // 16)
        token = None if group.tracker is None else group.tracker.issue("bulk load")
        bars = [peers[r].mbarriers[bar & OFFSET_MASK] for r in ranks]
        announce(token, [peers[r] for r in ranks], bars, chunks)
        group.device.submit(
            functools.partial(
                _finish_bulk, region, s - region.base, n, chunks, [peers[r] for r in ranks], bars, token
            )
        )


def _finish_bulk(region: Region, start: int, size: int, chunks, ctas, bars, token) -> None:
    data = region.data[start : start + size].copy().view("V16")
    for cta, bar in zip(ctas, bars, strict=True):
        cta.shared.view(16)[chunks] = data
        complete(bar, size, token)


def bulk_store(group, m, destination, source, size) -> None:
    """cp.async.bulk from shared to global memory."""
    for d, s, n in distinct(group, m, destination, source, size):
        region = group.device.memory.find(d, d + n)
        offset = s & OFFSET_MASK
        if region is None or d % 16 or offset % 16 or n % 16:
            raise Fault(
                f"bulk copy of {n} bytes from shared offset {offset:#x} to {d:#x}: "
                f"{group.device.memory.describe(d)}, or not 16-byte aligned"
            )
        chunks = np.arange(offset // 16, (offset + n) // 16)
        token = None if group.tracker is None else group.tracker.issue("bulk store")
        if token is not None:
            token.read_shared(group.cta, chunks)
        start = d - region.base

        def write(data, region=region, start=start, n=n):
            region.data[start : start + n] = data.ravel()

        group.bulk_open.append(BulkStore(group.cta, chunks, write, n, token))
        group.device.note_store(group.bulk_open[-1])
