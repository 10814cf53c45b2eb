# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations that warps have issued and not waited for.

Source: PTX ISA 9.0, 9.7.9.25 (bulk groups, cp.async groups), 9.7.16.7 (wgmma groups).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

WARPS = 4  # warps of a warpgroup, PTX ISA 9.7.16.1


class Pending:
    """Operations of one kind: the uncommitted ones, and committed groups without a wait."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.groups: list[Any] = []

    def commit(self) -> None:
        """Commit the open operations as a group."""
        self.groups.append(self.open)
        self.open = []

    def all(self) -> Iterator[Any]:
        """All operations, the oldest first."""
        for group in (*self.groups, self.open):
            yield from group

    def copy(self) -> Pending:
        """The same operations, for a new group of warps."""
        new = Pending()
        new.open, new.groups = list(self.open), list(self.groups)
        return new


class AsyncCopy:
    """The copies of one cp.async instruction."""

    def __init__(self, action: Callable[[], None], token: Any) -> None:
        self.action, self.token = action, token
        self.done = False
        self.awaited = False  # whether a wait or an mbarrier covers it

    def finish(self) -> None:
        """Copy, once."""
        if not self.done:
            self.done = True
            self.action()


class BulkStore(AsyncCopy):
    """A store that first reads shared memory and later writes global memory."""

    def __init__(
        self, read: Callable[[], np.ndarray], write: Callable[[np.ndarray], None], token: Any
    ) -> None:
        self.read = functools.cache(read)
        super().__init__(lambda: write(self.read()), token)


class Batch(list[Any]):
    """The wgmmas of one commit; `upto` is the number of wgmmas that the warps have committed so far."""

    def __init__(self, upto: int, wgmmas: list[Any]) -> None:
        super().__init__(wgmmas)
        self.upto = upto


class Warpgroup:
    """Four warps that execute a wgmma together: it begins when all have issued it, and a wait of one covers all.

    Measured on an H200: a warp that is late by 200,000 cycles blocks the other three at their issue, and no wait of a
    warp returns before it (benchmarks/NOTES-emulator.md).
    """

    def __init__(self, first: int, warps: int) -> None:
        self.first = first
        self.issued = [0] * min(WARPS, warps - first)  # wgmmas that each warp has committed
        self.waited = [0] * len(self.issued)  # wgmmas that each warp has waited for
        self.batches: list[Batch] = []

    @property
    def together(self) -> int:
        """The number of wgmmas that all warps have issued."""
        return min(self.issued)

    def upto(self, number: int) -> list[Any]:
        """The first `number` wgmmas of every warp."""
        return [p for batch in self.batches if batch.upto <= number for p in batch]

    def note(self, counts: list[int], warps: list[int], number: int) -> None:
        """Set `counts`, which is `issued` or `waited`, of some warps."""
        for warp in warps:
            if warp // WARPS == self.first // WARPS:
                counts[warp % WARPS] = number

    def forget(self) -> None:
        """Drop the batches that every warp has waited for."""
        least = min(self.waited)
        self.batches = [batch for batch in self.batches if batch.upto > least]

    def __str__(self) -> str:
        return f"the warpgroup of warps {self.first}..{self.first + len(self.issued) - 1}, which issued {self.issued}"
