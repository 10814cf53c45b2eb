# SPDX-License-Identifier: Apache-2.0
"""A fresh run: its header comes first, nothing is replaced, and its file is refused when a row is not the model's."""

import argparse
import copy
import json
import subprocess
from typing import NamedTuple

import pytest
from rich.console import Console

from benchmarks import (
    chain,
    contenders,
    fresh,
    fresh_bench,
    fresh_check,
    fresh_ties,
    fresh_tree,
    gemm,
    inputs,
    results,
)
from benchmarks.fresh_bench import AGAIN, FIRST, Bench, Regret
from benchmarks.results import Case, Measurement, Results
from benchmarks.timing import Contender
from cutegemm.arch.records import H200
from cutegemm.errors import GemmError
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

TREES = fresh_tree.Trees("a" * 40, "b" * 40)
FAMILIES = ["square", "decode", "chain"]
COUNT = 6


def took(us: float) -> Measurement:
    """A time without spread."""
    return Measurement(us=us, us_min=us, us_max=us, rounds=2, samples=(us, us))


class Fake(Bench):
    """Rows without a GPU: the plans are the model's, our times those that `ours` gives by suite and N."""

    broken: str | None = None  # a size whose measurement breaks off

    def __init__(self, regime, sensors, **more):
        super().__init__(regime, sensors, device=FakeGpu(), memory="cpu", **more)
        self._single.measure, self._chain.measure = self.single, self.chained

    def single(self, case):
        """Ours beside cuBLAS; sizes differ in their ratio."""
        if case.size == self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        times = {contenders.MODEL: took(10 + case.n % 7), contenders.BASELINE: took(12)}
        plans = fresh_bench.planned(case, H200)
        regime = self._regime.name
        rows = results.case_rows(case, times, plans=plans, regime=regime, baseline=contenders.BASELINE)
        return rows, []

    def chained(self, of):
        """A chain as single GEMMs are."""
        case = Case(
            suite=fresh_bench.CHAIN, dtype="bf16", majors="kk", m=of.m, n=of.layers[0][0], k=of.layers[0][1]
        )
        plans = fresh_bench.planned(case, H200)
        names = (*fresh_bench.CHAINED, chain.ROOF)
        times = {name: took(of.depth * (10 + of.m % 5 + i)) for i, name in enumerate(names)}
        return chain.rows(of, times, plans=plans, regime=self._regime.name), []


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command on a fake GPU; returns its status and file."""
    environment = ENVIRONMENT | {"gpu": H200.name}

    def opened(args):
        return Console(quiet=True), None, Results(args.out, environment)

    monkeypatch.setattr(fresh.runs, "open_run", opened)
    monkeypatch.setattr(fresh, "compile_all", lambda *_: 0)
    monkeypatch.setattr(fresh, "Bench", Fake)
    monkeypatch.setattr(Fake, "broken", None)

    def go(families=FAMILIES, *more):
        words = ["--families", ",".join(families), "--trees", str(TREES), "--commit", "c" * 40]
        words += ["--count", str(COUNT), "--folder", str(tmp_path), *more]
        status = fresh.main(words)
        (path,) = tmp_path.glob("*.json")
        return status, results.load(path)

    go.environment, go.folder = environment, tmp_path
    return go


def test_a_run_is_what_its_seed_and_the_model_give(run):
    """Every problem of the draw has its rows, the three lowest of a family a second time; nothing is complained of."""
    status, document = run()
    assert status == 0 and (run.folder / f"fresh-{TREES.seed[:12]}.json").exists()
    said = document["environment"]["fresh"]
    assert (said["seed"], said["trees"], said["count"]) == (TREES.seed, TREES._asdict(), COUNT)
    assert fresh_check.complaints(document, plans=True) == []
    regimes = [row["regime"] for row in document["rows"] if row["contender"] != contenders.BASELINE]
    # chains have two contenders of ours
    assert (regimes.count(FIRST.name), regimes.count(AGAIN.name)) == (4 * COUNT, 4 * 3)
    lines = {line["family"]: line for line in fresh_check.pooled([document, document])}
    assert len(lines["square"]["first"]) == 2 * COUNT and lines["square"]["missing"] == 0
    assert min(lines["decode"]["again"]) == min(lines["decode"]["first"]) and lines["chain"]["undeclared"]


def _drop(rows):
    del rows[2:4]


def _add(rows):
    rows.append(rows[0] | {"m": 17})


def _tune(rows):
    rows[0]["plan"] = "another"


def _swap(rows):
    rows[0:2], rows[2:4] = rows[2:4], rows[0:2]


def _best_of_two(rows):
    rows[:] = [row for row in rows if row["regime"] == FIRST.name or row["ratio"] > 1.1]


def _rename(rows):
    rows[0]["suite"] = "fresh_prefill"


@pytest.mark.parametrize("change", [_drop, _add, _tune, _swap, _best_of_two, _rename])
def test_a_changed_file_is_refused(run, change):
    """A row that is missing, added, tuned, out of order or of another family is found."""
    document = copy.deepcopy(run()[1])
    change(document["rows"])
    assert fresh_check.complaints(document, plans=True)


def test_a_chosen_seed_is_refused(run):
    """Seed and trees belong together."""
    document = run(["square"])[1]
    document["environment"]["fresh"]["trees"]["cutegemm"] = "c" * 40
    assert fresh_check.complaints(document) == ["the seed does not follow from the trees"]


def test_the_header_comes_first_and_a_broken_run_stays(run):
    """A lost device leaves the header, the rows before it and its own with the reason; the next call goes on."""
    second = fresh_bench.cases_of("square", TREES.seed, COUNT)[1]
    Fake.broken = second.size
    with pytest.raises(RuntimeError):
        run(["square"])
    (path,) = run.folder.glob("*.json")
    rows = results.load(path)["rows"]
    assert [row["refused"] is None for row in rows] == [True, True, False, False]
    assert "illegal memory access" in rows[2]["refused"]
    Fake.broken = None
    document = run(["square", "decode"])[1]
    assert document["rows"][:4] == rows and fresh_check.complaints(document, plans=True) == []
    assert document["environment"]["fresh"]["families"] == ["square", "decode"]
    square = fresh_check.pooled([document])[0]
    assert square["missing"] == 1 and len(square["first"]) == COUNT - 1


def test_the_header_is_written_before_anything_is_measured(run, monkeypatch):
    """A run that dies in its first problem leaves its seed and families."""
    monkeypatch.setattr(Fake, "measure", lambda self, case: pytest.fail("died"))
    with pytest.raises(pytest.fail.Exception):
        run(["decode"])
    (path,) = run.folder.glob("*.json")
    document = results.load(path)
    assert document["rows"] == [] and document["environment"]["fresh"]["families"] == ["decode"]


def test_another_environment_overwrites_nothing(run):
    """The file of one GPU is not continued on another, and not replaced."""
    before = run(["square"])[1]
    run.environment["gpu"] = "another"
    assert run(["square"]) == (2, before)


def test_no_time_is_left_for_a_family(run):
    """Families after the time has gone are not begun, and the file is a right beginning."""
    document = run(FAMILIES, "--seconds", "1e-9")[1]
    assert document["rows"] == [] and fresh_check.complaints(document) == []


def test_a_bench_gives_a_row_to_whoever_is_refused(monkeypatch):
    """On a fake GPU the model's kernel and cuBLAS are timed; a contender that refuses has a row with the reason."""
    gpu, real = FakeGpu(), contenders.make

    def make(name, case):
        if case.m == 8 and name == contenders.MODEL:
            raise GemmError("tile=...: too large")
        return gpu.costing(Contender(name, real(contenders.BASELINE, case).call), 1e-5)

    monkeypatch.setattr(gemm.contenders, "make", make)
    monkeypatch.setattr(inputs, "set_count", lambda case: 2)
    bench = Bench(FIRST, None, device=gpu, memory="cpu")
    for m, why in ((16, None), (8, "tile=...: too large")):
        case = Case(suite="fresh_small", dtype="bf16", majors="kk", m=m, n=16, k=32)
        rows, failures = bench.measure(case)
        assert [row["contender"] for row in rows] == list(fresh_bench.SINGLE)
        assert rows[0]["refused"] == why and len(failures) == (why is not None)
        assert [results.key(row) for row in rows] == [results.key(row) for row in bench.keys(case)]


