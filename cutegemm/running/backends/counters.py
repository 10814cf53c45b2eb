# SPDX-License-Identifier: Apache-2.0
"""Ownership of counters on a GPU: launches on one stream share theirs; a captured call has its own.

Counters are zero on entry and reset on exit (`kernels.schedule.launch_counters`), so memory is zeroed once, not in
every run. Two launches must not use the same counters at the same time:

    calls on a stream       run one after another, from any thread and of any kind; a launch that starts early waits
                            for the end of the previous one before it uses counters
    a captured call         may be replayed on any stream, so it keeps its counters; replays of one graph run one after
                            another, and two graphs have two captured calls

A launch runs completely or not at all, except after an error that ends the process's use of the GPU. So counters are
zero also after a run that stopped between its launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

CHUNK = 1 << 20  # bytes zeroed at once, enough for thousands of captured calls
LEAST = 1 << 13  # minimum bytes for a stream
ALIGN = 128

Zeros = Callable[[int], tuple[int, object]]  # bytes -> address of zeroed memory, and its owner


class Counters:
    """The counters of one device."""

    def __init__(self, zeros: Zeros) -> None:
        self._zeros = zeros
        self._lock = threading.Lock()
        self._kept: list[object] = []
        self._next, self._end = 0, 0
        self._streams: dict[int, tuple[int, int]] = {}

    def of_stream(self, stream: int, need: int) -> int:
        """The address of at least `need` bytes that calls on a stream share until one needs more."""
        place, size = self._streams.get(stream, (0, 0))
        if size < need:
            with self._lock:
                size = max(need, LEAST)
                self._fill(size)
                place = self._take(size)
                self._streams[stream] = place, size
        return place

    def of_capture(self, need: int) -> int | None:
        """The address of `need` bytes for exclusive use; None if `reserve` left too few."""
        with self._lock:
            return self._take(need) if need <= self._end - self._next else None

    def reserve(self, need: int) -> None:
        """Reserve bytes for many captured calls. Must not be called while the thread captures."""
        with self._lock:
            self._fill(max(need, CHUNK // 2))

    def _fill(self, need: int) -> None:
        if self._end - self._next < need:
            size = max(2 * need, CHUNK)
            self._next, kept = self._zeros(size)
            self._end = self._next + size
            self._kept.append(kept)

    def _take(self, need: int) -> int:
        place = self._next
        self._next += -(-need // ALIGN) * ALIGN
        return place


def zeros(index: int, size: int) -> tuple[int, torch.Tensor]:
    """Zeroed memory of a device, allocated by another thread with the default pool, stream and mode."""

    def make() -> torch.Tensor:
        with torch.cuda.device(index):
            made = torch.zeros(size, dtype=torch.uint8, device="cuda")
            torch.cuda.current_stream().synchronize()
        return made

    with ThreadPoolExecutor(1) as other:
        kept = other.submit(make).result()
    return kept.data_ptr(), kept


_owners: dict[int, Counters] = {}
_lock = threading.Lock()


def owner(index: int) -> Counters:
    """The counters of a device."""
    found = _owners.get(index)
    if found is None:
        with _lock:
            found = _owners.setdefault(index, Counters(lambda size: zeros(index, size)))
    return found


__all__ = ["Counters", "owner", "zeros"]
