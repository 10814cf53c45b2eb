# SPDX-License-Identifier: Apache-2.0
"""When a launch lets the next one start, as the planner decides by itself: by the share of the SMs it fills."""

from __future__ import annotations

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.planning.planner import plan

CONSTANT = ("b",)


@pytest.mark.parametrize(
    ("columns", "given", "constant"),
    [
        # 64 tiles of 132 SMs: the next grid fits beside them
        (64 * 64, "mainloop", "start"),
        # 80 tiles: it does not, and shares SMs unevenly
        (80 * 64, "mainloop", "mainloop"),
        (112 * 64, "mainloop", "start"),
        (124 * 64, "mainloop", "start"),
        # no pair of SMs is free; the operands are larger than those with which a constant one pays at once
        (128 * 64, "loads", "mainloop"),
        # two waves
        (160 * 64, "loads", "mainloop"),
    ],
)
def test_the_share_of_the_sms_decides(columns, given, constant):
    """Long launches: with nothing constant, and with weights that are."""
    rows = problem(8, columns, 8192, majors="kk")
    spec = GemmSpec(tile=Tile(8, 64, 128), swap=True)
    assert plan(spec, rows).config.trigger == given
    assert plan(GemmSpec(tile=spec.tile, swap=True, constant=CONSTANT), rows).config.trigger == constant


def test_ctas_that_share_much_keep_their_places():
    """Without a cluster: an early next grid takes SMs as they become free, and its neighbours lie in several GPCs."""
    for k, expected in ((512, "loads"), (8192, "mainloop")):
        alone = GemmSpec(tile=Tile(64, 64, 64), cluster=(1, 1), swap=False, split_k=1)
        assert plan(alone, problem(512, 1024, k, majors="kk")).config.trigger == expected


def test_a_short_launch_always_pays():
    """Few bytes, few tiles."""
    few = problem(64, 80 * 64, 256, majors="kk")
    for constant in ((), CONSTANT):
        spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, constant=constant or "auto")
        assert plan(spec, few).config.trigger in ("loads", "start")


def test_what_is_given_stays():
    """Each of the four."""
    for trigger in ("start", "loads", "mainloop", "never"):
        assert plan(GemmSpec(trigger=trigger), problem(8, 5120, 8192)).config.trigger == trigger


def test_constant_operands_that_tma_loads_are_loaded_early():
    """Not those that are not constant, nor one that a launch before copies; none where threads load."""
    for constant, fields, early in (
        (("b",), {}, ("b",)),
        (("a",), {}, ("a",)),
        (("a", "b"), {}, ("a", "b")),
        (("a", "b"), {"b_load": "cp_async"}, ()),
    ):
        spec = GemmSpec(tile=Tile(64, 64, 64), swap=False, constant=constant, **fields)
        assert plan(spec, problem(256, 256, 256)).config.early == early
