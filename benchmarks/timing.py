# SPDX-License-Identifier: Apache-2.0
"""Device time of several contenders on the same problem, interleaved, by replaying CUDA graphs.

Every contender gets one graph that walks over all input sets. A round times each contender once. Rounds come in
pairs, the second in the reverse order of the first, and pairs begin with another contender in turn: whoever comes
second reads slow, and drift of clock and temperature falls on all alike. Everything that touches the GPU is behind
`Device`; tests put a fake in its place.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from benchmarks.results import Measurement

GRAPH_SECONDS = 1e-3  # least work in one graph, so that gaps between replays do not count
POLL_SECONDS = 5e-3  # between two readings of clock and power


@dataclass(frozen=True)
class Contender:
    """A named way to solve a problem: `call(inputs)` enqueues its launches on the current stream."""

    name: str
    call: Callable[[Any], Any]
    plan: str | None = None


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How hot the chip is while it is timed.

    Attributes:
        name: as it stands in a results file.
        preheat: seconds of work before the first round.
        rest: idle seconds before every sample.
        sample: seconds of work a sample holds at least.
        rounds: samples per contender; even, so that both orders are as many.
    """

    name: str
    preheat: float
    rest: float
    sample: float
    rounds: int


REGIMES = {
    "burst": Regime(name="burst", preheat=0.0, rest=0.1, sample=0.005, rounds=10),
    "sustained": Regime(name="sustained", preheat=0.3, rest=0.0, sample=0.1, rounds=8),
}


class Readable(Protocol):
    """Something that reads (SM clock in MHz, power in W)."""

    def read(self) -> tuple[float, float]: ...


class Replayer(Protocol):
    """What captures work and times it: a GPU, or a fake in tests."""

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]: ...

    def time(self, work: Callable[[], None], on_wait: Callable[[], None] | None = None) -> float: ...

    def rest(self, seconds: float) -> None: ...


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
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        while on_wait is not None and not end.query():
            on_wait()
            time.sleep(POLL_SECONDS)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # elapsed_time is in milliseconds

    def rest(self, seconds: float) -> None:
        """Leave the GPU idle."""
        torch.cuda.synchronize()
        time.sleep(seconds)


class _Entry:
    """A contender's graph and its samples so far."""

    def __init__(self, contender: Contender, sets: list[Any], device: Replayer, sample: float) -> None:
        def one_pass() -> None:
            for inputs in sets:
                contender.call(inputs)

        one_pass()  # compiles, loads modules and creates handles, none of which a capture may do
        passes = max(1, math.ceil(GRAPH_SECONDS / device.time(one_pass)))

        def launches() -> None:
            for _ in range(passes):
                one_pass()

        self.name = contender.name
        self.calls = passes * len(sets)  # in one graph
        self.replay = device.capture(launches)
        self.replay()  # the first replay uploads the graph
        self.replays = max(1, math.ceil(sample / device.time(self.replay)))
        self.us: list[float] = []
        self.readings: list[tuple[float, float]] = []

    def work(self) -> None:
        for _ in range(self.replays):
            self.replay()

    def measure(self, device: Replayer, sensors: Readable | None) -> float:
        """Take one sample; returns its seconds. Readings of its first half still show what ran before it."""
        readings: list[tuple[float, float]] = []
        self.replay()  # brings the clock up and replaces the previous contender's lines in L2
        seconds = device.time(self.work, None if sensors is None else lambda: readings.append(sensors.read()))
        self.us.append(seconds / (self.replays * self.calls) * 1e6)
        self.readings += readings[len(readings) // 2 :]
        return seconds

    def result(self) -> Measurement:
        clocks, watts = zip(*self.readings, strict=True) if self.readings else (None, None)
        return Measurement(
            us=statistics.median(self.us),
            us_min=min(self.us),
            us_max=max(self.us),
            rounds=len(self.us),
            sm_mhz=statistics.median(clocks) if clocks else None,
            watts=statistics.median(watts) if watts else None,
            samples=tuple(self.us),
        )


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


def measure(
    contenders: list[Contender],
    sets: list[Any],
    regime: Regime,
    *,
    device: Replayer,
    sensors: Readable | None = None,
    seed: int = 0,
) -> dict[str, Measurement]:
    """Time contenders against each other on one problem.

    Args:
        contenders: all of them have run on these inputs before, and were right.
        sets: input sets to rotate over.
        regime: rounds, their length and what comes before them.
        sensors: read while samples run.
        seed: of the order of contenders in the first round.

    Returns:
        Microseconds a call, per contender, in the order given.
    """
    entries = [_Entry(contender, sets, device, regime.sample) for contender in contenders]
    heated = 0.0
    while entries and heated < regime.preheat:
        heated += sum(device.time(entry.work) for entry in entries)
    for order in orders(entries, regime.rounds, seed):
        for entry in order:
            if regime.rest:
                device.rest(regime.rest)
            entry.measure(device, sensors)
    return {entry.name: entry.result() for entry in entries}
