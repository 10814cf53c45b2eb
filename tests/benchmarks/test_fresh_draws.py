# SPDX-License-Identifier: Apache-2.0
"""The frozen distributions: the same draws everywhere, within bounds, and reported problems never trained on."""

import hashlib
import math

import pytest

from benchmarks import suites
from benchmarks.fresh_draws import COUNT, DTYPE, FAMILIES, MOST_BYTES, draw, for_training

REPORTED = hashlib.sha256(b"a tree").hexdigest()
FROZEN = {0: "9c0956c091fe", 999: "b39e0414386a", REPORTED: "21f3d45b0f91"}


def digest(cases) -> str:
    """What tells lists of problems apart."""
    return hashlib.sha256("\n".join(map(str, cases)).encode()).hexdigest()[:12]


def test_draws_are_the_same_everywhere():
    """They follow from family and seed alone: the digest of all problems of a seed is frozen."""
    for seed, expected in FROZEN.items():
        assert digest(case for family in FAMILIES for case in draw(family, seed)) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_problems_keep_their_bounds(family):
    """Extents lie in the family's ranges, N and K are multiples of 8 or not both, and operands fit in memory."""
    bounds = FAMILIES[family]
    for case in draw(family, REPORTED):
        assert (case.suite, case.dtype, case.majors) == (family, DTYPE, bounds.majors)
        assert 2 * case.batch * (case.m * case.k + case.k * case.n + case.m * case.n) <= MOST_BYTES
        assert (case.n % 8 == 0 and case.k % 8 == 0) is not bounds.odd
        assert bounds.majors[0] == "k" or case.m % 8 == 0
        assert not bounds.cube or case.m == case.n == case.k
        m, n = (case.n, case.m) if bounds.flip and case.n < bounds.n[0] else (case.m, case.n)
        for value, (least, most) in zip(
            (case.batch, m, n, case.k), (bounds.batch, bounds.m, bounds.n, bounds.k), strict=True
        ):
            assert least <= value <= most


def test_no_training_seed_draws_a_reported_pair():
    """(N, K) of reported problems, in either order, are none of the training seeds' and none of the suites'."""
    reported = {frozenset((x.n, x.k)) for family in FAMILIES for x in draw(family, REPORTED)}
    trained = {frozenset((x.n, x.k)) for family in FAMILIES for seed in range(60) for x in draw(family, seed)}
    suited = {frozenset((n, k)) for suite in suites.PRODUCTS for _, _, n, k in suites.extents(suite)}
    assert reported.isdisjoint(trained) and reported.isdisjoint(suited)
    assert for_training(4096, 14336) and for_training(14336, 4096)


def test_a_draw_repeats_no_layer():
    """Every family has as many different (N, K) as problems, and a shorter draw is a longer one's beginning."""
    for family in FAMILIES:
        cases = draw(family, 7)
        assert len({(x.n, x.k) for x in cases}) == COUNT and draw(family, 7, 5) == cases[:5]


def test_extents_are_log_uniform_and_mostly_coarse():
    """Over many seeds N and K are multiples of 128 in 70 to 75 %, and half lie below the geometric middle."""
    cases = [x for seed in range(30) for x in draw("decode", seed)]
    coarse = sum(x.n % 128 == 0 for x in cases) / len(cases)
    low, high = FAMILIES["decode"].n
    below = sum(x.n < math.sqrt(low * high) for x in cases) / len(cases)
    assert 0.68 < coarse < 0.76 and 0.45 < below < 0.56


@pytest.mark.parametrize("seed", [-1, 1000, "12", REPORTED.upper()])
def test_other_seeds_are_refused(seed):
    """A seed is a number below 1000, for training, or a SHA-256."""
    with pytest.raises(ValueError, match="must be a number below 1000 or 64 hexadecimal digits"):
        draw("square", seed)
