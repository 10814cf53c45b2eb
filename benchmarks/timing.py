# SPDX-License-Identifier: Apache-2.0
"""Device time of several contenders on the same problem, interleaved, by replaying CUDA graphs.

Every contender has one graph that runs over all input sets. A round times each contender once. Rounds come in pairs;
the second reverses the order of the first, and each pair starts with the next contender. So position in the round
and drift of clock and temperature affect all contenders alike (`cutegemm.tuning.timing`). Only `Device` accesses the
GPU; tests replace it with a fake.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.results import Measurement
from cutegemm.tuning.timing import CudaDevice as Device
from cutegemm.tuning.timing import Readable, Replayer, Sampler, orders

__all__ = [
    "REGIMES",
    "Contender",
    "Device",
    "Readable",
    "Regime",
    "Replayer",
    "measure",
    "preheat",
    "sampler",
    "take_samples",
]


@dataclass(frozen=True)
class Contender:
    """A named implementation: `call(inputs)` enqueues its launches on the current stream."""

    name: str
    call: Callable[[Any], Any]
    plan: str | None = None


@dataclass(frozen=True, kw_only=True)
class Regime:
    """The thermal regime of a measurement.

    Attributes:
        name: in a results file.
        preheat: seconds of work before the first round.
        rest: idle seconds before every sample.
        sample: minimum seconds of work in a sample.
        rounds: samples per contender; an even number has each order equally often.
    """

    name: str
    preheat: float
    rest: float
    sample: float
    rounds: int


REGIMES = {
    "burst": Regime(name="burst", preheat=0.0, rest=0.1, sample=0.005, rounds=10),
    "sustained": Regime(name="sustained", preheat=0.3, rest=0.0, sample=0.1, rounds=8),
    # as hot as sustained, since there is no rest between samples, but noisier; used by sweeps over many specs
    "short": Regime(name="short", preheat=0.3, rest=0.0, sample=0.025, rounds=4),
}


def sampler(contender: Contender, sets: list[Any], device: Replayer, sample: float) -> Sampler:
    """A sampler of a contender whose passes cover all input sets and whose samples take `sample` seconds."""

    def one_pass() -> None:
        for inputs in sets:
            contender.call(inputs)

    return Sampler(contender.name, one_pass, len(sets), device, sample)


def preheat(entries: Sequence[Sampler], device: Replayer, seconds: float) -> None:
    """Run all samplers in turn until the GPU has worked for so many seconds."""
    heated = 0.0
    while entries and heated < seconds:
        heated += sum(device.time(entry.work) for entry in entries)


def take_samples(
    entries: Sequence[Sampler],
    rounds: int,
    device: Replayer,
    *,
    seed: int,
    sensors: Readable | None = None,
    before: Callable[[], None] | None = None,
) -> None:
    """Take one sample of every sampler in each round; `before` is called ahead of each sample."""
    for order in orders(entries, rounds, seed):
        for entry in order:
            if before is not None:
                before()
            entry.measure(device, sensors)


def _result(entry: Sampler) -> Measurement:
    clocks, watts = zip(*entry.readings, strict=True) if entry.readings else (None, None)
    return Measurement(
        us=statistics.median(entry.us),
        us_min=min(entry.us),
        us_max=max(entry.us),
        rounds=len(entry.us),
        sm_mhz=statistics.median(clocks) if clocks else None,
        watts=statistics.median(watts) if watts else None,
        samples=tuple(entry.us),
    )


def measure(
    contenders: list[Contender],
    sets: list[Any],
    regime: Regime,
    *,
    device: Replayer,
    sensors: Readable | None = None,
    seed: int = 0,
) -> dict[str, Measurement]:
    """Time contenders on one problem, interleaved.

    Args:
        contenders: all have run on these inputs before and were correct.
        sets: input sets to rotate over.
        regime: number and length of rounds, preheat and rest.
        sensors: read while samples run.
        seed: of the order in the first round.

    Returns:
        Times per contender, in the given order.
    """
    entries = [sampler(contender, sets, device, regime.sample) for contender in contenders]
    preheat(entries, device, regime.preheat)
    rest = partial(device.rest, regime.rest) if regime.rest else None
    take_samples(entries, regime.rounds, device, seed=seed, sensors=sensors, before=rest)
    return {entry.name: _result(entry) for entry in entries}
