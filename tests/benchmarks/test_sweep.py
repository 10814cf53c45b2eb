# SPDX-License-Identifier: Apache-2.0
"""Sweeps: grouped, resumed, refused specs recorded, nothing wrong timed."""

import json

import pytest
from rich.console import Console

from benchmarks import candidates, gemm, results, runs, sweep, timing
from benchmarks.results import Case, Results
from benchmarks.timing import Contender
from cutegemm.errors import GemmError
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

REGIME = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-3, rounds=2)
CASES = [Case(suite="custom", dtype="bf16", majors="kk", m=m, n=16, k=16) for m in (8, 16)]
SPECS = [{}, *({"stages": stages} for stages in range(2, 12))]
WRONG, REFUSED = "stages 3", "stages 9"  # one whose D is wrong, one that is not built


@pytest.fixture
def bench(monkeypatch):
    """A bench on a fake GPU, where more stages take longer; and the groups it compiled."""
    gpu, compiled = FakeGpu(), []
    cublas = gemm.contenders.make

    def ours(case, spec, name):
        if name == REFUSED:
            raise GemmError("stages=9: no room")
        right = cublas("cublas", case).call

        def call(x):
            right(x)
            if name == WRONG:
                x.out.zero_()

        stages = 1 if name == "auto" else spec.stages
        return gpu.costing(Contender(name, call, f"plan of {name}"), stages * 1e-3)

    monkeypatch.setattr(sweep.contenders, "cutegemm_contender", ours)
    monkeypatch.setattr(sweep.contenders, "make", lambda name, case: gpu.costing(cublas(name, case), 4e-3))
    monkeypatch.setattr(sweep.inputs, "set_count", lambda case: 2)
    monkeypatch.setattr(sweep, "plan", lambda spec, problem: type("Plan", (), {"steps": ()})())
    made = sweep.Bench(REGIME, None, device=gpu, memory="cpu", compile=compiled.append)
    made.gpu, made.compiled = gpu, compiled
    return made


def go(bench, path, *, seconds=1e9, clock=None):
    """One call of the command over the cases and specs."""
    out = Results(path, ENVIRONMENT)
    todo = sweep.groups(CASES, SPECS, out.has)
    more = {"clock": clock} if clock else {}
    outcome = runs.run(todo, bench, out, seconds=seconds, console=Console(), describe=sweep.describe, **more)
    return outcome, out.rows


def test_every_spec_has_a_row_for_every_problem(bench, tmp_path):
    """Eleven specs make two groups a problem; each row says its spec, its plan, and its ratio to its own cuBLAS."""
    outcome, rows = go(bench, tmp_path / "s.json")
    assert (outcome.measured, outcome.left, outcome.failures) == (4, 0, [])
    ours = {(row["m"], row["contender"]): row for row in rows if row["spec"] is not None}
    assert len(ours) == len(CASES) * len(SPECS)
    row = ours[8, "stages 4"]
    assert row["us"] == pytest.approx(4000) and row["ratio"] == pytest.approx(1.0)
    assert (row["spec"], row["plan"], row["refused"]) == ({"stages": 4}, "plan of stages 4", None)
    assert ours[16, "auto"]["ratio"] == pytest.approx(4.0) and ours[16, "auto"]["spec"] == {}
    assert len(bench.compiled) == 4


def test_wrong_and_refused_specs_are_recorded_without_times(bench, tmp_path):
    """A spec whose D is wrong, or that is not built, has a row with the reason and no times."""
    _, rows = go(bench, tmp_path / "s.json")
    without = {row["contender"]: row for row in rows if row["refused"]}
    assert set(without) == {WRONG, REFUSED} and all(row["us"] is None for row in without.values())
    assert "Frobenius error" in without[WRONG]["refused"] and "no room" in without[REFUSED]["refused"]
    assert "no room" in sweep.describe(without[REFUSED])


def test_a_spec_that_does_not_fit_is_recorded(bench, tmp_path, monkeypatch):
    """What the planner refuses is not compiled, and recorded with the planner's reason."""

    def refuse(spec, problem):
        raise GemmError("tile=...: too large")

    monkeypatch.setattr(sweep, "plan", refuse)
    rows, failures = bench.measure(sweep.Group(CASES[0], ("{}",)))
    assert failures == [] and [row["refused"] for row in rows] == ["GemmError: tile=...: too large"]
    assert bench.compiled == [[]]


