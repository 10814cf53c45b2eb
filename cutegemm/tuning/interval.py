# SPDX-License-Identifier: Apache-2.0
"""How far apart are two sets of samples, and how sure is that? Exact confidence intervals without a distribution.

Hodges and Lehmann, "Estimates of location based on rank tests" (1963): the median of all differences, between order
statistics of these differences that the rank-sum test (two sets) or the signed-rank test (pairs) picks. One outlier
among a set's samples moves neither far.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """An estimate between its confidence bounds; the bounds are None where there are too few samples for any."""

    low: float | None
    estimate: float
    high: float | None


def shift(before: Sequence[float], after: Sequence[float], confidence: float) -> Interval:
    """By how much `after` lies above `before`, sample by sample in no order.

    Raises:
        ValueError: a set is empty.
    """
    differences = sorted(y - x for x in before for y in after)
    if not differences:
        raise ValueError("samples=[]: there must be at least one on each side")
    return _between(differences, _rank_sums(len(before), len(after)), confidence)


def paired(differences: Sequence[float], confidence: float) -> Interval:
    """The centre of differences within pairs.

    Raises:
        ValueError: there is none.
    """
    if not differences:
        raise ValueError("differences=[]: there must be at least one")
    walsh = sorted((first + second) / 2 for i, first in enumerate(differences) for second in differences[i:])
    return _between(walsh, _signed_ranks(len(differences)), confidence)


def _between(ordered: Sequence[float], ways: Sequence[int], confidence: float) -> Interval:
    """The median of ordered values between the innermost two that hold it with that confidence.

    `ways[u]` counts the arrangements, all equally likely when nothing differs, in which the test's statistic is u.
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
    """In how many orders of m and n samples u pairs of the m * n are inverted, for u from 0."""
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
    """In how many of the 2**n choices of signs the positive ranks sum to u, for u from 0."""
    counts = [1]
    for rank in range(1, n + 1):
        longer = counts + [0] * rank
        for u, ways in enumerate(counts):
            longer[u + rank] += ways
        counts = longer
    return tuple(counts)
