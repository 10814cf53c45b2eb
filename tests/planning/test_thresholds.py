# SPDX-License-Identifier: Apache-2.0
"""Thresholds are a GPU's, not the planner's: each, if it were another, changes some plan in its direction."""

from __future__ import annotations

import dataclasses

import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT, RECORDS
from cutegemm.planning.planner import plan

FEW_ROWS = GemmSpec(tile=Tile(8, 64, 128), swap=True)
CONSTANT = dataclasses.replace(FEW_ROWS, constant=("b",))
ALONE = GemmSpec(tile=Tile(128, 128, 64), cluster=(1, 1))
BARE = GemmSpec(tile=Tile(64, 64, 64), schedule="multistage")
SMS = DEFAULT.sms


def rows(tiles, k=8192):
    """A problem of 8 rows with so many tiles of 64 columns."""
    return problem(8, 64 * tiles, k, majors="kk")


# threshold -> a spec, a problem, what of the plan it decides, and what that is for thresholds far below and far above
DECIDES = {
    "early_bytes": (FEW_ROWS, rows(64), lambda x: x.config.trigger, "never", "loads"),
    "early_bytes_full": (FEW_ROWS, rows(SMS - 1), lambda x: x.config.trigger, "never", "loads"),
    "full": (FEW_ROWS, rows(SMS - 24), lambda x: x.config.trigger, "loads", "never"),
    "in_turn": (CONSTANT, rows(SMS - 24), lambda x: x.config.trigger, "start", "never"),
    "kept": (GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), problem(8192, 8192, 8192, majors="kk"),
             lambda x: x.config.serpentine, True, False),
    "lockstep_k": (BARE, problem(4096, 4096, 2048, majors="kk"), lambda x: x.config.raster, "m", "n"),
    "drift_tiles": (ALONE, problem(8192, 8192, 8192, majors="kk"), lambda x: x.config.dynamic, True, False),
}  # fmt: skip


@pytest.mark.parametrize("name", [x.name for x in dataclasses.fields(DEFAULT.thresholds)])
def test_a_threshold_decides(name):
    """Far below its value one way, far above the other."""
    spec, of, what, below, above = DECIDES[name]
    known = getattr(DEFAULT.thresholds, name)
    found = []
    for value in (known / 1000, known * 1000):
        changed = dataclasses.replace(DEFAULT.thresholds, **{name: value})
        # planning caches by name
        device = dataclasses.replace(DEFAULT, name=f"{name} {value}", thresholds=changed)
        found.append(what(plan(spec, of, device)))
    assert found == [below, above]


@pytest.mark.parametrize("record", RECORDS, ids=lambda x: x.name)
def test_shares_are_shares(record):
    """Of the SMs and of L2; a launch that fills the SMs may be longer."""
    x = record.thresholds
    assert 0 < x.kept < 1 and 0.5 < x.in_turn <= x.full <= 1
    assert x.early_bytes < x.early_bytes_full and x.lockstep_k > 0 and x.drift_tiles >= 1
