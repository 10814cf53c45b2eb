# SPDX-License-Identifier: Apache-2.0
"""Device time from replayed CUDA graphs, and the order of interleaved measurements.

Rounds come in pairs; the second has the reverse order of the first, and each pair starts with the next contender. This
balances the effect of position (the second one measured reads slower) and of drifting clocks and temperature. Only a
`Replayer` touches the GPU; tests use a fake.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

# least work in one graph, seconds, so that gaps between replays are negligible
GRAPH_SECONDS = 1e-3
# seconds between two readings of clock and power
POLL_SECONDS = 5e-3


class Readable(Protocol):
    """A sensor of SM clock and power."""

    def read(self) -> tuple[float, float]:
        """(SM clock in MHz, power in W) now."""
        ...


class Replayer(Protocol):
    """Captures work and times it: a GPU, or a fake in tests."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture what `launch` enqueues; the result replays it on the current stream."""
        ...

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds the device needs for what `work` enqueues; `on_wait` is called repeatedly meanwhile."""
        ...

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""
        ...


class CudaDevice:
    """The current CUDA device."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """See `Replayer`."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            launch()
        return graph.replay

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """See `Replayer`."""
        events: Any = torch.cuda.Event
        start, end = events(enable_timing=True), events(enable_timing=True)
        start.record()
        work()
        end.record()
        while on_wait is not None and not end.query():
            on_wait()
            time.sleep(POLL_SECONDS)
        end.synchronize()
        # elapsed_time is in milliseconds
        return float(start.elapsed_time(end)) / 1e3

    def rest(self, seconds: float) -> None:
        """See `Replayer`."""
        torch.cuda.synchronize()
        time.sleep(seconds)


class Sampler:
    """One contender's graph and its samples so far.

    Args:
        name: of the contender.
        one_pass: enqueues one call on every set of inputs; it has run before.
        calls: in a pass.
        device: captures and times.
        sample: least seconds of work in a sample.

    Attributes:
        us: microseconds per call, of every sample.
        readings: of clock and power during the samples.
    """

    def __init__(
        self, name: str, one_pass: Callable[[], None], calls: int, device: Replayer, sample: float
    ) -> None:
        # compiles, loads modules and creates handles, which is illegal during a capture
        one_pass()
        passes = max(1, math.ceil(GRAPH_SECONDS / _positive(device.time(one_pass))))

        def launches() -> None:
            for _ in range(passes):
                one_pass()

        self.name = name
        # in one graph
        self.calls = passes * calls
        self.replay = device.capture(launches)
        # the first replay uploads the graph
        self.replay()
        self.replays = max(1, math.ceil(sample / _positive(device.time(self.replay))))
        self.us: list[float] = []
        self.readings: list[tuple[float, float]] = []

    def work(self) -> None:
        """Enqueue a sample's work."""
        for _ in range(self.replays):
            self.replay()

    def measure(self, device: Replayer, sensors: Readable | None = None) -> float:
        """Take one sample; returns its seconds. Readings of its first half are dropped: they show the previous work.

        Raises:
            RuntimeError: the device gives no valid time.
        """
        readings: list[tuple[float, float]] = []
        # raises the clock and replaces the previous contender's data in L2
        self.replay()
        seconds = _positive(
            device.time(self.work, None if sensors is None else lambda: readings.append(sensors.read()))
        )
        self.us.append(seconds / (self.replays * self.calls) * 1e6)
        self.readings += readings[len(readings) // 2 :]
        return seconds


def _positive(seconds: float) -> float:
    if not 0 < seconds < math.inf:
        raise RuntimeError(f"a call was timed at {seconds} s")
    return seconds


_T = TypeVar("_T")


def orders(items: Sequence[_T], rounds: int, seed: int = 0) -> Iterator[list[_T]]:
    """The order of each round: pairs of an order and its reverse, each pair starting with the next item.

    After as many pairs as there are items, each item was at each position equally often.
    """
    drawn = random.Random(seed).sample(list(items), len(items))
    for number in range(rounds):
        start = number // 2 % max(len(drawn), 1)
        order = drawn[start:] + drawn[:start]
        yield order[::-1] if number % 2 else order
