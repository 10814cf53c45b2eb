# SPDX-License-Identifier: Apache-2.0
"""Which way round, with how many parts and whose producer: shapes of no suite, as measured on an H200."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, problem
from cutegemm import epilogue as epi
from cutegemm.planning.planner import plan
from cutegemm.planning.why import predicted_us


def test_idle_sms_overrule_few_rows():
    """Three tiles of 32 x 64 in one part of K took 12.1 us, in 34 parts 4.3; 32 tiles of whole K stay."""
    made = plan(GemmSpec(), problem(32, 176, 4296))
    assert made.swapped and made.config.splits > 8 and made.config.split_reduction == "launch"
    made = plan(GemmSpec(), problem(8, 80, 28552))
    assert made.swapped and made.config.splits > 32
    assert plan(GemmSpec(), problem(16, 2008, 1368)).config.splits == 1
    assert plan(GemmSpec(split_k=1), problem(32, 176, 4296)).config.splits == 1


@pytest.mark.parametrize("shape", [(184, 2520, 12216), (152, 512, 6288)])
def test_a_short_side_lies_along_columns_where_that_is_clearly_faster(shape):
    """184 rows are 256 in tiles of 128, 192 in columns of 96: 35.5 and 30.3 us."""
    made, other = (plan(GemmSpec(swap=x), problem(*shape)) for x in (True, False))
    assert predicted_us(made) * 1.05 < predicted_us(other)
    assert plan(GemmSpec(), problem(*shape)).config == made.config


def test_likes_and_given_fields_stay_as_they_are():
    """Nothing is swapped where both ways are predicted alike, a field says how D is cut, or operands are copied."""
    for shape in ((4440, 24, 1048), (128, 6144, 4096), (4096, 4096, 4096)):
        assert not plan(GemmSpec(), problem(*shape)).swapped
    few = problem(184, 2520, 12216)
    for given in ({"cluster": (1, 1)}, {"schedule": "cooperative"}, {"batch_invariant": True}, {"sms": 64}):
        assert not plan(GemmSpec(**given), few).swapped
    assert not plan(GemmSpec(), problem(185, 2521, 12217)).swapped
    gated = epi.swiglu("halves")
    assert not plan(GemmSpec(epilogue=gated), problem(184, 2560, 12216, epilogue=gated)).swapped


def test_what_asks_for_nothing_changes_nothing():
    """`batch_invariant=False` is what a spec means that leaves it open."""
    for shape in ((184, 2520, 12216), (4096, 4096, 4096), (69, 2437, 5955)):
        of = problem(*shape)
        made, other = plan(GemmSpec(), of), plan(GemmSpec(batch_invariant=False), of)
        assert made.steps == other.steps


def test_short_k_of_few_tiles_needs_no_producer():
    """816 x 336 x 56 and 333 x 777 x 555 were faster in 64 x 64 without one; longer K and more tiles were not."""
    for shape in ((816, 336, 56), (333, 777, 555), (512, 512, 512)):
        made = plan(GemmSpec(), problem(*shape))
        assert not made.config.producers and made.config.tile[0] * made.config.tile[1] <= 64 * 64
    for shape in ((512, 512, 2048), (127, 4099, 513)):
        made = plan(GemmSpec(), problem(*shape))
        assert made.config.producers or made.config.tile == (64, 128, 64)


def test_panels_lie_along_n_where_no_producer_loads():
    """1000 x 1001 x 1003 took 10.1 us so, 11.1 along M; deep K and whole batches lie along M."""
    for shape in ((1000, 1001, 1003), (1023, 1023, 1023)):
        made = plan(GemmSpec(), problem(*shape))
        assert made.config.tile == (64, 128, 64) and not made.config.producers and made.raster == ("n", 8)
    given = GemmSpec(tile=(64, 128, 64), schedule="multistage", swap=False)
    assert plan(given, problem(1024, 1024, 65536)).raster[0] == "m"
    assert plan(given, problem(64, 128, 64, batch=128)).raster[0] == "m"
    assert plan(given, problem(1000, 632, 1024)).raster == ("n", 5)
