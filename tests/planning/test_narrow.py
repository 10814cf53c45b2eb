# SPDX-License-Identifier: Apache-2.0
"""Tiles 64 x n for few rows of D: what the planner takes once it is allowed to, and that it is not."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, Tile, plan, problem
from cutegemm import epilogue as epi
from cutegemm.planning import boxes, planner
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.times import Table

DECODE = ((4096, 4096), (6144, 4096), (4096, 14336), (10240, 8192), (8192, 28672), (7168, 16384))


@pytest.fixture
def switched_on(monkeypatch):
    """The planner takes narrow tiles by itself."""
    monkeypatch.setattr(boxes, "NARROW_TILES", True)
    planner._planned.cache_clear()
    yield
    planner._planned.cache_clear()


@pytest.mark.parametrize("m", [1, 16, 32])
def test_by_default_no_chosen_tile_has_a_narrow_box(m):
    """Few rows are swapped as before, and tiles that are chosen without swapping have whole boxes."""
    for n, k in DECODE:
        assert plan(GemmSpec(), problem(m, n, k)).swapped
        assert plan(GemmSpec(swap=False), problem(m, n, k)).config.a.box_rows == 0


@pytest.mark.parametrize("majors", ["kn", "kk"])
def test_equal_tiles_beat_swapped_ones_that_leave_sms_idle(switched_on, majors):
    """128 tiles of 32 columns at N = 4096 where swapping has 64 of 64; 8192 columns are 128 tiles either way."""
    made = plan(GemmSpec(), problem(1, 4096, 4096, majors=majors))
    assert (made.swapped, made.config.tile, made.tiles) == (False, (64, 32, 128), (1, 128, 1))
    assert made.config.a.box_rows == 8 and made.config.stages > 8
    assert "few rows: B streams in" in made.reasons[-1]
    assert plan(GemmSpec(), problem(1, 8192, 28672, majors=majors)).swapped


@pytest.mark.parametrize("m", [1, 8, 32])
def test_without_swapping_one_wave_of_tiles_shares_b_equally(switched_on, m):
    """As many columns as N over the SMs, in steps of 8, or of 32 where B is contiguous along them."""
    spec = GemmSpec(swap=False)
    for n, k in DECODE:
        made = plan(spec, problem(m, n, k, majors="kk"))
        assert made.config.tile[:2] == (64, -(-n // (132 * 8)) * 8)
        assert made.waves <= 1 and made.config.stages >= 4
        assert plan(spec, problem(m, n, k)).config.tile[1] % 32 == 0


def test_only_what_is_left_open_and_fills_the_sms_is_narrow(switched_on):
    """A given cluster, many rows, gated pairs, few columns and swap=True keep what they had."""
    small = problem(1, 4096, 4096)
    assert plan(GemmSpec(swap=True), small).swapped
    assert plan(GemmSpec(cluster=(2, 1)), small).config.cluster == (2, 1)
    assert plan(GemmSpec(), problem(33, 4096, 4096)).swapped
    few = problem(1, 256, 8192)
    assert plan(GemmSpec(), few).swapped and plan(GemmSpec(swap=False), few).config.splits > 1
    gated = epi.swiglu("halves")
    assert plan(GemmSpec(epilogue=gated), problem(1, 4096, 4096, epilogue=gated)).swapped
    assert plan(GemmSpec(tile=Tile(64, 64, 64), swap=False), small).config.tile == (64, 64, 64)


def test_the_model_counts_the_rows_that_boxes_bring(switched_on):
    """Of a tile of 64 rows 8 at M = 1, and all where CTAs share it out; `why` weighs such tiles."""
    of, device = problem(1, 4096, 4096), plan(GemmSpec(), problem(1, 64, 64)).device
    tile = Candidate((64, 32, 128), (1, 1), "cooperative", 1)
    delivered = Table.of(of, device, [tile, tile._replace(cluster=(1, 2))]).delivered
    assert delivered.tolist() == [(8 + 32) * 128 * 2, (64 / 2 + 32) * 128 * 2]
    why = plan(GemmSpec(), problem(1, 4096, 4096, majors="kk")).why
    assert why.taken is not None and dict(why.taken.fields)["tile"] == tile.tile
    assert (64, 16, 128) in [dict(x.fields)["tile"] for x in why.weighed]
