# SPDX-License-Identifier: Apache-2.0
"""Tuning suites: what has most to gain first, a batch of each before more of any, over several calls and machines."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks import gemm, tune
from benchmarks.tune import Ahead, Beating, Work, by_gain, ratios, summary
from cutegemm import GemmSpec, Tile
from cutegemm.database import Database, choose, export
from cutegemm.database.entry import config_digest
from cutegemm.errors import GemmError
from cutegemm.tuning import tuner as tuning
from cutegemm.tuning.race import Regime
from cutegemm.tuning.tuner import Tuner
from tests.support.fake_bench import FakeBench

SPEC = GemmSpec(tile=Tile(64, 32, 32), consumers=1, stages=2)
CASES = gemm.select([], [(1088, 256, 64), (1088, 320, 64), (1152, 256, 64)], None, ["kk"])


def cost(plan):
    """Seconds of a call: a stream is best, then panels of 16."""
    return 1e-6 if plan.config.streamed else {4: 4e-6, 16: 2e-6}.get(plan.raster[1], 3e-6)


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Makes work on a database; kernels are not compiled, a kernel's PTX is its config's digest."""
    monkeypatch.setattr(tuning, "_ptx", lambda plan: config_digest(plan.config))
    monkeypatch.setattr(Tuner, "_valid", lambda self, entry, of: True)
    monkeypatch.setattr(tuning, "BATCH", 2)
    monkeypatch.setattr(tune, "BATCH", 2)
    monkeypatch.setattr(tune, "SPEC", SPEC)

    def made(name="t.sqlite", cases=CASES, until=float("inf"), clock=time.monotonic):
        regime = Regime(preheat=0.0, sample=1e-4, pairs=3)
        tuner = Tuner(SPEC, FakeBench(cost), Database(tmp_path / name), 32, regime, compile=list, until=until)
        return Work(cases, tuner, compile=list, clock=clock)

    return made


def go(work, beats=None):
    """(problem's M and N, status) of every step."""
    said = beats if beats is not None else []
    with Beating(Console(file=io.StringIO()), 1, said.append) as screen:
        return [((x.problem.m, x.problem.n), x.status) for x in work.run(screen)]


def test_every_problem_gets_its_first_candidates_before_any_gets_more(make):
    """Passes over all, the last of which finishes them; then nothing is left. Every word says when the next comes."""
    beats = []
    steps = go(make(), beats)
    sizes = [(1088, 256), (1088, 320), (1152, 256)]
    assert [x for x, _ in steps[:3]] == sizes and {x for _, x in steps[:3]} == {"begun"}
    assert [x for x, status in steps if status == "tuned"] == sizes and len(steps) % 3 == 0
    assert go(make()) == [] and max(beats) < float("inf")


def test_calls_go_on_where_the_last_stopped_on_another_machine_too(make, tmp_path):
    """A call with time for two steps and a half makes two; the file alone, and its export, carry what is known."""
    now, ticks = time.monotonic(), iter(range(1000))
    short = make(until=now + 4500, clock=lambda: now + 1000 * next(ticks))
    first = go(short)
    assert [x for x, _ in first] == [(1088, 256), (1088, 320)]
    (tmp_path / "t.sqlite").rename(tmp_path / "carried.sqlite")
    rest = go(make("carried.sqlite"))
    assert rest[0] == ((1152, 256), "begun") and [x for _, x in rest].count("tuned") == 3
    database = Database(tmp_path / "carried.sqlite")
    assert export(tmp_path / "shipped.json", database) == 3
    work = make("other.sqlite")
    tune.import_(tmp_path / "shipped.json", Database(tmp_path / "other.sqlite"))
    assert go(work) == []
    chosen = choose(
        SPEC, tune.contenders.problem(CASES[0]), FakeBench.record, Database(tmp_path / "other.sqlite")
    )
    assert chosen.plan.config.streamed and chosen.entry.us == pytest.approx(1.0)
    # all suites in four layouts on two GPUs
    assert (tmp_path / "shipped.json").stat().st_size / 3 * 1000 < 1_000_000


