# SPDX-License-Identifier: Apache-2.0
"""Sweeps of drawn problems: few kernels serve many problems, wrong and hanging configs are left out."""

import argparse
import dataclasses
import json
import math
import random

import pytest

from benchmarks import contenders, sweep_draws, sweep_jobs, sweep_table
from benchmarks.results import Case
from benchmarks.sweep_draws import Option
from benchmarks.timing import Contender
from cutegemm import GemmSpec, plan
from cutegemm.arch.records import H200
from cutegemm.planning import ranking
from cutegemm.request.requirements import requested
from tests.support.fake_gpu import FakeGpu

CASE = Case(suite="decode", dtype="bf16", majors="kk", m=8, n=16, k=16)
JOB = dataclasses.asdict(CASE) | {"seed": 2, "configs": [{"fields": {}}] * 9}
WRONG, MISSING = "3", "4"  # the config whose D is wrong, and the one without a kernel


class Beat:
    """Nobody watches."""

    def beat(self, within=math.inf):
        """Say nothing."""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A bench on a fake GPU, where a config takes the longer the later it comes."""
    gpu = FakeGpu()
    cublas = contenders.make("cublas", CASE)

    def ours(case, spec, name):
        def call(one):
            cublas.call(one)
            if name == WRONG:
                one.out.zero_()

        return gpu.costing(Contender(name, call), (1 + int(name)) * 1e-3)

    monkeypatch.setattr(sweep_jobs.contenders, "make", lambda name, case: gpu.costing(cublas, 4e-3))
    monkeypatch.setattr(sweep_jobs.inputs, "set_count", lambda case: 2)
    asked = iter(range(100))

    def made():
        def ready(case, spec):
            return str(next(asked) % len(JOB["configs"])) != MISSING

        out = tmp_path / "sweep.jsonl"
        return sweep_jobs.Bench(out, Beat(), None, device=gpu, memory="cpu", build=ours, ready=ready)

    made.out = tmp_path / "sweep.jsonl"
    return made


def test_all_configs_are_timed_shortly_and_the_best_again(bench):
    """A line has two samples of every right config, six of the best six, of cuBLAS and of the model's choice."""
    bench().measure(0, JOB)
    line = sweep_jobs.lines(bench.out)[-1]
    assert set(line["bad"]) == {WRONG, MISSING}
    assert set(line["first"]) == {"cublas", *"0125678"}
    assert all(len(x) == sweep_jobs.SCREENED for x in line["first"].values())
    assert set(line["last"]) == {"cublas", *"01256"}
    assert line["last"]["2"] == pytest.approx([3e3] * sweep_jobs.FINALS)


def test_a_config_that_ended_a_process_is_left_out(bench):
    """Where a process ended at a config, the next one leaves that out, and a problem that ends two is left out."""
    bench.out.write_text('{"i": 0, "begun": true}\n{"i": 0, "trying": "0"}\n{"i": 0, "trying": "1"}\n{"i"')
    bench().measure(0, JOB)
    assert sweep_jobs.lines(bench.out)[-1]["bad"]["1"] == "hung"
    assert [i for i, _ in sweep_jobs.left([JOB, JOB], bench.out)] == [1]
    bench.out.write_text('{"i": 1, "begun": true}\n' * 2)
    assert [i for i, _ in sweep_jobs.left([JOB, JOB], bench.out)] == [0]


def option(name, worth=1.0, kind="a", must=False):
    """An option of one kernel."""
    return Option({}, {}, frozenset([name]), [], worth, (kind,), must)


def test_kernels_that_serve_many_problems_come_first():
    """If only two kernels may be taken, they are the required one and the one that two problems share."""
    pools = [[option("a", must=True), option("b", 0.9), option("c")], [option("b", 0.9), option("d")]]
    few = sweep_draws.taken(pools, 2)
    assert [[x.kernels for x in pool] for pool in few] == [[{"a"}, {"b"}], [{"b"}]]


