# SPDX-License-Identifier: Apache-2.0
"""Tiles 64 x n for few rows of D: where the planner takes them by itself, and where it does not."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.times import Table

DECODE = ((4096, 4096), (6144, 4096), (4096, 14336), (10240, 8192), (8192, 28672), (7168, 16384))
CONSTANT = GemmSpec(constant=("b",))


def of(m: int, n: int, k: int, majors: str = "kk", **kinds):
    """A problem of weights contiguous along K, as nn.Linear has them."""
    return problem(m, n, k, majors=majors, **kinds)


def taken(m: int, n: int, k: int, spec: GemmSpec) -> tuple[bool, tuple[int, int, int]]:
    """(whether operands are swapped, tile) of a plan."""
    made = plan(spec, of(m, n, k))
    return made.swapped, made.config.tile


@pytest.mark.parametrize("m", [1, 16, 32])
def test_an_equal_share_for_every_sm_is_taken_where_it_was_measured_faster(m):
    """H200: 64 x 32 beat a cluster's sum of two parts by 5 to 8 %, 64 x 80 beat 80 tiles of 128 rows by 4 %."""
    for n, k, width in ((6144, 4096, 48), (4096, 14336, 32), (10240, 8192, 80), (7168, 16384, 56)):
        assert taken(m, n, k, GemmSpec()) == (False, (64, width, 128))
    for n, k, width in ((6144, 4096, 48), (7168, 7168, 56), (14336, 4096, 112)):
        assert taken(m, n, k, CONSTANT) == (False, (64, width, 128))


@pytest.mark.parametrize("m", [48, 64])
def test_so_are_deep_stages_of_more_rows(m):
    """Where A's box is all of the tile too: 3 to 9 % over swapped operands, 2 % over stages of 64 along K."""
    for n, k, width in ((6144, 4096, 48), (4096, 14336, 32), (10240, 8192, 80), (7168, 16384, 56)):
        assert taken(m, n, k, GemmSpec()) == (False, (64, width, 128))
        assert taken(m, n, k, CONSTANT) == (False, (64, width, 128))


@pytest.mark.parametrize("m", [1, 16])
def test_two_waves_are_taken_where_one_would_be_too_wide(m):
    """28672 columns: 256 tiles of 112 are 2 to 3 % faster than 224 of 128 rows, one wave of 64 x 224 slower."""
    for spec in (GemmSpec(), CONSTANT):
        assert taken(m, 28672, 4096, spec) == (False, (64, 112, 128))


@pytest.mark.parametrize("m", [1, 16, 32])
def test_swapped_operands_stay_where_they_were_measured_as_fast(m):
    """8192 columns are 128 tiles either way; constant 4096 x 4096 are 64 CTAs, beside which the next 64 fit."""
    swapped = -(-m // 8) * 8
    for k in (10240, 28672):
        for spec in (GemmSpec(), CONSTANT):
            assert taken(m, 8192, k, spec) == (True, (64, swapped, 128))
    if m < 32:
        assert taken(m, 4096, 4096, CONSTANT)[0]


def test_a_plan_says_why_and_brings_only_the_rows_there_are():
    """128 tiles, a box of 8 rows of A, and a ring as deep as shared memory allows."""
    made = plan(GemmSpec(), of(1, 4096, 14336))
    assert made.tiles == (1, 128, 1) and made.config.a.box_rows == 8 and made.config.stages > 8
    assert "few rows: B streams in" in made.reasons[-1]


def test_its_kernel_is_that_of_the_given_tile():
    """What tests of given tiles show holds for chosen ones; `why` names the fields that ask for it."""
    few = of(7, 4096, 14336)
    given = plan(GemmSpec(tile=Tile(64, 32, 128), swap=False), few)
    assert plan(GemmSpec(), few).config == given.config


def test_parts_that_a_spec_gives_are_honoured():
    """Each part of K must still fill the ring more than once."""
    made = plan(GemmSpec(split_k=2, swap=False), of(1, 2048, 8192))
    assert (made.config.splits, made.config.split_reduction) == (2, "cluster")
    assert made.config.tile == (64, 32, 128) and made.config.a.box_rows == 8
    assert plan(GemmSpec(split_k=2), of(1, 5120, 8192)).swapped


def test_the_model_counts_the_rows_that_boxes_bring():
    """Of a tile of 64 rows 8 at M = 1, and all where CTAs share it out or K fills the ring once; `why` weighs them."""
    device = plan(GemmSpec(), of(1, 64, 64)).device
    tile = Candidate((64, 32, 128), (1, 1), "cooperative", 1)
    tiles = [tile, tile._replace(cluster=(1, 2)), tile._replace(splits=4)]
    delivered = Table.of(of(1, 4096, 4096), device, tiles).delivered
    assert delivered.tolist() == [(8 + 32) * 128 * 2, (64 / 2 + 32) * 128 * 2, (64 + 32) * 128 * 2]
    why = plan(GemmSpec(), of(1, 4096, 14336)).why
    assert why.taken is not None and dict(why.taken.fields)["tile"] == tile.tile


def test_no_consumer_idles_for_a_tile_as_fast():
    """A box of 64 rows serves a tile of 128 as well, whose second warpgroup would have no row of D."""
    assert taken(64, 10240, 8192, GemmSpec(swap=False, sms=132)) == (False, (64, 80, 64))


def test_a_swapped_tile_whose_ring_holds_all_of_k_has_no_producer():
    """48 x 13760 x 504 takes 7.1 us so, 7.6 with one; of longer K the operands stream (H200).

    Where its lines straddle those of L2, clusters share them instead: 6.4.
    """
    for k, producers in ((512, False), (504, True), (1008, True)):
        assert bool(plan(GemmSpec(), of(48, 13760, k)).config.producers) is producers
    assert plan(GemmSpec(schedule="cooperative", swap=True), of(48, 13760, 504)).config.producers
