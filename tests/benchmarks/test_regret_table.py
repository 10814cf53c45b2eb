# SPDX-License-Identifier: Apache-2.0
"""Candidates of training problems become a sweep that the fits read; other problems do not."""

import json

import pytest

from benchmarks import candidates, contenders, fit_cost, fit_loads, regret_table, sweep_draws
from benchmarks.results import Case
from cutegemm import plan
from cutegemm.arch.records import H200

ALIGNED = Case(suite="fresh_decode", dtype="bf16", majors="kk", m=24, n=2048, k=4096)
ODD = Case(suite="fresh_odd", dtype="bf16", majors="kk", m=777, n=1001, k=531)
OTHER = {"tile": [64, 64, 64], "cluster": [1, 1], "schedule": "cooperative", "consumers": 1, "split_k": 1}
THIRD = OTHER | {"tile": [64, 32, 64]}
CORES = {"schedule": "simt", "tile": [1, 8, 512]}
COPIES = {"a_load": "relayout", "b_load": "relayout"}


def planned(case, spec):
    """The plan of a contender."""
    return plan(candidates.spec(spec or {}), contenders.problem(case), H200)


def rows(case, name, spec, *times):
    """A contender's rows: of its short samples and, if it has a second time, of its long ones."""
    label = None if name == "cublas" or spec == CORES else contenders.plan_label(planned(case, spec))
    head = {x: getattr(case, x) for x in regret_table.FIELDS} | {
        "contender": name,
        "spec": spec,
        "plan": label,
    }
    return [head | {"regime": x, "us": us} for x, us in zip(("screen", "final"), times, strict=False)]


def written(tmp_path, *measured, seed=175, copies=sweep_draws.COPIES):
    """The table of a run."""
    results, out = tmp_path / "run.json", tmp_path / "fresh_h200.json"
    environment = {"gpu": H200.name, "sms": H200.sms, "fresh": {"seed": seed, "copies": copies}}
    results.write_text(json.dumps({"environment": environment, "rows": [x for y in measured for x in y]}))
    assert regret_table.main(["--results", str(results), "--out", str(out)]) == 0
    return out


def test_the_fit_reads_configs_and_the_choice(tmp_path):
    """Long samples, else short ones times the slowdown from short to long ones; no baseline, no refused config."""
    path = written(
        tmp_path,
        rows(ALIGNED, "cublas", None, 9.0, 9.9),
        rows(ALIGNED, "auto", None, 8.0, 8.8),
        rows(ALIGNED, "other", OTHER, 8.5),
        rows(ALIGNED, "refused", THIRD, None),
        rows(ALIGNED, "cores", CORES, 2.0, 2.0),
    )
    (found,) = fit_cost.fresh(path, H200)
    assert found.family == "decode" and found.problem == contenders.problem(ALIGNED) and not found.held_back
    assert found.chosen == 8.8 and sorted(found.us) == [8.8, 9.35]
    (case,) = json.loads(path.read_text())["cases"]
    assert case["cublas"] == 9.9 and case["seed"] == 175 and [x[-2] for x in case["rows"]] == [1, 0]


def test_what_is_planned_otherwise_now_is_left_out(tmp_path):
    """Its time is of another kernel."""
    old = [x | {"plan": "gemm, multistage"} for x in rows(ALIGNED, "auto", None, 8.0, 8.8)]
    others = [rows(ALIGNED, "other", OTHER, 8.5, 9.5), rows(ALIGNED, "third", THIRD, 8.6, 9.6)]
    (found,) = fit_cost.fresh(written(tmp_path, rows(ALIGNED, "cublas", None, 9.0, 9.9), old, *others), H200)
    assert found.chosen is None and sorted(found.us) == [9.5, 9.6]


def test_loads_of_unaligned_operands_are_recorded(tmp_path):
    """The choice's as those of a config that names them, so that their fit reads both."""
    cublas, auto = rows(ODD, "cublas", None, 30.0, 31.0), rows(ODD, "auto", None, 8.0, 8.8)
    (found,) = fit_loads.read([written(tmp_path, cublas, auto, rows(ODD, "other", OTHER | COPIES, 9.0, 9.5))])
    assert sorted(found.us.values()) == [8.8, 9.5]
    assert ("relayout", "relayout") in {x[0] for x in found.us}
    # two, since a problem with one config says nothing
    shifts = {"a_load": "shift", "b_load": "shift"}
    shifted = rows(ODD, "third", OTHER | shifts, 9.1), rows(ODD, "fourth", THIRD | shifts, 9.2)
    measured = (cublas, rows(ODD, "other", OTHER | COPIES, 9.0, 9.5), *shifted, auto)
    now, before = (fit_loads.read([written(tmp_path, *measured, copies=x)]) for x in (sweep_draws.COPIES, 1))
    loads = [{x[0] for of in found for x in of.us} for found in (now, before)]
    assert ("shift", "shift") in loads[1] and loads[1] == {
        x for x in loads[0] if "relayout" not in x
    } != loads[0]


@pytest.mark.parametrize("seed", ["52b5bdfb", 1000], ids=["a digest", "no training seed"])
def test_other_problems_are_not_fitted_to(tmp_path, capsys, seed):
    """The run says which problems it drew; those that judge the model are refused."""
    with pytest.raises(SystemExit):
        written(tmp_path, rows(ALIGNED, "auto", None, 8.0, 8.8), seed=seed)
    assert "judge the model" in capsys.readouterr().err
