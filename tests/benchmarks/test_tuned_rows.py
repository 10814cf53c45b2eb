# SPDX-License-Identifier: Apache-2.0
"""What was tried while tuning, as a sweep: every timed trial, named in full, beside the model's choice of that day."""

from __future__ import annotations

import json

import pytest

from benchmarks import tune, tuned_rows
from benchmarks.sweep_rows import read
from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H100, H200
from cutegemm.database import Database, key_of
from cutegemm.database.user_database import Trial
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of

OF = problem(4096, 4096, 4096, majors="kk")
WIDE = {"tile": [128, 256, 64], "cluster": [2, 1], "schedule": "cooperative", "swap": False}
# a sweep is of one order of the operands
OWN = plan(GemmSpec(swap=False), OF, H200)


@pytest.fixture
def database(tmp_path):
    """Six trials of one problem, one of them without a time, and one of another spec."""
    found, key = Database(tmp_path / "t.sqlite"), key_of(GemmSpec(), OF, H200)
    timed = {
        "{}": (200.0, fields_of(OWN)),
        json.dumps(WIDE): (190.0, WIDE),
        json.dumps(WIDE | {"raster": ["n", 8]}): (180.0, WIDE | {"raster": ["n", 8]}),
        json.dumps(WIDE | {"trigger": "loads"}): (170.0, WIDE),
        json.dumps(WIDE | {"cluster": [1, 2], "raster": ["n", 8]}): (210.0, WIDE | {"cluster": [1, 2]}),
    }
    for name, (us, made) in timed.items():
        found.tried(key, name, Trial("timed", us, made=made))
    found.tried(key, json.dumps(WIDE | {"stages": 2}), Trial("wrong", why="off"))
    found.tried(key_of(GemmSpec(stages=3), OF, H200), "{}", Trial("timed", 1.0, made=fields_of(OWN)))
    return tmp_path / "t.sqlite"


def test_trials_are_a_sweep(database, tmp_path):
    """A database and the file made of it are read alike: times of candidates, of another walk only if need be."""
    out = tmp_path / "rows.json"
    assert tuned_rows.main([str(database), str(out)]) == 0
    (found,), (again,) = read([database], H200), read([out], H200)
    assert found == again and found.suite in ("square", "prefill") and found.baseline_name == "model"
    us = {(x.tile, x.cluster): y * found.baseline / 1e3 for x, y in found.us.items()}
    own = Candidate.of(OWN.config)
    assert us == {
        (own.tile, own.cluster): pytest.approx(200, rel=1e-3),
        ((128, 256, 64), (2, 1)): pytest.approx(190, rel=1e-3),
        ((128, 256, 64), (1, 2)): pytest.approx(210, rel=1e-3),
    }
    assert found.least * found.baseline / 1e3 == pytest.approx(170, rel=1e-3)
    assert read([database], H100) == []


def test_what_was_fastest_is_tried_first_on_another_machine(database):
    """A sweep's rows give the tuner its seeds."""
    out = database.with_suffix(".json")
    tuned_rows.main([str(database), str(out)])
    (best,) = tune.seeds([out]).values()
    assert best[0] == WIDE | {"trigger": "loads"} and len(best) == tune.SEEDS


def test_what_was_tuned_stands_for_what_older_sweeps_measured(database, tmp_path):
    """Kernels change: of a problem that a database knows, and of no other, sweeps beside cuBLAS are passed over."""
    rows = [
        {"suite": "square", "dtype": "bf16", "majors": "kk", "batch": 1, "m": m, "n": 4096, "k": 4096, "us": us,
         "ratio": 200 / us, "spec": WIDE | {"cluster": cluster}}
        for m in (4096, 2048) for us, cluster in ((150.0, [1, 1]), (160.0, [2, 1]))
    ]  # fmt: skip
    old = tmp_path / "old.json"
    old.write_text(json.dumps({"environment": {"gpu": "NVIDIA H200"}, "rows": rows}))
    assert {(x.problem.m, x.baseline_name) for x in read([old, database], H200)} == {
        (4096, "model"),
        (2048, "cublas"),
    }