def test_what_sweeps_found_fastest_is_tried_first(make, tmp_path):
    """The tuner tries the model's choice, then the fastest specs that each file has for the problem.

    Fields that promise constant operands are left out.
    """
    size = vars(CASES[0])
    specs = [
        ({"raster": ["n", 8]}, 1.2),
        ({"raster": ["m", 2]}, 1.3),
        ({"constant": ["b"], "raster": ["n", 8]}, 1.25),
        ({}, 1.4),
    ]
    rows = [size | {"spec": spec, "ratio": ratio} for spec, ratio in specs]
    (tmp_path / "r.json").write_text(json.dumps({"rows": rows}))
    found = tune.seeds([tmp_path / "r.json"])
    assert found == {tune.size_of(size): [{"raster": ["m", 2]}, {"raster": ["n", 8]}]}
    work = make()
    work._tuner = replace(work._tuner, seeds=lambda of: found.get((1, of.m, of.n, of.k, "bf16", "kk"), ()))
    steps = go(work)
    trials = Database(tmp_path / "t.sqlite").trials(
        tune.key_of(SPEC, tune.contenders.problem(CASES[0]), FakeBench.record)
    )
    assert steps[0][0] == (1088, 256) and '{"raster": ["m", 2]}' in trials


def test_what_is_refused_is_left(make, monkeypatch):
    """A problem that the spec cannot serve is told once, and the others are tuned."""
    cases = [*gemm.select([], [(64, 64, 64)], ["fp32"], ["kk"]), *CASES[:1]]
    steps = go(make(cases=cases))
    assert [x for x in steps if x[0] == (64, 64)] == [((64, 64), "refused")] and steps[-1] == (
        (1088, 256),
        "tuned",
    )


def test_kernels_of_the_next_problems_compile_meanwhile(monkeypatch):
    """The first chunk before the first problem, the next, twice as large, meanwhile; an error is left to the tuner."""
    monkeypatch.setattr(tune, "AHEAD", 2)
    compiled = []

    def compile(configs):
        compiled.append(configs)
        if configs == [1, 2]:
            raise GemmError("ptxas")

    with Ahead([1, 2, 3, 4, 5, 6, 7, 8], lambda x: [x], compile) as ahead:
        ahead.ready(0)
        ahead.ready(1)
        ahead.ready(2)
        assert compiled[:2] == [[1, 2], [3, 4, 5, 6]]
        ahead.ready(6)
    assert compiled == [[1, 2], [3, 4, 5, 6], [7, 8]]


@pytest.mark.parametrize("anew", [False, True])
def test_a_database_begins_with_what_ships_or_with_nothing(anew, tmp_path, monkeypatch):
    """Before the first problem is measured."""
    path = tmp_path / "begun.sqlite"
    monkeypatch.setattr(tune, "Work", lambda cases, tuner: SimpleNamespace(run=lambda screen: ()))
    words = ["--suites", "small", "--database", str(path), *(["--anew"] if anew else [])]
    assert tune.work(tune.parse(words), FakeBench(cost), lambda until: None) == 0
    assert bool(Database(path).entries()) is not anew


def test_most_to_gain_comes_first(tmp_path):
    """Furthest behind cuBLAS on this GPU first, by rows of the planner's choice; what has none at its suite's mean."""
    cases = gemm.select(["small"], [(64, 64, 8)], None, ["kk"])[:4] + gemm.select(
        [], [(64, 64, 8)], None, ["kk"]
    )

    def row(case, ratio, **more):
        return vars(case) | {"contender": "auto", "spec": {}, "ratio": ratio} | more

    rows = [
        row(cases[0], 1.0),
        row(cases[1], 0.7),
        row(cases[2], 0.1, spec={"stages": 3}),
        row(cases[3], 0.95),
    ]
    document = {"environment": {"gpu": "NVIDIA H200"}, "rows": rows}
    (tmp_path / "r.json").write_text(json.dumps(document))
    known = ratios([tmp_path / "r.json"], "NVIDIA H200")
    assert len(known) == 3 and ratios([tmp_path / "r.json"], "NVIDIA H100 80GB HBM3") == {}
    # cases[2] stands at the mean of its suite, 0.873
    assert by_gain(cases, known) == [cases[1], cases[2], cases[3], cases[0], cases[4]]


def test_the_summary_says_what_choosing_costs(make, tmp_path):
    """By suite how many are known and finished, and the best's time over the model's choice's."""
    work = make()
    go(work)
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(summary(CASES, Database(tmp_path / "t.sqlite"), FakeBench(cost)))
    cells = console.export_text().splitlines()[3].split()
    assert cells[1::2] == ["custom", "3", "3", "3", "0.333", "0.333"]


def test_command_line(capsys):
    """Something must be given to tune."""
    words = ["--database", "t.sqlite"]
    regime = tune.parse([*words, "--suites", "square", "--sample", "0.02", "--capped", "0.05"]).regime
    assert (regime.sample, regime.capped) == (0.02, 0.05)
    with pytest.raises(SystemExit):
        tune.parse(words)
    assert "nothing to tune" in capsys.readouterr().err
