# SPDX-License-Identifier: Apache-2.0
"""Who owns counters on a GPU: launches of one stream share theirs, a captured call has its own.

A kernel finds its counters zero and leaves them zero (`kernels.schedule.launch_counters`), so that memory is zeroed
once and not by every run. No two launches may count at once in one place:

    calls on a stream       come one after the other, whichever threads and kinds they are of; a launch that begins
                            early waits for the one before it to end before it counts
    a captured call         may be replayed on any stream, so that it keeps what it was given; replays of one graph come
                            one after the other, and two graphs hold two captured calls

A launch runs whole or not at all, but for one that ends its process' use of the GPU; so a run that was abandoned
between its launches leaves zeros, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

CHUNK = 1 << 20  # bytes zeroed at once: of some thousand captured calls
LEAST = 1 << 13  # bytes of a stream
ALIGN = 128

Zeros = Callable[[int], tuple[int, object]]  # bytes -> their address once they are zero, and what keeps them


class Counters:
    """The counters of one device."""

    def __init__(self, zeros: Zeros) -> None:
        self._zeros = zeros
        self._lock = threading.Lock()
        self._kept: list[object] = []
        self._next, self._end = 0, 0
        self._streams: dict[int, tuple[int, int]] = {}

    def of_stream(self, stream: int, need: int) -> int:
        """The address of `need` bytes for calls on a stream; the same for all of them until one needs more."""
        place, size = self._streams.get(stream, (0, 0))
        if size < need:
            with self._lock:
                size = max(need, LEAST)
                self._fill(size)
                place = self._take(size)
                self._streams[stream] = place, size
        return place

    def of_capture(self, need: int) -> int | None:
        """The address of `need` bytes that nobody else will have; None where `reserve` left too few."""
        with self._lock:
            return self._take(need) if need <= self._end - self._next else None

    def reserve(self, need: int) -> None:
        """Have bytes for many captured calls at hand; not while the thread captures."""
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
    """Zeroed memory of a device, whatever pool, stream or mode the thread has set: another thread asks for it."""

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
