# SPDX-License-Identifier: Apache-2.0
"""A race: balanced alternating order, early stopping, and wins that are clear."""

from __future__ import annotations

import itertools

import pytest

from cutegemm.tuning.race import Regime, Times, race, wins
from cutegemm.tuning.timing import Sampler
from tests.support.fake_gpu import FakeGpu

REGIME = Regime(preheat=0.0, sample=1e-4, pairs=4)


def entries(gpu, **seconds):
    """Samplers whose calls cost what they are said to."""

    def one_pass(name):
        def work():
            gpu.now += seconds[name] * gpu.slowdown
            gpu.log.append(name)

        return work

    return [Sampler(name, one_pass(name), 1, gpu, REGIME.sample) for name in seconds]


def test_products_at_the_power_cap_have_longer_samples():
    """8192^3, 64 x 8192 x 28672; not 1024^3, nor where all samples are as long."""
    regime = Regime(sample=0.01, capped=0.05)
    assert [regime.sample_of(2 * m * n * k) for m, n, k in ((8192,) * 3, (64, 8192, 28672), (1024,) * 3)] == [
        0.05,
        0.05,
        0.01,
    ]
    assert Regime(sample=0.2, capped=0.05).sample_of(2 * 8192**3) == 0.2


def test_rounds_come_in_mirrored_pairs():
    """Whoever comes second in one round comes first in the next, and everyone who stays has as many samples."""
    gpu = FakeGpu()
    found = entries(gpu, a=1e-5, b=1.01e-5, c=1.02e-5)
    gpu.log.clear()
    times = race(found, gpu, REGIME, stays="a")
    order = [name for name, _ in itertools.groupby(gpu.log)]
    # two turns of one name in a row, at the middle of a pair, are one run in the log
    assert order[:5] == order[:3] + order[:2][::-1] and {len(x.us) for x in times.values()} == {8}


def test_who_is_clearly_behind_stops_early():
    """After one pair of rounds what takes 30 % longer is out; what is to stay stays, however slow."""
    gpu = FakeGpu()
    times = race(entries(gpu, a=3e-5, b=1e-5, c=1.3e-5, d=1.06e-5), gpu, REGIME, stays="a")
    assert [len(times[x].us) for x in "abcd"] == [8, 8, 2, 6]
    assert times["b"].median == pytest.approx(10.0) and times["b"].spread == pytest.approx(0.0)


WON = [
    ((100,) * 6, (98,) * 6, True),
    # 1 % faster in every round, while both drift by 4 %
    ((100, 101, 102, 103, 104, 102), (99, 100, 101, 102, 103, 101), True),
    # 1 % faster in the mean of rounds that differ by 4 %
    ((100, 104, 100, 104, 100, 104), (103, 99, 99, 103, 99, 103), False),
    ((100, 104, 100, 104, 100, 104), (98, 94, 94, 98, 94, 98), True),
    # fast once
    ((100,) * 6, (100,) * 5 + (60,), False),
    ((100,) * 6, (100,) * 6, False),
    # two pairs are too few
    ((100,) * 4, (98,) * 4, False),
]


@pytest.mark.parametrize(("holder", "challenger", "won"), WON)
def test_a_win_is_by_more_than_the_spread(holder, challenger, won):
    """The interval of the ratios within rounds must lie above equal times."""
    assert wins(Times(challenger), Times(holder)) is won
