# SPDX-License-Identifier: Apache-2.0
"""Completion policies: when asynchronous operations complete, and in which order warps run.

eager    copies and wgmma complete when they are issued (committed)
lazy     they complete as late as the program allows: loads when nothing else can run, stores and wgmma at the
         wait that names them
random   they complete at random; warps run in random order, those of a third of the CTAs less often; try_wait
         sometimes fails (seeded)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from cutegemm.emulator.state.pending import BulkStore

POLICIES = ("eager", "lazy", "random")
SLICE = 4000  # blocks of a time slice
# For the random policy:
LONGEST = 60  # a time slice has fewer blocks
FLAKY = 0.1  # chance that try_wait fails although its phase is complete
SLOW = 0.05  # chance that a warp of a slow CTA gets a time slice in a round
SLOW_CTAS = 1 / 3  # chance that a CTA is slow
HAPPENS = 0.3  # chance that one more asynchronous operation completes after a time slice


class Completion:
    """Decides when issued operations complete."""

    def __init__(self, policy: str, seed: int) -> None:
        self.eager = policy == "eager"
        self.rng = random.Random(seed) if policy == "random" else None
        self.queue: deque[Callable[[], None]] = deque()  # pending copies to shared memory
        # for the random policy: pending stores and committed wgmmas
        self.stores: list[BulkStore] = []
        self.committed: list[Callable[[], None]] = []

    def submit(self, action: Callable[[], None]) -> None:
        """A copy to shared memory was issued."""
        if self.eager:
            action()
        else:
            self.queue.append(action)

    def store(self, store: BulkStore) -> None:
        """A bulk store was issued."""
        if self.eager:
            store.finish()
        elif self.rng is not None:
            self.stores.append(store)

    def wgmmas(self, compute: Callable[[], None]) -> None:
        """All warps of a warpgroup have committed wgmmas; `compute` computes them."""
        if self.eager:
            compute()
        elif self.rng is not None:
            self.committed.append(compute)

    def finish_copy(self) -> None:
        """Complete one pending copy."""
        if self.rng is not None:
            self.queue.rotate(-self.rng.randrange(len(self.queue)))
        self.queue.popleft()()

    def gives_up(self) -> bool:
        """Whether a try_wait fails although its phase is complete."""
        return self.rng is not None and self.rng.random() < FLAKY

    def pace(self) -> float:
        """The chance that a warp of a new CTA gets a time slice in a round."""
        return SLOW if self.rng is not None and self.rng.random() < SLOW_CTAS else 1.0

    def budget(self) -> int:
        """Blocks of a group's next time slice."""
        return SLICE if self.rng is None else self.rng.randrange(1, LONGEST)

    def order(self, groups: list[Any], every: bool) -> list[Any]:
        """The groups that get a time slice in a round, in order; all groups if `every`."""
        if self.rng is not None:
            rng = self.rng
            groups = [g for g in groups if every or rng.random() < g.cta.pace]
            rng.shuffle(groups)
        return groups

    def stir(self) -> None:
        """Complete some operations at random, after a time slice."""
        rng = self.rng
        if rng is None:
            return
        while self.queue and rng.random() < HAPPENS:
            self.finish_copy()
        while self.stores and rng.random() < HAPPENS:
            store = self.stores.pop(rng.randrange(len(self.stores)))
            store.read() if rng.random() < 0.5 else store.finish()
        while self.committed and rng.random() < HAPPENS:
            self.committed.pop(0)()
