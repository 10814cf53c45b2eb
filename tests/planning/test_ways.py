# SPDX-License-Identifier: Apache-2.0
"""Which way round, with how many parts and whose producer: shapes of no suite, as measured on an H200."""

from __future__ import annotations

from cutegemm import GemmSpec, problem
from cutegemm.planning.planner import plan


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
