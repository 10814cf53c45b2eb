# SPDX-License-Identifier: Apache-2.0
"""Candidates of training problems become a sweep that the fits read; other problems do not."""

import json

import pytest

from benchmarks import contenders, fit_cost, fit_loads, regret_table
from benchmarks.results import Case
from cutegemm import GemmSpec, plan
from cutegemm.arch.records import H200
from cutegemm.planning.why import fields_of

ALIGNED = Case(suite="fresh_decode", dtype="bf16", majors="kk", m=24, n=2048, k=4096)
ODD = Case(suite="fresh_odd", dtype="bf16", majors="kk", m=777, n=1001, k=531)
OTHER = {"tile": [64, 64, 64], "cluster": [1, 1], "schedule": "cooperative", "consumers": 1, "split_k": 1}
CORES = {"schedule": "simt", "tile": [1, 8, 512]}


def rows(case, **timed):
    """Rows of a run: the planner's choice, cuBLAS, and configs with their times."""
    head = {x: getattr(case, x) for x in regret_table.FIELDS}
    found = [("auto", None, 8.0), ("cublas", None, 9.5), ("refused", OTHER, None)]
    return [
        head | {"contender": name, "spec": spec, "us": us}
        for name, spec, us in [*found, *((name, *x) for name, x in timed.items())]
    ]


def made(case):
    """The planner's choice."""
    return plan(GemmSpec(), contenders.problem(case), H200)


def written(tmp_path, measured, seed="175"):
    """The table of a run."""
    results, out = tmp_path / "run.json", tmp_path / "fresh_h200.json"
    results.write_text(json.dumps({"environment": {"gpu": H200.name, "sms": H200.sms}, "rows": measured}))
    assert regret_table.main(["--results", str(results), "--seed", seed, "--out", str(out)]) == 0
    return out


def test_the_fit_reads_configs_and_the_choice(tmp_path):
    """Times of configs on the tensor cores, the choice among them; no baseline, no refused config."""
    path = written(tmp_path, rows(ALIGNED, other=(OTHER, 8.5), again=(OTHER, 8.25), cores=(CORES, 2.0)))
    (found,) = fit_cost.fresh(path, H200)
    assert found.family == "decode" and found.problem == contenders.problem(ALIGNED)
    assert found.chosen == 8.0 and sorted(found.us) == [8.0, 8.25] and not found.held_back
    config = made(ALIGNED).config
    assert config.tile in {x.tile for _, x in found.configs}
    assert json.loads(path.read_text())["cases"][0]["cublas"] == 9.5


def test_loads_of_unaligned_operands_are_recorded(tmp_path):
    """The choice's as those of a config that names them, so that their fit reads both."""
    loads = {"a_load": "relayout", "b_load": "relayout"}
    path = written(tmp_path, rows(ODD, other=(OTHER | loads, 8.5)))
    found = next(iter(fit_loads.read([path])))
    chosen = fields_of(made(ODD))
    assert {x[0] for x in found.us} == {("relayout", "relayout"), (chosen["a_load"], chosen["b_load"])}


def test_other_problems_are_not_fitted_to(tmp_path, capsys):
    """A seed of reported problems is refused."""
    with pytest.raises(SystemExit):
        written(tmp_path, rows(ALIGNED), seed="1000")
    assert "below 1000" in capsys.readouterr().err
