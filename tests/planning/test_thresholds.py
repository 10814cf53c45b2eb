# SPDX-License-Identifier: Apache-2.0
"""Thresholds are a GPU's, not the planner's: each, if it were another, changes some plan in its direction."""

from __future__ import annotations

import dataclasses

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT, RECORDS
from cutegemm.planning.grouped import plan_groups
from cutegemm.planning.planner import plan
from cutegemm.plans.steps import Ends
from cutegemm.request.group_forms import all_groups

FEW_ROWS = GemmSpec(tile=Tile(8, 64, 128), swap=True)
CONSTANT = dataclasses.replace(FEW_ROWS, constant=("b",))
ALONE = GemmSpec(tile=Tile(128, 128, 64), cluster=(1, 1))
ONE_ROW = GemmSpec(schedule="simt", tile=Tile(1, 8, 512))
CONSTANT_ROW = dataclasses.replace(ONE_ROW, constant=("b",))
SMS = DEFAULT.sms


def trigger(spec, of):
    """When the next launch may begin."""
    return lambda device: plan(spec, of, device).config.trigger


def grouped(form, m, n, k, groups, what, majors="kk", **fields):
    """What a threshold decides of groups that have (m, n, k) each on average."""
    spec = GemmSpec(**fields)
    graph = {} if isinstance(spec.epilogue, str) else {"epilogue": spec.epilogue, "dtype": "fp8"}
    extents = (m * groups, n, k) if form == "rows" else (m, n, k * groups)
    of = problem(*extents, batch=groups, majors=majors, d_dtype="bf16", **graph)
    return lambda device: what(plan_groups(spec, all_groups(of, form, {}), form, Ends(), device).config)


def rows(tiles, k=8192):
    """A problem of 8 rows with so many tiles of 64 columns."""
    return problem(8, 64 * tiles, k, majors="kk")


BLOCKS = {"scale_a": ("block", 1, 128), "scale_b": ("block", 128, 128), "d_dtype": "bf16"}
LARGE = problem(8192, 8192, 8192, majors="kk")
PAIR = GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1))


# threshold -> what it decides on a device, and what that is for thresholds far below and far above
DECIDES = {
    "early_bytes": (trigger(FEW_ROWS, rows(64)), "mainloop", "loads"),
    "early_bytes_full": (trigger(FEW_ROWS, rows(SMS - 1)), "mainloop", "loads"),
    "full": (trigger(FEW_ROWS, rows(SMS - 24)), "loads", "mainloop"),
    "early_shared": (trigger(ALONE, problem(1024, 1024, 1024, majors="kk")), "mainloop", "loads"),
    "early_few_rows": (trigger(ONE_ROW, problem(1, 2048, 2048, majors="kk")), "mainloop", "start"),
    "early_blocks": (
        lambda x: plan(CONSTANT_ROW, problem(1, 2048, 2048, majors="kk"), x).config.early,
        (),
        ("b",),
    ),
    "constant_few_rows": (
        lambda x: (
            plan(GemmSpec(constant=("b",)), problem(1, 2048, 2048, majors="kk"), x).config.family == "gemv"
        ),
        True,
        False,
    ),
    "in_turn": (trigger(CONSTANT, rows(SMS - 24)), "start", "mainloop"),
    "early_constant": (trigger(CONSTANT, rows(SMS - 24)), "mainloop", "start"),
    "kept": (lambda x: plan(PAIR, LARGE, x).config.serpentine, True, False),
    "displaced": (lambda x: plan(FEW_ROWS, rows(64), x).config.evict_first == ("a",), True, False),
    "drift_tiles": (lambda x: plan(ALONE, LARGE, x).config.dynamic, True, False),
    "whole_rows": (
        grouped("rows", 512, 1536, 2048, 128, lambda x: x.outputs[0].store),
        "tma",
        "staged",
    ),
    "halved_k": (grouped("depth", 1536, 2048, 256, 64, lambda x: x.tile[2] < 64, "mn"), False, True),
    "quartered_k": (
        grouped("depth", 1536, 2048, 32, 64, lambda x: x.tile[:2] == (128, 256), "mn"),
        False,
        True,
    ),
    "wide_k": (grouped("depth", 1536, 2048, 64, 64, lambda x: x.tile[:2] == (256, 192), "mn"), False, True),
    "scaled_k": (
        grouped("rows", 512, 4096, 1024, 64, lambda x: x.dynamic, **BLOCKS),
        False,
        True,
    ),
    "filled": (grouped("depth", 1536, 2048, 32, 64, lambda x: x.tile[:2] == (128, 256), "mn"), True, False),
}


@pytest.mark.parametrize("name", [x.name for x in dataclasses.fields(DEFAULT.thresholds)])
def test_a_threshold_decides(name):
    """Far below its value one way, far above the other."""
    what, below, above = DECIDES[name]
    known = getattr(DEFAULT.thresholds, name)
    found = []
    for value in (known / 1000, known * 1000):
        changed = dataclasses.replace(DEFAULT.thresholds, **{name: value})
        # planning caches by name
        device = dataclasses.replace(DEFAULT, name=f"{name} {value}", thresholds=changed)
        found.append(what(device))
    assert found == [below, above]


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: x.name)
def test_shares_are_shares(record):
    """They are shares of the SMs and of L2; a launch that fills the SMs may be longer."""
    x = record.thresholds
    assert 0 < x.kept < 1 and 0 < x.displaced < 1 and 0.5 < x.in_turn <= x.full <= 1
    assert (
        x.early_bytes < x.early_bytes_full
        and min(x.early_shared, x.early_constant) > 0
        and x.drift_tiles >= 1
    )
    assert x.quartered_k <= x.wide_k <= x.halved_k