def test_chains_are_measured_declared_and_not(monkeypatch, tmp_path):
    """A chain's rows are ours with constant weights and without, and cuBLAS's, under the family's name."""
    small = chain.Chain(((48, 32), (32, 48)), 4, weight_bytes=6 * 48 * 32 * 2)
    gpu, real = FakeGpu(), chain.make

    def make(name, what, declared):
        inner = real(contenders.BASELINE if name in fresh_bench.CHAINED else name, what, declared)
        return gpu.costing(Contender(name, inner.call), 1e-3)

    monkeypatch.setattr(chain, "make", make)
    monkeypatch.setattr(fresh_bench, "chain_of", lambda case: small)
    case = Case(suite=fresh_bench.CHAIN, dtype="bf16", majors="kk", m=4, n=48, k=32)
    bench = Bench(FIRST, None, device=gpu, memory="cpu")
    rows, failures = bench.measure(case)
    assert failures == [] and [row["contender"] for row in rows] == list(fresh_bench.CHAINED)
    assert [results.key(row) for row in rows] == [results.key(row) for row in bench.keys(case)]
    out = Results(tmp_path / "chain.json", ENVIRONMENT)
    out.put(rows)


def test_trees_are_gits_own(tmp_path):
    """Hashes are those of git's tree objects, results left out; a changed file is named, and trees export."""

    def git(*words):
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=tmp_path, check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    for name in ("cutegemm/a.py", "benchmarks/b.py", "benchmarks/results/r.json", "benchmarks/specs/s.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    trees = fresh_tree.trees_of("HEAD", tmp_path)
    assert trees.cutegemm == git("rev-parse", "HEAD:cutegemm")
    (tmp_path / "benchmarks/results/r.json").write_text("other")
    assert fresh_tree.changed(tmp_path) == []
    git("rm", "-rqf", "--cached", "benchmarks/results")
    git("commit", "-qm", "two")
    assert trees.benchmarks == git("rev-parse", "HEAD:benchmarks")
    assert fresh_tree.trees_of("HEAD", tmp_path) == trees == fresh_tree.trees_from(str(trees))
    fresh_tree.export("HEAD", tmp_path / "cutegemm", tmp_path)
    assert (tmp_path / "cutegemm/benchmarks/specs/s.json").exists()
    (tmp_path / "cutegemm/a.py").write_text("changed")
    assert fresh_tree.changed(tmp_path)[0].endswith("cutegemm/a.py")
    with pytest.raises(ValueError, match="git ls-tree nothing"):
        fresh_tree.trees_of("nothing", tmp_path)
    with pytest.raises(argparse.ArgumentTypeError, match="must be two hashes"):
        fresh_tree.trees_from("abc")


COMMITTED = sorted(fresh.FOLDER.glob("**/fresh-[0-9a-f]*.json"))


@pytest.mark.sliced
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_committed_files_are_what_they_say(path):
    """Draws, order and plans of a committed file are those of its commit's own sources."""
    try:
        assert fresh_check.verify(path) == []
    except ValueError as error:
        pytest.skip(str(error))


def test_of_configs_that_cost_the_same_each_is_right(monkeypatch):
    """A tree's planner may have put first any of those that cost the least, and no other; a refusal is no plan."""

    class Option(NamedTuple):
        ns: float
        label: str

    def plan(*_, order=iter):
        return next(iter(order([Option(1.0, "a"), Option(1.001, "b"), Option(1.5, "c")])))

    def planned(case, record):
        if case is None:
            raise GemmError("refused")
        return {"own": fresh_bench.plan(case, record).label}

    monkeypatch.setattr(fresh_bench, "plan", plan)
    assert fresh_ties.choices(planned, None, H200) == {}
    found = fresh_ties.choices(planned, 1, H200)["own"]
    assert [label == found for label in "abc"] == [True, True, False]
    assert [label != found for label in "abc"] == [False, False, True]
    assert repr(found) == "'a'"
    assert fresh_bench.plan is plan


def test_regret_is_the_choice_over_the_best(run, monkeypatch):
    """Candidates are measured shortly, the best again beside the model's choice, and the figure is their ratio."""
    speeds = iter([1.0, 1.2, 0.9, 1.1])
    by_name = {}

    class Swept:
        def __init__(self, regime, sensors, **more):
            self.regime = regime.name

        def measure(self, group):
            rows = []
            for fields in group.fields:
                name = json.dumps(fields)
                ratio = by_name.setdefault(name, next(speeds, 0.8))
                case = group.case
                made = results.case_rows(
                    case, {fresh_bench.candidates.label(fields): took(10 / ratio), "cublas": took(10)},
                    plans={}, regime=self.regime, baseline="cublas",
                )  # fmt: skip
                rows.append(made[0] | {"spec": fields, "refused": None})
            return rows, []

    monkeypatch.setattr(fresh_bench.sweep, "Bench", Swept)
    monkeypatch.setattr(fresh_bench, "FINALISTS", 2)
    case = fresh_bench.cases_of("decode", TREES.seed, 1)[0]
    rows, failures = Regret(None, H200, 4).measure(case)
    assert failures == [] and [row["regime"] for row in rows] == ["screen"] * 4 + ["final"] * 3
    said = {"seed": TREES.seed, "families": ["decode"], "count": 1, "regret": True, "trees": TREES._asdict()}
    document = {"environment": {"fresh": said, "gpu": H200.name}, "rows": rows}
    assert fresh_check.pooled([document])[0]["first"] == [pytest.approx(1 / 1.2)]
    assert fresh_check.complaints(document) == []
    document["rows"] = rows[:-3]
    assert fresh_check.complaints(document)


def test_the_best_candidate_is_timed_by_other_samples_than_those_that_choose_it():
    """A config that is the fastest by chance in some rounds does not count as faster."""
    chosen, equal, slower = [10, 12, 10, 12], [12, 10, 12, 10], [13, 13, 13, 13]
    assert fresh_check._over_best(chosen, [chosen, equal, slower]) == pytest.approx(1.2**0.5)
    assert fresh_check._over_best(slower, [chosen, slower]) == pytest.approx((10 * 12) ** 0.5 / 13)
    assert fresh_check._over_best(chosen, [chosen, slower]) == 1
