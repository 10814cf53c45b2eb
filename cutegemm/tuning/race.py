# SPDX-License-Identifier: Apache-2.0
"""Several candidates timed beside each other; whoever is clearly behind stops early, and a win must be clear."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cutegemm.tuning import interval
from cutegemm.tuning.timing import Replayer, Sampler, orders

# How far behind the leader's median a candidate's best sample may be after each pair of rounds; one further behind
# stops. Samples of one kernel differ by 3 % at the power cap.
BEHIND = (1.15, 1.08, 1.05, 1.04)
# pairs of rounds of those who stay
PAIRS = 5
# that a winner is the faster one: one in twenty that only seem so wins
CONFIDENCE = 0.9


# multiplications and additions of a product from which on repeating it holds a chip at its power cap: 64 x 8192 x 28672
# runs at 1,455 of 1,980 MHz, 1024^3 at 1,950 (H200, benchmarks/results/gemm.json)
CAPPED_FLOPS = 15 * 10**9


@dataclass(frozen=True)
class Regime:
    """How long a race takes.

    Attributes:
        preheat: seconds of work before the first round, which bring the chip to its sustained clock.
        sample: seconds of a sample.
        capped: the same of products that bring the chip to its power cap, where its clock settles that slowly.
        pairs: pairs of rounds of those who stay.
    """

    preheat: float = 0.3
    sample: float = 0.03
    capped: float = 0.1
    pairs: int = PAIRS

    def sample_of(self, flops: int) -> float:
        """Seconds of a sample of a product of so many multiplications and additions."""
        return max(self.sample, self.capped) if flops >= CAPPED_FLOPS else self.sample


@dataclass(frozen=True)
class Times:
    """Samples of one candidate, microseconds a call, in the order of rounds."""

    us: tuple[float, ...]

    @property
    def median(self) -> float:
        """Microseconds a call."""
        return statistics.median(self.us)

    @property
    def spread(self) -> float:
        """The middle half of the samples, relative to their median."""
        if len(self.us) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.us, n=4, method="inclusive")
        return (high - low) / self.median


def race(
    entries: Sequence[Sampler],
    device: Replayer,
    regime: Regime,
    *,
    stays: str,
    on_round: Callable[[], None] = lambda: None,
) -> dict[str, Times]:
    """Time candidates in balanced alternating order.

    Args:
        entries: one for each, by name.
        device: what they run on.
        regime: how long.
        stays: the name of the one that every other is compared with, which never stops early.
        on_round: called after every round.

    Returns:
        The samples by name; of those who stopped early, fewer.
    """
    running = list(entries)
    heated = 0.0
    while heated < regime.preheat:
        heated += sum(device.time(entry.work) for entry in running)
    for pair in range(regime.pairs):
        for order in _pair(running, pair):
            for entry in order:
                entry.measure(device)
            on_round()
        leader = min(statistics.median(x.us) for x in running)
        limit = BEHIND[min(pair, len(BEHIND) - 1)] * leader
        running = [x for x in running if x.name == stays or min(x.us) <= limit]
        if len(running) == 1:
            break
    return {entry.name: Times(tuple(entry.us)) for entry in entries}


def _pair(running: Sequence[Sampler], number: int) -> Iterator[list[Sampler]]:
    """The two orders of a pair of rounds."""
    both = list(orders(running, 2 * number + 2, seed=len(running)))
    yield from both[-2:]


def wins(challenger: Times, holder: Times) -> bool:
    """Whether one is faster than another by more than their ratios differ from round to round.

    Compared are samples of the same rounds, to which a chip's slow drift in temperature and clock does the same: the
    interval that holds the centre of their ratios with `CONFIDENCE` (`interval.paired`) must lie above 1. Two pairs of
    rounds prove nothing.
    """
    ratios = [y / x for x, y in zip(challenger.us, holder.us)]
    low = interval.paired([ratio - 1 for ratio in ratios], CONFIDENCE).low
    return low is not None and low > 0
