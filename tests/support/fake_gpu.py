# SPDX-License-Identifier: Apache-2.0
"""A GPU whose clock is a number: launches run on the CPU, and cost what they are said to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.timing import Contender

ENVIRONMENT = {
    "gpu": "H200",
    "torch": "2.11",
    "date": "2026-01-02T10:00:00",
    "commit": "c" * 40,
    "sources": "d",
}


class FakeGpu:
    """Replays of a captured graph launch the same again.

    Attributes:
        now: seconds on its clock.
        log: who ran, in order, each run once; "rest" among them.
        touched: the inputs of every launch.
        slowdown: factor on what launches cost from now on.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.touched: list[Any] = []
        self.slowdown = 1.0

    def contender(self, name: str, seconds: float) -> Contender:
        """One that takes so many seconds a call and computes nothing."""
        return self.costing(Contender(name, lambda inputs: None), seconds)

    def costing(self, contender: Contender, seconds: float) -> Contender:
        """The contender, taking so many seconds a call beside what it computes."""

        def call(inputs: Any) -> None:
            contender.call(inputs)
            self.now += seconds * self.slowdown
            self.touched.append(inputs)
            if self.log[-1:] != [contender.name]:
                self.log.append(contender.name)

        return Contender(contender.name, call, contender.plan)

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """The launches themselves."""
        return launch

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds on its clock; `on_wait` is called four times."""
        start = self.now
        work()
        for _ in range(4 if on_wait else 0):
            assert on_wait is not None
            on_wait()
        return self.now - start

    def rest(self, seconds: float) -> None:
        """Let the clock go on."""
        self.now += seconds
        self.log.append("rest")
