# SPDX-License-Identifier: Apache-2.0
"""The public `plan`: what `build` takes, for which GPU, measured or predicted, and fast."""

from __future__ import annotations

import pytest

import cutegemm
from benchmarks import suites
from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H100, H200
from cutegemm.errors import InputError, PlanError
from cutegemm.planning import planner
from cutegemm.planning.ways import by_cost
from tests.support.counted import calls
from tests.support.tuned import filled

OF = problem(512, 512, 512)
PREDICTED = "the model (NVIDIA H200, predicted)"


def test_plan_says_what_build_takes(tmp_path, monkeypatch):
    """With an entry both are the entry's and say measured; without the database both are the model's."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    filled(tmp_path / "tuned.sqlite", OF)
    gemm = cutegemm.Gemm(GemmSpec(), OF)
    made = cutegemm.plan(GemmSpec(), OF)
    assert made == gemm.plan and made.chosen_by == gemm.plan.chosen_by
    assert made.chosen_by == "database (NVIDIA H200, 2026-01-02, measured 3.5 us)"
    own = cutegemm.plan(GemmSpec(), OF, database=False)
    assert own == planner.plan(GemmSpec(), OF) != made and own.chosen_by == PREDICTED
    monkeypatch.setenv("CUTEGEMM_DATABASE", "off")
    assert cutegemm.plan(GemmSpec(), OF) == own and str(own).endswith(f"chosen by: {PREDICTED}")


def test_every_suite_is_planned_as_it_is_built(monkeypatch):
    """For squares, some of which the package has entries of, `plan` and `Gemm` show the same kernel."""
    monkeypatch.delenv("CUTEGEMM_DATABASE", raising=False)
    measured = 0
    for m, n, k in suites.SUITES["square"]:
        of = problem(m, n, k)
        assert cutegemm.plan(GemmSpec(), of) == cutegemm.Gemm(GemmSpec(), of).plan
        measured += "measured" in cutegemm.plan(GemmSpec(), of).chosen_by
    assert measured


def test_a_plan_names_its_gpu():
    """Another GPU's record is planned for and named."""
    of = problem(520, 520, 520)
    assert cutegemm.plan(GemmSpec(), of).device is H200
    assert cutegemm.plan(GemmSpec(), of, H100).chosen_by == f"the model ({H100.name}, predicted)"


def test_a_given_order_leaves_the_database_out(tmp_path, monkeypatch):
    """Another order of candidates is neither the model's nor the database's choice."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    filled(tmp_path / "tuned.sqlite", OF)

    def order(*args):
        return by_cost(*args)

    made = cutegemm.plan(GemmSpec(), OF, order=order)
    assert made == planner.plan(GemmSpec(), OF, order=order)
    assert made.chosen_by == "a given order (NVIDIA H200)"


def test_a_database_is_asked_or_not():
    """Another value is refused, and so is what no plan can be."""
    with pytest.raises(InputError, match=r"^database='no': must be True or False"):
        cutegemm.plan(GemmSpec(), OF, database="no")
    with pytest.raises(PlanError, match="stages=9"):
        cutegemm.plan(GemmSpec(tile=(128, 256, 64), stages=9), OF)


def test_a_plan_is_made_once():
    """A new problem enters at most 3,000 functions, a known one at most 50."""
    spec = GemmSpec()
    cutegemm.plan(spec, OF)
    new = [calls(lambda m=m: cutegemm.plan(spec, problem(m, 4096, 4096))) for m in range(1000, 1040, 8)]
    assert min(new) <= 3_000 and calls(lambda: cutegemm.plan(spec, OF)) <= 50