def test_a_kernel_that_does_not_compile_costs_only_itself(bench):
    """When compiling a group fails, the specs that are built are still measured."""

    def broken(configs):
        raise GemmError("ptxas")

    bench._compile = broken
    rows, _ = bench.measure(sweep.Group(CASES[0], ("{}", json.dumps({"stages": 9}))))
    assert [row["contender"] for row in rows if row["us"]] == ["cublas", "auto"]
    assert [row["contender"] for row in rows if row["refused"]] == [REFUSED]


def test_second_call_measures_only_what_is_left(bench, tmp_path):
    """After a budget that ends it, the same call goes on with the specs that have no row, refused ones not again."""
    times = iter([0.0, 0.0, 10.0, 10.0, 20.0, 20.0])
    outcome, _ = go(bench, tmp_path / "s.json", seconds=25, clock=lambda: next(times))
    assert (outcome.measured, outcome.left) == (2, 2)
    done = len(bench.compiled)
    outcome, rows = go(bench, tmp_path / "s.json")
    assert (outcome.measured, len(bench.compiled) - done) == (2, 2)
    assert len([row for row in rows if row["spec"] is not None]) == 22
    assert go(bench, tmp_path / "s.json")[0].measured == 0


def test_new_specs_join_a_finished_sweep(bench, tmp_path):
    """Specs added to the list are measured; the others stay as they are."""
    _, before = go(bench, tmp_path / "s.json")
    out = Results(tmp_path / "s.json", ENVIRONMENT)
    todo = sweep.groups(CASES, [*SPECS, {"stages": 12}], out.has)
    assert [group.fields for group in todo] == [[{"stages": 12}]] * 2
    assert len(out.rows) == len(before)


def test_all_kernels_are_compiled_at_once(bench, monkeypatch):
    """Before anything is timed the kernels of every group are compiled in one go, each once, refused specs left out."""
    step = type("Step", (), {"config": "kernel"})()

    def planned(spec, problem):
        if spec.stages == 5:
            raise GemmError("too large")
        return type("Plan", (), {"steps": (step,)})()

    monkeypatch.setattr(sweep, "plan", planned)
    assert bench.compile_all(sweep.groups(CASES, SPECS, lambda rows: False, size=4)) == 1
    assert bench.compiled == [["kernel"]]


def test_regimes_do_not_mix(bench, tmp_path):
    """What was measured in short samples is measured again in sustained ones, and groups have the size asked for."""
    out = Results(tmp_path / "s.json", ENVIRONMENT)
    go(bench, tmp_path / "s.json")
    found = Results(tmp_path / "s.json", ENVIRONMENT)
    assert sweep.groups(CASES, SPECS, found.has) == []
    todo = sweep.groups(CASES, SPECS, found.has, regime="short", size=20)
    assert [len(group.specs) for group in todo] == [11, 11] and out.rows == []
    bench._regime = timing.REGIMES["short"]
    assert {row["regime"] for row in bench.keys(todo[0])} == {"short"}


def test_summary_says_what_choosing_costs(bench, tmp_path):
    """By problem the best spec, and by how much the planner's own choice is behind."""
    _, rows = go(bench, tmp_path / "s.json")
    for row in rows:
        if row["contender"] == "auto":
            row["ratio"] = 1.6
    console = Console(record=True, width=150)
    console.print(sweep.summary(rows))
    text = console.export_text()
    assert "stages 2" in text and "2.000" in text and "1.600" in text and "20.0%" in text


def test_rows_are_of_the_schema(bench, tmp_path):
    """What a sweep writes is read back as it was."""
    _, rows = go(bench, tmp_path / "s.json")
    assert results.load(tmp_path / "s.json")["rows"] == rows
    assert all(set(row) == set(results.SWEEP_FIELDS) for row in rows)


def test_command_line(tmp_path, capsys):
    """Specs are read before anything else; a wrong file, no problem, or an odd number of rounds is refused."""
    specs = tmp_path / "specs.json"
    specs.write_text("[{}]")
    words = ["--out", "f.json", "--commit", "abc", "--specs", str(specs)]
    args = sweep.parse([*words, "--suites", "square,batched", "--seconds", "480"])
    assert (args.candidates, args.rounds, args.seconds) == ([{}], 4, 480.0)
    for more, message in (
        ([], "nothing to measure"),
        (["--suites", "square", "--rounds", "3"], "must be an even number of at least 2"),
        (["--suites", "square", "--specs", str(tmp_path / "none")], "argument --specs:"),
    ):
        with pytest.raises(SystemExit):
            sweep.parse([*words, *more])
        assert message in capsys.readouterr().err


def test_labels_name_contenders_apart():
    """No two specs of one list share a label."""
    assert len({candidates.label(fields) for fields in SPECS}) == len(SPECS)
