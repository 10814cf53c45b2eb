# SPDX-License-Identifier: Apache-2.0
"""Tiles beside the usual ones: what saves what tiles leave over, and what saves bytes, as measured."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.planning import edges
from cutegemm.planning.planner import plan


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6488, 976, 3320), (False, (128, 208), (2, 1), 1)),
        ((14344, 504, 27288), (True, (128, 224), (2, 1), 1)),
        ((5088, 152, 22264), (False, (128, 160), (2, 1), 3)),
        ((344, 1336, 32416), (True, (128, 176), (1, 2), 6)),
        ((2632, 544, 23440), (False, (128, 192), (2, 1), 2)),
        ((13584, 376, 1896), (True, (128, 176), (1, 4), 1)),
        ((8720, 168, 440), (True, (192, 80), (1, 4), 1)),
        ((48, 13760, 504), (False, (64, 128), (1, 4), 1)),
        ((112, 1008, 5024), (False, (64, 80), (2, 2), 4)),
        ((152, 512, 6288), (True, (64, 80), (2, 2), 7)),
        ((328, 72, 10408), (False, (64, 48), (2, 2), 10)),
    ],
)
def test_what_tiles_leave_over_is_weighed(shape, expected):
    """H200, without these: 76.8 us (70.6 now), 702 (608), 109 (77), 66.1 (56.9), 137 (118), 39.7 (37.5).

    And 7.2 (6.4), 7.2 (6.4), 9.0 (8.2), 7.8 (7.3), 8.1 (7.4).
    """
    made = plan(GemmSpec(), problem(*shape, majors="kk"))
    config = made.config
    assert (made.swapped, config.tile[:2], config.cluster, config.splits) == expected


def test_tall_tiles_and_clusters_along_n_are_among_them():
    """448 x 10400 in tiles of 256 x 160 is one wave of 130, in tiles of 128 x 160 two."""
    made = plan(GemmSpec(), problem(448, 10400, 3432, majors="kk"))
    assert made.config.tile[:2] == edges.TALL and made.config.cluster == (1, 2)
    # stored pieces leave the ring a fourth stage
    assert (made.config.stages, made.config.epilogue_stages) == (4, 2)
    fields = {x.fields for x in made.why.weighed if x.serves}
    assert any(dict(x)["tile"][:2] == (128, 96) and dict(x).get("cluster") == (1, 2) for x in fields)


def test_buffers_make_room_for_stages_that_are_wanted():
    """Four buffers leave 256 x 160 three stages: that is enough where three are given, and none gives way for more."""
    of = problem(448, 10400, 3432, majors="kk")
    for stages, buffers in ((3, 4), (4, 2)):
        config = plan(GemmSpec(tile=(*edges.TALL, 64), cluster=(1, 2), stages=stages), of).config
        assert (config.stages, config.epilogue_stages) == (stages, buffers)


@pytest.mark.parametrize(
    "shape", [(4096, 4096, 4096), (512, 512, 8192), (1000, 1000, 1000), (5856, 3456, 64)]
)
def test_many_waves_and_short_products_have_the_usual_tiles(shape):
    """There the model does not tell likes apart, and what tiles leave over is little beside the rest."""
    of = problem(*shape, majors="kk")
    assert not edges.uneven(of, DEFAULT)
    assert all(dict(x.fields)["tile"][1] not in edges.WIDTHS for x in plan(GemmSpec(), of).why.weighed)


def test_clusters_of_eight_are_for_very_deep_k():
    """256 x 256 x 32768 takes 14.2 us in 4 x 2 and 14.6 in 2 x 2, 512 x 512 x 8192 12.8 and 12.5 (H200)."""
    sizes = [plan(GemmSpec(), problem(x, x, k)).config.cluster for x, k in ((256, 32768), (512, 8192))]
    assert [x * y for x, y in sizes] == [8, 4]


@pytest.mark.parametrize(("shape", "rows"), [((6648, 176, 3568), 128), ((128, 3448, 264), 64)])
def test_few_lines_that_straddle_are_shared_among_four(shape, rows):
    """H200: 23.3 us in pairs (20.0 now) and 3.90 alone (3.48); aligned rows are not."""
    m, n, k = shape
    config = plan(GemmSpec(), problem(m, n, k, majors="kk")).config
    assert config.tile[0] == rows and config.cluster == (2, 2)
    aligned = problem(m, n, k // 64 * 64, majors="kk")
    assert edges.shared(problem(m, n, k, majors="kk"), DEFAULT) and not edges.shared(aligned, DEFAULT)


def test_a_streamed_operand_is_not_asked_for_twice():
    """256 x 6144 x 4096: 24.3 us in 128 x 96 in pairs along M, which share B; in pairs along N 27.3 (H200)."""
    made = plan(GemmSpec(), problem(256, 6144, 4096, majors="kk"))
    assert made.config.cluster == (2, 1)


def test_the_largest_tile_is_for_vast_products():
    """16384^3 takes 12,438 us in 256 x 192 and 12,842 in 128 x 256; 8192 x 10240 x 8192 loses by it (H200)."""
    vast = plan(GemmSpec(), problem(16384, 16384, 16384, majors="kk")).config
    assert (vast.tile[:2], vast.cluster) == (edges.VAST_TILE, edges.VAST_CLUSTER)
    weighed = {
        shape: any(dict(x.fields)["tile"][:2] == edges.VAST_TILE for x in plan(GemmSpec(), of).why.weighed)
        for shape in ((8192, 57344, 8192), (8192, 10240, 8192))
        for of in (problem(*shape, majors="kk"),)
    }
    assert list(weighed.values()) == [True, False]


def test_few_columns_with_parts_of_k_are_one_tile_wide():
    """2088 x 24 x 7712 takes 11.6 us in 64 x 24 x 128 in four parts, in 64 x 32 x 128 11.9 (H200)."""
    made = plan(GemmSpec(), problem(2088, 24, 7712, majors="kk"))
    assert made.config.tile[1] == 24 and made.steps[-1].name == "add parts"
    wide, rows = problem(2088, 136, 7712, majors="kk"), problem(2088, 24, 7712, majors="kn")
    for of in (wide, rows):
        assert plan(GemmSpec(), of).config.tile[1] % 16 == 0
