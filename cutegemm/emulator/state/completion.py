# SPDX-License-Identifier: Apache-2.0
"""When asynchronous operations complete and in which order warps run: one class for each policy.

eager    copies and wgmma complete when they are issued (committed)
lazy     they complete as late as the program allows: loads when nothing else can run, stores and wgmma at the
         wait that names them
random   they complete at random, warps run in random order, a third of the CTAs slowly, and try_wait fails
         now and then (seeded)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from cutegemm.emulator.state.pending import BulkStore

SLICE = 4000  # blocks a group runs before others get a time slice
FLAKY = 0.1  # chance of a spurious try_wait failure under the random policy
SLOW = 0.05  # chance that a warp of a slow CTA gets a time slice in a round
SLOW_CTAS = 1 / 3  # chance that a CTA is slow
HAPPENS = 0.3  # chance that one more asynchronous operation completes after a time slice

T = TypeVar("T")


class Eager:
    """Copies and wgmma complete when they are issued. The base class of the policies."""

    at_once = True  # whether cp.async copies when it is issued
    starts_all = False  # whether as many clusters as fit start together

    def __init__(self, seed: int) -> None:
        self.queue: deque[Callable[[], None]] = deque()  # copies under way

    def submit(self, action: Callable[[], None]) -> None:
        """A copy towards shared memory was issued."""
        action()

    def store(self, store: BulkStore) -> None:
        """A bulk store was issued."""
        store.finish()

    def products(self, compute: Callable[[], None]) -> None:
        """The warps of a warpgroup have committed products, which `compute` computes."""
        compute()

    def finish_copy(self) -> None:
        """Complete one copy under way."""
        self.queue.popleft()()

    def gives_up(self) -> bool:
        """Whether a try_wait fails although its phase is complete."""
        return False

    def pace(self) -> float:
        """The chance that a warp of a new CTA gets a time slice in a round."""
        return 1.0

    def budget(self) -> int:
        """Blocks a group may run in its time slice."""
        return SLICE

    def order(self, groups: list[T], every: bool, pace: Callable[[T], float]) -> list[T]:
        """The groups that get a time slice in a round, in order; all of them if `every`."""
        return groups

    def stir(self) -> None:
        """After a time slice: asynchronous operations may complete."""


class Lazy(Eager):
    """Operations complete as late as the program allows."""

    at_once = False

    def submit(self, action: Callable[[], None]) -> None:
        self.queue.append(action)

    def store(self, store: BulkStore) -> None:
        pass

    def products(self, compute: Callable[[], None]) -> None:
        pass


class Random(Lazy):
    """Operations complete at random."""

    starts_all = True

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.rng = random.Random(seed)
        self.stores: list[BulkStore] = []
        self.committed: list[Callable[[], None]] = []

    def store(self, store: BulkStore) -> None:
        self.stores.append(store)

    def products(self, compute: Callable[[], None]) -> None:
        self.committed.append(compute)

    def finish_copy(self) -> None:
        self.queue.rotate(-self.rng.randrange(len(self.queue)))
        super().finish_copy()

    def gives_up(self) -> bool:
        return self.rng.random() < FLAKY

    def pace(self) -> float:
        return SLOW if self.rng.random() < SLOW_CTAS else 1.0

    def budget(self) -> int:
        return self.rng.randrange(1, 60)

    def order(self, groups: list[T], every: bool, pace: Callable[[T], float]) -> list[T]:
        if not every:
            groups = [g for g in groups if self.rng.random() < pace(g)]
        self.rng.shuffle(groups)
        return groups

    def stir(self) -> None:
        rng = self.rng
        while self.queue and rng.random() < HAPPENS:
            self.finish_copy()
        while self.stores and rng.random() < HAPPENS:
            store = self.stores.pop(rng.randrange(len(self.stores)))
            store.read() if rng.random() < 0.5 else store.finish()
        while self.committed and rng.random() < HAPPENS:
            self.committed.pop(0)()


POLICIES: dict[str, type[Eager]] = {"eager": Eager, "lazy": Lazy, "random": Random}
