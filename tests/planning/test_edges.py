# SPDX-License-Identifier: Apache-2.0
"""Tiles beside the usual ones: what saves what tiles leave over, and what saves bytes, as measured."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.planning import edges
from cutegemm.planning.planner import plan


def test_buffers_make_room_for_stages_that_are_wanted():
    """Four buffers leave 256 x 160 three stages: that is enough where three are given, and none gives way for more."""
    of = problem(448, 10400, 3432, majors="kk")
    for stages, buffers in ((3, 4), (4, 2)):
        config = plan(GemmSpec(tile=(*edges.TALL, 64), cluster=(1, 2), stages=stages), of).config
        assert (config.stages, config.epilogue_stages) == (stages, buffers)


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


def test_few_columns_with_parts_of_k_are_one_tile_wide():
    """2088 x 24 x 7712 takes 11.6 us in 64 x 24 x 128 in four parts, in 64 x 32 x 128 11.9 (H200)."""
    made = plan(GemmSpec(), problem(2088, 24, 7712, majors="kk"))
    assert made.config.tile[1] == 24 and made.steps[-1].name == "add parts"
    wide, rows = problem(2088, 136, 7712, majors="kk"), problem(2088, 24, 7712, majors="kn")
    for of in (wide, rows):
        assert plan(GemmSpec(), of).config.tile[1] % 16 == 0
