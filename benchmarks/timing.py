# SPDX-License-Identifier: Apache-2.0
"""Device time of several contenders on the same problem, interleaved, by replaying CUDA graphs.

Every contender gets one graph that walks over all input sets. A round times each contender once. Rounds come in
pairs, the second in the reverse order of the first, and pairs begin with another contender in turn: whoever comes
second reads slow, and drift of clock and temperature falls on all alike (`cutegemm.tuning.timing`). Everything that
touches the GPU is behind `Device`; tests put a fake in its place.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.results import Measurement
from cutegemm.tuning.timing import CudaDevice as Device
from cutegemm.tuning.timing import Readable, Replayer, Sampler, orders

__all__ = ["REGIMES", "Contender", "Device", "Readable", "Regime", "Replayer", "measure", "orders", "sampler"]


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
    # as hot as sustained, since nothing rests between samples, but noisier: for sweeps over many specs
    "short": Regime(name="short", preheat=0.3, rest=0.0, sample=0.025, rounds=4),
}


def sampler(contender: Contender, sets: list[Any], device: Replayer, sample: float) -> Sampler:
    """What times a contender, in passes over all input sets, for `sample` seconds."""

    def one_pass() -> None:
        for inputs in sets:
            contender.call(inputs)

    return Sampler(contender.name, one_pass, len(sets), device, sample)


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
    entries = [sampler(contender, sets, device, regime.sample) for contender in contenders]
    heated = 0.0
    while entries and heated < regime.preheat:
        heated += sum(device.time(entry.work) for entry in entries)
    for order in orders(entries, regime.rounds, seed):
        for entry in order:
            if regime.rest:
                device.rest(regime.rest)
            entry.measure(device, sensors)
    return {entry.name: _result(entry) for entry in entries}
