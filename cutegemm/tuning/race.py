# SPDX-License-Identifier: Apache-2.0
"""Times several candidates in interleaved rounds; slow ones stop early, and a win must be significant."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cutegemm.tuning import interval
from cutegemm.tuning.timing import Replayer, Sampler, orders

# A candidate stops if its best sample exceeds the leader's median by this factor after a pair of rounds. Samples of one
# kernel differ by 3 % at the power cap.
BEHIND = (1.15, 1.08, 1.05, 1.04)
# pairs of rounds of candidates that do not stop
PAIRS = 5
# of the interval of a win; a candidate of equal speed wins once in twenty
CONFIDENCE = 0.9


# FLOP of a GEMM from which repeating it reaches the power cap: 64 x 8192 x 28672 runs at 1,455 of 1,980 MHz, 1024^3 at
# 1,950 (H200, benchmarks/results/gemm.json)
CAPPED_FLOPS = 15 * 10**9


@dataclass(frozen=True)
class Regime:
    """The lengths of a race."""

    preheat: float = 0.3  # seconds of work before the first round, until the clock is the sustained one
    sample: float = 0.03  # seconds of a sample
    capped: float = 0.1  # the same for GEMMs that reach the power cap, where the clock settles slowly
    pairs: int = PAIRS  # pairs of rounds of candidates that do not stop

    def sample_of(self, flops: int) -> float:
        """Seconds of a sample of a GEMM of so many FLOP."""
        return max(self.sample, self.capped) if flops >= CAPPED_FLOPS else self.sample


@dataclass(frozen=True)
class Times:
    """Samples of one candidate, microseconds per call, in the order of rounds."""

    us: tuple[float, ...]

    @property
    def median(self) -> float:
        """Microseconds per call."""
        return statistics.median(self.us)

    @property
    def spread(self) -> float:
        """The interquartile range, relative to the median."""
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
        entries: one per candidate.
        device: they run on.
        regime: lengths of the race.
        stays: name of the candidate that others are compared with, which never stops early.
        on_round: called after every round.

    Returns:
        The samples by name; candidates that stopped early have fewer.
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
    """Whether a challenger is significantly faster than the holder.

    The ratios compare samples of the same round, which slow drift of temperature and clock affects alike. The
    confidence interval of their centre (`interval.paired`) must be above 1. Two pairs of rounds are never significant.
    """
    ratios = [y / x for x, y in zip(challenger.us, holder.us)]
    low = interval.paired([ratio - 1 for ratio in ratios], CONFIDENCE).low
    return low is not None and low > 0
