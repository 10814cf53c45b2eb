# SPDX-License-Identifier: Apache-2.0
"""Device time by replaying CUDA graphs, and the order in which several are timed beside each other.

Rounds come in pairs, the second in the reverse order of the first, and pairs begin with another one in turn: whoever
comes second reads slow, and drift of clock and temperature falls on all alike. Everything that touches the GPU is
behind `Replayer`; tests put a fake in its place.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

# least work in one graph, seconds, so that gaps between replays do not count
GRAPH_SECONDS = 1e-3
# between two readings of clock and power, seconds
POLL_SECONDS = 5e-3


class Readable(Protocol):
    """Something that reads (SM clock in MHz, power in W)."""

    def read(self) -> tuple[float, float]:
        """Both, now."""
        ...


class Replayer(Protocol):
    """What captures work and times it: a GPU, or a fake in tests."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """What replays the work that `launch` enqueues."""
        ...

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds of what `work` enqueues; `on_wait` is called over and over meanwhile."""
        ...

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""
        ...


class Device:
    """The current CUDA device."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Capture what `launch` enqueues; the result replays it on the current stream."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            launch()
        return graph.replay

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float:
        """Seconds the GPU takes for what `work` enqueues; `on_wait` is called over and over meanwhile."""
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
        """Leave the GPU idle."""
        torch.cuda.synchronize()
        time.sleep(seconds)


class Sampler:
    """One contender's graph and its samples so far.

    Args:
        name: of the contender.
        one_pass: enqueues its calls once, on every set of inputs; has run before.
        calls: in a pass.
        device: what captures and times.
        sample: seconds of work a sample holds at least.

    Attributes:
        us: microseconds a call, of every sample.
        readings: of clock and power meanwhile.
    """

    def __init__(
        self, name: str, one_pass: Callable[[], None], calls: int, device: Replayer, sample: float
    ) -> None:
        # compiles, loads modules and creates handles, none of which a capture may do
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
        """Take one sample; returns its seconds. Readings of its first half still show what ran before it.

        Raises:
            RuntimeError: the device's clock does not tell.
        """
        readings: list[tuple[float, float]] = []
        # brings the clock up and replaces the previous contender's lines in L2
        self.replay()
        seconds = _positive(
            device.time(self.work, None if sensors is None else lambda: readings.append(sensors.read()))
        )
        self.us.append(seconds / (self.replays * self.calls) * 1e6)
        self.readings += readings[len(readings) // 2 :]
        return seconds


def _positive(seconds: float) -> float:
    """A time that something can take.

    Raises:
        RuntimeError: it is none.
    """
    if not 0 < seconds < math.inf:
        raise RuntimeError(f"a call was timed at {seconds} s")
    return seconds


_T = TypeVar("_T")


def orders(items: Sequence[_T], rounds: int, seed: int = 0) -> Iterator[list[_T]]:
    """The order of each round: every second one is the reverse of the one before, pairs begin with another item.

    In as many pairs as there are items each stands at each place equally often.
    """
    drawn = random.Random(seed).sample(list(items), len(items))
    for number in range(rounds):
        turn = number // 2 % max(len(drawn), 1)
        order = drawn[turn:] + drawn[:turn]
        yield order[::-1] if number % 2 else order
