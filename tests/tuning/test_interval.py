# SPDX-License-Identifier: Apache-2.0
"""Intervals from ranks: against enumeration, against published critical values, and by how often they hold."""

import itertools
import math
import random

import pytest

from cutegemm.tuning import interval


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (4, 3), (5, 5)])
def test_rank_sums_against_enumeration(m, n):
    """The counts of inversions are those of all orders of two sets."""
    counts = [0] * (m * n + 1)
    for places in itertools.combinations(range(m + n), m):
        counts[sum(place - i for i, place in enumerate(places))] += 1
    assert list(interval._rank_sums(m, n)) == counts
    assert sum(counts) == math.comb(m + n, m)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_signed_ranks_against_enumeration(n):
    """The counts of rank sums are those of all choices of signs."""
    counts = [0] * (n * (n + 1) // 2 + 1)
    for signs in itertools.product((0, 1), repeat=n):
        counts[sum(sign * rank for rank, sign in enumerate(signs, 1))] += 1
    assert list(interval._signed_ranks(n)) == counts


def test_critical_values_of_the_tables():
    """For 8 and 8 samples at 95 % the tables drop 13 of 64 differences on each side, for 8 pairs 3 of 36 averages."""
    found = interval.shift([8.0 * i for i in range(8)], [float(i) for i in range(8)], 0.95)
    differences = sorted(y - x for x in (8.0 * i for i in range(8)) for y in range(8))
    assert (found.low, found.high) == (differences[13], differences[-14])
    pairs = interval.paired([2.0**i for i in range(8)], 0.95)
    averages = sorted((2.0**i + 2.0**j) / 2 for i in range(8) for j in range(i, 8))
    assert (pairs.low, pairs.high) == (averages[3], averages[-4])


def test_too_few_samples_have_no_bounds():
    """Three against three cannot be sure to 95 %: the estimate stands without bounds."""
    assert interval.shift([1, 2, 3], [11, 12, 13], 0.95) == interval.Interval(None, 10, None)
    assert interval.paired([1.0] * 5, 0.95) == interval.Interval(None, 1.0, None)
    with pytest.raises(ValueError, match="at least one"):
        interval.shift([], [1.0], 0.95)
    with pytest.raises(ValueError, match="at least one"):
        interval.paired([], 0.95)


def test_estimate_moves_with_the_samples_and_an_outlier_does_not():
    """Shifting a set shifts the interval by as much; one wild sample leaves it near."""
    rng = random.Random(1)
    x, y = ([rng.gauss(0, 1) for _ in range(8)] for _ in range(2))
    base, moved = interval.shift(x, y, 0.95), interval.shift(x, [value + 5 for value in y], 0.95)
    assert moved.estimate == pytest.approx(base.estimate + 5) and moved.low == pytest.approx(base.low + 5)
    wild = interval.shift(x, [*y[:-1], 1e6], 0.95)
    assert abs(wild.estimate - base.estimate) < 1.5


@pytest.mark.parametrize("outliers", [False, True])
def test_intervals_hold_as_often_as_they_say(outliers):
    """Of 400 drawn pairs of sets, the true shift lies in the 95 % interval in at least 92 %, outliers or not."""
    rng = random.Random(7)

    def draw(shift: float) -> list[float]:
        return [shift + rng.gauss(0, 1) + (20 if outliers and rng.random() < 0.1 else 0) for _ in range(8)]

    found = [interval.shift(draw(0.0), draw(0.5), 0.95) for _ in range(400)]
    assert sum(i.low <= 0.5 <= i.high for i in found) >= 368
    pairs = [interval.paired([rng.gauss(0.5, 1) for _ in range(8)], 0.95) for _ in range(400)]
    assert sum(i.low <= 0.5 <= i.high for i in pairs) >= 368