def test_problems_of_families_are_interleaved():
    """Any fifth of the sweep has problems of every family, and half of each is held back."""
    drawn = [case.suite for _, case in sweep_draws.cases([2, 3])]
    assert len(drawn) == 2 * sum(sweep_draws.COUNTS.values())
    assert set(drawn[: len(drawn) // 5]) == set(sweep_draws.COUNTS)


def test_counts_are_of_known_families():
    """Families and numbers of problems are read from a line; a family that nobody draws is refused."""
    assert sweep_draws.counts("decode=2,odd=1") == {"decode": 2, "odd": 1}
    with pytest.raises(ValueError, match="wide"):
        sweep_draws.counts("wide=2")


def test_other_splits_are_measured():
    """The fastest configs whose splits a launch adds up are also options with other numbers of splits."""
    case = Case(suite="deep_k", dtype="bf16", majors="kk", m=300, n=128, k=16384)
    found = sweep_draws.options(GemmSpec(), contenders.problem(case), H200, random.Random(0))
    seen = ranking.options(requested(GemmSpec(), contenders.problem(case), H200)[0])
    filling = {(*x.candidate.tile, *x.candidate.cluster, x.candidate.splits) for x in seen}
    others = [x for x in found if x.config[-1] == "launch" and (*x.config[1:6], x.config[8]) not in filling]
    assert others and all(x.fields["split_k"] == x.config[8] for x in others)


def test_drawn_jobs_name_their_kernels_in_the_order_of_use():
    """Every config has the places of its kernels, and the first problem's come first."""
    counts = {"decode": 1, "small": 1}
    args = argparse.Namespace(seeds=[2], counts=counts, gflop=9.0, configs=4, kernels=8, workers=1)
    found = sweep_draws.drawn(args, H200)
    places = [place for job in found["jobs"] for x in job["configs"] for place in x["kernels"]]
    assert list(dict.fromkeys(places)) == list(range(len(found["kernels"])))
    assert all(len(job["configs"]) <= 4 for job in found["jobs"])


def test_a_problem_waits_for_its_kernels(tmp_path, monkeypatch):
    """It waits while its kernels are compiled; not when later ones are there, nor when nothing is compiled any more."""
    entries = [tmp_path / str(i) for i in range(200)]
    monkeypatch.setattr(sweep_jobs, "config_from_data", lambda x: x)
    monkeypatch.setattr(sweep_jobs.kernel_cache, "entry", lambda x: entries[x])
    jobs, running = tmp_path / "jobs.json", tmp_path / "running"
    jobs.write_text(json.dumps({"kernels": list(range(200))}))
    job = {"configs": [{"kernels": [0, 2]}, {"kernels": [1]}]}
    waited = []

    def looks(then):
        """How often it looks before it goes on; `then` happens after the first look."""
        waited.clear()
        monkeypatch.setattr(sweep_jobs.time, "sleep", lambda _: waited.append(1) or then())
        running.touch()
        sweep_jobs.Compiling(jobs, running).wait(job, Beat(), math.inf)
        return len(waited)

    assert looks(running.unlink) == 1
    assert looks(entries[2 + sweep_jobs.AHEAD].touch) == 1
    entries[2 + sweep_jobs.AHEAD].unlink()
    entries[0].touch()
    entries[1].touch()
    assert looks(entries[2].touch) == 1
    assert looks(list) == 0


def test_options_are_kernels_that_the_spec_asks_for():
    """The fields of an option plan the kernel that it names; the model's choice is one of them."""
    found = sweep_draws.options(GemmSpec(), contenders.problem(CASE), H200, random.Random(0))
    assert len(found) > 50 and found[0].fields == {} and found[0].must
    of = contenders.problem(CASE)
    for x in found[::20]:
        spec = json.loads(json.dumps(x.fields))
        made = plan(sweep_jobs.refined(GemmSpec(), spec), of, H200)
        assert frozenset(step.config for step in made.steps) == x.kernels


def test_a_table_has_the_medians_of_long_samples():
    """Configs without long samples have short ones, as much slower as the others became."""
    job = {name: 1 for name in sweep_table.PROBLEM}
    job["configs"] = [
        {"fields": {}, "config": ["a"]},
        {"fields": {"raster": ["m", 4], "swap": 1}, "config": ["b"]},
    ]
    line = {
        "i": 0,
        "first": {"cublas": [4.0, 5.0], "0": [2.0, 3.0], "1": [8.0, 9.0]},
        "last": {"cublas": [8.0], "0": [3.0, 4.0, 6.0]},
    }
    made = sweep_table.table([job], [{"environment": {"gpu": "GPU"}}, {"i": 0, "trying": "0"}, line])
    assert json.loads(sweep_table.text(made)) == made
    (case,) = made["cases"]
    assert case["cublas"] == 8.0
    assert case["rows"] == [["a", 4.0, 1, {"chosen": True}], ["b", 16.0, 0, {"raster": ["m", 4]}]]
