# SPDX-License-Identifier: Apache-2.0
"""Fitting a model to sweeps: what a known model would have measured is ranked by the fit as that model ranks it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks import fit
from benchmarks.sweep_rows import Measured, labelled, read
from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H200, TIMES, TIMES_FILE
from cutegemm.planning.candidates import preferred
from cutegemm.planning.planner import plan
from cutegemm.planning.times import fastest_first

SWEEPS = Path(__file__).parents[2] / "benchmarks" / "results" / "sweeps"
SHAPES = [(m, n, k) for m in (1024, 3072, 6144) for n in (2048, 5120) for k in (1024, 8192)]
CANDIDATES = preferred(GemmSpec(), H200.limits)[::3] + preferred(GemmSpec(), H200.limits)[-9:]


def synthetic(device, shapes=SHAPES, suite="synthetic"):
    """What a GPU whose times are a device's model would have measured."""
    found = []
    for shape in shapes:
        of = problem(*shape, majors="kk")
        _, times = fastest_first(of, device, CANDIDATES)
        us = {x: ns / 1e3 for x, ns in zip(CANDIDATES, times, strict=True)}
        found.append(Measured(device.name, suite, of, us))
    return found


def other(**factors):
    """The H200 with some constants changed."""
    changed = {name: getattr(H200.time, name) * factor for name, factor in factors.items()}
    return dataclasses.replace(H200, time=dataclasses.replace(H200.time, **changed))


def test_a_known_model_is_found_again():
    """Two constants that are off come back, on half of the problems; the other half is then ranked without regret."""
    truth = other(l2=0.6, tile=3.0)
    found = synthetic(truth)
    before = fit.cost(found, H200)
    fitted = fit.fit(found[::2] * 5, H200, ["l2", "tile", "turn"])
    assert fit.cost(found[1::2], fitted) < before / 4
    assert fitted.time.l2 == pytest.approx(truth.time.l2, rel=0.1)
    assert fitted.time.mma == H200.time.mma
    assert max(fit.regrets(found, fitted)["synthetic"]) < 1.02 < max(fit.regrets(found, H200)["synthetic"])


def test_only_what_is_felt_may_move():
    """Constants that no measured kernel depends on stay."""
    names = fit.felt(synthetic(H200, SHAPES[:3]), H200)
    assert "mma" in names and "l2" in names and not {"relayout", "gather", "inputs", "shared"} & set(names)


def test_regret_is_chosen_over_best():
    """A model that puts a candidate first that takes 10 % longer than the best has a regret of 1.10."""
    (found,) = synthetic(H200, SHAPES[:1])
    first = min(found.us, key=lambda x: found.us[x])
    slower = dataclasses.replace(
        found, us=found.us | {first: min(v for x, v in found.us.items() if x != first) * 1.1}
    )
    assert fit.regrets([slower], H200) == {"synthetic": [pytest.approx(1.1)]}


def test_too_little_is_not_written(tmp_path, capsys):
    """Few problems, one schedule, schedules that were never timed beside each other: the constants stay as they are."""
    assert "336 times of 12 problems" in fit.enough(synthetic(H200), ["mma"])
    assert "18 constants want 360" in fit.enough(synthetic(H200), [str(x) for x in range(18)])
    alone = [dataclasses.replace(x, us=dict(list(x.us.items())[:4])) for x in synthetic(H200)] * 4
    assert "constants of the others would be guessed" in fit.enough(alone, ["mma"])
    apart = [
        dataclasses.replace(x, us={y: v for y, v in x.us.items() if y.schedule == schedule})
        for schedule in ("cooperative", "pingpong", "multistage")
        for x in synthetic(H200) * 2
    ]
    assert "beside each other on 0 of 72 problems" in fit.enough(apart, ["mma"])
    words = ["--gpu", "NVIDIA H100 80GB HBM3", "--sweeps", str(SWEEPS / "tiles.json")]
    assert fit.main(words) == 1 and "nothing to fit" in capsys.readouterr().out


def test_a_suite_that_is_ranked_worse_forbids_a_fit():
    """A fit that gains in one suite and loses in another is not written, and says where."""
    found = synthetic(H200, suite="kept") + synthetic(other(l2=0.5), suite="gained")
    assert fit.worse(found, H200, H200) is None
    assert fit.worse(found, H200, other(l2=0.5)).startswith("it ranks suites worse: kept 1.000 -> ")


def test_predicted_microseconds_count(tmp_path):
    """Of models that rank alike the one whose times are right costs less, where the baseline's time is known."""
    (found,) = synthetic(H200, SHAPES[:1])
    known = dataclasses.replace(found, us={x: us * 10 for x, us in found.us.items()}, baseline=100.0)
    assert fit.score(found, H200).level == 0.0
    assert fit.score(known, H200).level == pytest.approx(0.0, abs=1e-9)
    twice = dataclasses.replace(known, baseline=200.0)
    assert fit.score(twice, H200).level == pytest.approx(math.log(2))


