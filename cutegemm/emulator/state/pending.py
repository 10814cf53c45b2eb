# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations under way: what a group of warps issued, committed and has not waited for.

Source: PTX ISA 9.0, 9.7.9.25 (bulk groups, cp.async groups), 9.7.16.7 (wgmma groups).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cutegemm.emulator.numbers.types import Chunks
from cutegemm.emulator.state.hooks import Token
from cutegemm.emulator.state.memory import MemoryRegion

WARPS = 4  # of a warpgroup, PTX ISA 9.7.16.1


class Pending:
    """Operations of one kind: those not yet committed, and committed groups that nobody has waited for."""

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.groups: list[Any] = []

    def commit(self) -> None:
        """Close the open group."""
        self.groups.append(self.open)
        self.open = []

    def all(self) -> Iterator[Any]:
        """Every operation, the oldest first."""
        for group in (*self.groups, self.open):
            yield from group

    def copy(self) -> Pending:
        """The same operations, for a group of warps that was split off."""
        new = Pending()
        new.open, new.groups = list(self.open), list(self.groups)
        return new


class BulkStore:
    """A store under way: first its shared bytes are read, later its global bytes are written."""

    def __init__(
        self,
        shared: MemoryRegion,
        chunks: Chunks,
        inner: int,
        token: Token,
        write: Callable[[np.ndarray], None],
    ) -> None:
        self.shared, self.chunks, self.inner, self.token, self.write = shared, chunks, inner, token, write
        self.data: np.ndarray | None = None
        self.done = self.awaited = False

    def read(self) -> np.ndarray:
        """The source in shared memory, read once."""
        if self.data is None:
            self.data = self.shared.view(16)[self.chunks].view(np.uint8).reshape(-1, self.inner)
        return self.data

    def finish(self) -> None:
        """Write to global memory, if that has not happened yet."""
        if not self.done:
            self.done = True
            self.write(self.read())


class AsyncCopy:
    """The copies of one cp.async instruction, done once."""

    def __init__(self, action: Callable[[], None], token: Token) -> None:
        self.action: Callable[[], None] | None = action
        self.token = token
        self.tracked = False  # whether an mbarrier tells of its completion

    def finish(self) -> None:
        """Copy, if that has not happened yet."""
        if self.action is not None:
            self.action()
            self.action = None


class Batch(list[Any]):
    """The products that some warps of a warpgroup committed together, up to the warps' `upto`-th wgmma."""

    def __init__(self, upto: int, products: list[Any]) -> None:
        super().__init__(products)
        self.upto = upto


class Warpgroup:
    """Four warps whose wgmmas are one operation each: nothing begins before all four have come, one's wait covers all.

    Measured on an H200 (a warp that is late by 200,000 cycles blocks the other three where they issue, and nobody's
    wait returns before it): benchmarks/NOTES-emulator.md.
    """

    def __init__(self, first: int, warps: int) -> None:
        self.first = first
        self.issued = [0] * min(WARPS, warps - first)  # wgmmas each warp has committed
        self.waited = [0] * len(self.issued)  # wgmmas each warp has waited for
        self.batches: list[Batch] = []

    @property
    def together(self) -> int:
        """How many wgmmas all warps have issued."""
        return min(self.issued)

    def upto(self, number: int) -> list[Any]:
        """Every warp's products up to the `number`-th wgmma."""
        return [p for batch in self.batches if batch.upto <= number for p in batch]

    def forget(self) -> None:
        """Drop what every warp has waited for."""
        least = min(self.waited)
        self.batches = [batch for batch in self.batches if batch.upto > least]

    def __str__(self) -> str:
        return f"the warpgroup of warps {self.first}..{self.first + len(self.issued) - 1}, which issued {self.issued}"
