# SPDX-License-Identifier: Apache-2.0
"""The process that measures: a candidate that hangs or dies costs itself, and tuning goes on."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from cutegemm.arch.records import H200
from cutegemm.database import Database, key_of
from cutegemm.database.user_database import BROKE_OFF
from cutegemm.tuning import child
from cutegemm.tuning.outcomes import Screen
from tests.support.fake_tuner import OF, QUICK, SPEC

HELD = "tests.support.hanging_bench:"


def tuned(folder, bench, again=False):
    """The outcomes of one problem in child processes, the database, and what the screen said."""
    said = io.StringIO()
    job = child.Job(SPEC, (OF,), folder / "t.sqlite", 32, QUICK, again, math.inf, bench=HELD + bench)
    with Screen(Console(file=said), 1) as screen:
        found = child.tuned(job, screen)
    return found, Database(folder / "t.sqlite"), said.getvalue()


@pytest.mark.sliced
@pytest.mark.parametrize("bench", ["Hanging", "Dying"])
def test_a_candidate_that_hangs_or_dies_costs_itself(bench, tmp_path):
    """It is recorded as one that broke off; the next child tries the others, and the best of them is kept."""
    (outcome,), database, said = tuned(tmp_path, bench)
    assert outcome.status == "tuned" and outcome.entry.fields["raster"] == ["m", 4]
    assert outcome.entry.complete and "tuned" in said
    trials = database.trials(key_of(SPEC, OF, H200)).values()
    assert sorted(x.outcome for x in trials).count(BROKE_OFF) >= 1
    assert [x.outcome for x in trials].count("timed") >= 4


def test_a_problem_whose_process_always_ends_is_given_up(tmp_path, monkeypatch):
    """After so many children the problem is refused with the reason."""
    monkeypatch.setattr(child, "LIVES", 1)
    (outcome,), _, _ = tuned(tmp_path, "Dying")
    assert outcome.status == "refused" and "ended with status 17" in outcome.why