def test_files_that_measured_one_problem_are_joined():
    """What two sweeps timed beside the same baseline is one problem: tiles of either schedule, the planner's choice."""
    # what was tuned stands for what these measured
    found = read(sorted(x for x in SWEEPS.glob("*.json") if not x.name.startswith("tuned_")))
    assert len(found) == len({(x.gpu, x.problem, x.beside) for x in found})
    found = [x for x in found if x.gpu == "NVIDIA H200" and x.beside == "cublas"]
    (square,) = [x for x in found if x.problem == problem(1024, 1024, 1024, majors="kk")]
    assert {x.schedule for x in square.us} == {"cooperative", "pingpong", "multistage"}
    best = min(square.us, key=lambda x: square.us[x])
    # 5.45 us, cuBLAS 5.93
    assert (
        best.schedule == "multistage"
        and square.us[best] == pytest.approx(919, abs=1)
        and square.suite == "square"
    )
    # of few rows the swapped ones are another product's, and what gives more than a candidate counts for the best only
    (few,) = [x for x in found if x.problem.n == 16 and x.problem.m == 6144]
    assert few.suite == "decode swapped" and few.least < min(few.us.values())


def test_the_planners_choice_is_what_it_was(tmp_path):
    """A row of the planner's own choice is the candidate that its label tells, whatever would be chosen today."""
    shape = {"suite": "square", "dtype": "bf16", "majors": "kk", "batch": 1, "m": 4096, "n": 4096, "k": 4096}
    plans = [
        "gemm, warp_specialized, tile 64x16x64, cluster 1x1, stages 8, consumers 1, pingpong False",
        None,
    ]
    specs = [{}, {"tile": [128, 256, 64], "swap": False}]
    rows = [
        shape | {"spec": x, "plan": y, "us": 9.0, "ratio": 1.0} for x, y in zip(specs, plans, strict=True)
    ]
    (tmp_path / "s.json").write_text(json.dumps({"environment": {"gpu": "NVIDIA H200"}, "rows": rows}))
    (found,) = read([tmp_path / "s.json"])
    assert [x.tile for x in found.us] == [(64, 16, 64), (128, 256, 64)]
    label = "gemm, warp_specialized, tile 64x16x128, cluster 2x1, stages 8, consumers 1, pingpong False, "
    assert str(labelled(label + "K in 4 parts, store tma, raster n 8")) == (
        "tile (64, 16, 128), cluster (2, 1), K in 4 parts"
    )
    turns = labelled(label.replace("pingpong False", "pingpong True") + "store tma, raster m 8")
    assert turns.schedule == "pingpong" and turns.splits == 1
    assert labelled(label.replace("warp_specialized", "multistage")).schedule == "multistage"
    added = labelled(label.replace("gemm, ", "gemm -> add parts, ") + "K in 15 parts, store tma, raster n 8")
    assert (added.splits, added.depth, added.reduction) == (15, 1, "launch")
    assert (
        labelled(label + "K in 4 parts").reduction == "cluster" and labelled(label + "K in 33 parts") is None
    )
    assert labelled("gemm, simt, tile 64x64") is None and labelled(None) is None


def test_a_sweep_becomes_a_record(tmp_path, capsys):
    """A file of `benchmarks.sweep` is read, fitted, and its constants written, to four digits, as the record."""
    truth = other(l2=0.7)
    rows = []
    for i, x in enumerate(
        synthetic(truth, [(256 * a, 256 * b, 1024 * c) for a in (8, 12, 20) for b in (9, 16) for c in (1, 4)])
    ):
        for candidate, us in list(x.us.items())[-1::-2]:
            fields = {"tile": list(candidate.tile), "schedule": candidate.schedule}
            if candidate.schedule != "multistage":
                fields["cluster"] = list(candidate.cluster)
            rows.append(
                {
                    "suite": ("square", "prefill")[i % 2], "batch": 1, "m": x.problem.m, "n": x.problem.n,
                    "k": x.problem.k, "dtype": "bf16", "majors": "kk", "spec": fields, "us": us,
                    "ratio": 100 / us,
                }
            )  # fmt: skip
    sweep, record = tmp_path / "sweep.json", tmp_path / "times.json"
    sweep.write_text(json.dumps({"environment": {"gpu": "NVIDIA H200"}, "rows": rows}))
    record.write_text(TIMES_FILE.read_text())
    found = read([sweep])
    assert len(found) == 12 and {y.schedule for x in found for y in x.us} == {
        "cooperative",
        "pingpong",
        "multistage",
    }
    fit.write(fit.fit(found, H200, ["l2"]), "fitted", record)
    written = json.loads(record.read_text())["NVIDIA H200"]
    # what was said of loads stays
    assert written["source"].startswith("fitted; loads: ") and math.isclose(
        written["time"]["l2"], truth.time.l2, rel_tol=0.15
    )
    assert written["time"]["mma"] == pytest.approx(H200.time.mma, rel=1e-3)


def test_the_record_is_data():
    """Every known GPU's constants come from the file, which says where they come from, and which no sweep tells."""
    data = json.loads(TIMES_FILE.read_text())
    for x in data.values():
        (words,) = [part for part in x["source"].split("; ") if part.startswith("not fitted: ")]
        left = words.removeprefix("not fitted: ").split(", ")
        assert words == fit.unfitted([name for name in x["time"] if name not in left]) and fit.HELD[0] in left
    assert TIMES["NVIDIA H200"] == H200.time and all(x["source"] for x in data.values())
    assert plan(GemmSpec(), problem(64, 64, 64)).device is H200
