# SPDX-License-Identifier: Apache-2.0
"""Odd operands are copied, or loaded by threads, as whole plans are predicted: shapes as measured on an H200."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.planning.planner import plan


def loads(of, **given):
    """How A and B of a product arrive: "copy" or what their threads do."""
    made = plan(GemmSpec(**given), of)
    copied = made.steps[0].name.removeprefix("relayout ").split(" and ")
    operands = reversed(made.config.operands) if made.swapped else made.config.operands
    return tuple("copy" if x in copied else y.load for x, y in zip("ab", operands, strict=True))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((69, 2437, 5955), ("copy", "shift")),  # 17.2 us, both copied 30.6
        ((187, 2521, 12215), ("copy", "shift")),  # 51.4, 58.6
        ((1299, 153, 8347), ("shift", "copy")),  # 21.7, 26.9
        ((147, 683, 1187), ("shift", "shift")),  # 7.4, 8.5
        ((175, 135, 13681), ("shift", "shift")),  # 10.9, 11.8
        ((125, 131, 32423), ("shift", "shift")),  # 14.1, 18.2
        ((333, 777, 555), ("copy", "copy")),  # 6.9, predicted 7.0
    ],
)
def test_the_fastest_whole_plan_says_what_is_copied(shape, expected):
    """A copy's launch and time beside what threads load in tiles and parts of K of their own."""
    assert loads(problem(*shape, majors="kk")) == expected


def test_parts_of_what_threads_load_need_no_deep_k():
    """15 x 2009 x 1369 takes 6.4 us in four parts that a launch adds up, 12.7 whole (H200)."""
    config = plan(GemmSpec(), problem(15, 2009, 1369, majors="kk")).config
    assert (config.splits, config.split_reduction) == (4, "launch")


def test_given_fields_and_many_tiles_keep_the_short_rule():
    """Neither is compared with others: what a field fixes, gated halves, and products of many waves."""
    odd = problem(69, 2437, 5955, majors="kk")
    assert loads(odd, split_k=1) == loads(odd, batch_invariant=True) == ("copy", "copy")
    assert loads(odd, a_load="relayout", b_load="relayout") == ("copy", "copy")
    assert loads(problem(8191, 8191, 8191, majors="kk")) == ("copy", "copy")
