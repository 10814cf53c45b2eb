# SPDX-License-Identifier: Apache-2.0
"""When asynchronous work completes and in which order warps run: one policy object each.

eager    copies and products happen when they are issued (committed)
lazy     they happen as late as the program allows: loads when nothing else can move, stores and products at
         the wait that names them
random   they happen at random, warps run in random order, a third of the CTAs slowly, and try_wait fails now
         and then (seeded)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from cutegemm.emulator.state.pending import BulkStore

TURN = 4000  # blocks a group runs before others get a turn
FLAKY = 0.1  # chance of a spurious try_wait failure under the random policy
SLOW = 0.05  # chance that a warp of a slow CTA gets a turn in a round
SLOW_CTAS = 1 / 3  # chance that a CTA is slow
HAPPENS = 0.3  # chance that one more asynchronous operation completes after a turn

T = TypeVar("T")


class Eager:
    """Everything happens when it is issued. The base of the policies: what they all can be asked."""

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
        """Whether a try_wait fails without need."""
        return False

    def pace(self) -> float:
        """The chance of a new CTA's warps to get a turn in a round."""
        return 1.0

    def budget(self) -> int:
        """Blocks a group may run in its turn."""
        return TURN

    def order(self, groups: list[T], every: bool, pace: Callable[[T], float]) -> list[T]:
        """The groups that get a turn in a round, in order; all of them where `every` is asked for."""
        return groups

    def stir(self) -> None:
        """After a turn: some asynchronous work may happen."""


class Lazy(Eager):
    """Everything happens as late as the program allows."""

    at_once = False

    def submit(self, action: Callable[[], None]) -> None:
        self.queue.append(action)

    def store(self, store: BulkStore) -> None:
        pass

    def products(self, compute: Callable[[], None]) -> None:
        pass


class Random(Lazy):
    """Everything happens at random."""

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
