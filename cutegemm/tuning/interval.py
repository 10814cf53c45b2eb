# SPDX-License-Identifier: Apache-2.0
"""Exact confidence intervals of the difference of two sets of samples, without assuming a distribution.

Source: Hodges and Lehmann, "Estimates of location based on rank tests" (1963). The estimate is the median of all
differences. The bounds are order statistics of these differences, which the rank-sum test (two sets) or the signed-rank
test (pairs) selects. A single outlier moves neither estimate nor bounds far.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence bounds, which are None if there are too few samples."""

    low: float | None
    estimate: float
    high: float | None


def shift(before: Sequence[float], after: Sequence[float], confidence: float) -> Interval:
    """By how much the samples of `after` exceed those of `before`; ValueError if a set is empty."""
    differences = sorted(y - x for x in before for y in after)
    if not differences:
        raise ValueError("samples=[]: there must be at least one on each side")
    return _between(differences, _rank_sums(len(before), len(after)), confidence)


def paired(differences: Sequence[float], confidence: float) -> Interval:
    """The centre of differences within pairs; ValueError if there are none."""
    if not differences:
        raise ValueError("differences=[]: there must be at least one")
    walsh = sorted((first + second) / 2 for i, first in enumerate(differences) for second in differences[i:])
    return _between(walsh, _signed_ranks(len(differences)), confidence)


def _between(ordered: Sequence[float], ways: Sequence[int], confidence: float) -> Interval:
    """The median of ordered values, and the innermost two values that enclose it with this confidence.

    `ways[u]` counts the arrangements in which the test's statistic is u; under the null hypothesis all are equally
    likely.
    """
    tail, total, dropped = 0, sum(ways), 0
    for count in ways:
        tail += count
        if 2 * tail > (1 - confidence) * total:
            break
        dropped += 1
    estimate = statistics.median(ordered)
    if dropped == 0:
        return Interval(None, estimate, None)
    return Interval(ordered[dropped - 1], estimate, ordered[-dropped])


@functools.cache
def _rank_sums(m: int, n: int) -> tuple[int, ...]:
    """For u from 0: the number of orders of m and n samples in which u of the m * n pairs are inverted."""
    if m == 0 or n == 0:
        return (1,)
    counts = [0] * (m * n + 1)
    for u, ways in enumerate(_rank_sums(m - 1, n)):  # the greatest sample is of the first set: n inversions
        counts[u + n] += ways
    for u, ways in enumerate(_rank_sums(m, n - 1)):
        counts[u] += ways
    return tuple(counts)


@functools.cache
def _signed_ranks(n: int) -> tuple[int, ...]:
    """For u from 0: the number of the 2**n choices of signs in which the positive ranks sum to u."""
    counts = [1]
    for rank in range(1, n + 1):
        longer = counts + [0] * rank
        for u, ways in enumerate(counts):
            longer[u + rank] += ways
        counts = longer
    return tuple(counts)
