# SPDX-License-Identifier: Apache-2.0
"""The run over suites: resumption, the time limit, failures, the command line."""

from dataclasses import asdict

import pytest
import torch
from rich.console import Console

from benchmarks import correctness, gemm, inputs, results, timing
from benchmarks.results import Case, Measurement, Results
from benchmarks.suites import SUITES
from benchmarks.timing import Contender

CASES = gemm.select(["small"], [], ["bf16"], ["kk"])
ENVIRONMENT = {"gpu": "H", "date": "2026-01-02", "sources": "digest"}


class FakeBench:
    """Takes `seconds` on its clock a case; refuses the cases in `refused`."""

    def __init__(self, seconds: float = 10.0, refused: tuple[Case, ...] = ()) -> None:
        self.now = 0.0
        self.seconds = seconds
        self.refused = refused
        self.measured: list[Case] = []

    def keys(self, case):
        return [asdict(case) | {"contender": name, "regime": "burst"} for name in ("cutegemm", "cublas")]

    def measure(self, case):
        self.now += self.seconds
        self.measured.append(case)
        names = ("cublas",) if case in self.refused else ("cutegemm", "cublas")
        times = {name: Measurement(us=2.0, us_min=1.0, us_max=3.0, rounds=3) for name in names}
        rows = results.case_rows(case, times, plans={}, regime="burst", baseline="cublas")
        return rows, [("cutegemm", "no [such] tile")] if case in self.refused else []


def go(path, bench: FakeBench, max_seconds: float = 1e9):
    """One run of the command over `CASES`, and what it printed."""
    console = Console(record=True, width=150)
    out = Results(path, ENVIRONMENT)
    return gemm.run(
        CASES, bench, out, max_seconds=max_seconds, console=console, clock=lambda: bench.now
    ), console


def test_every_case_is_measured_and_written(tmp_path):
    """A run with time enough measures all cases and leaves a row per contender."""
    outcome, console = go(tmp_path / "r.json", FakeBench())
    assert outcome == gemm.Outcome(skipped=0, measured=8, failures=[], left=0)
    assert len(results.load(tmp_path / "r.json")["rows"]) == 16
    assert "2.00 us |     0.3 TFLOP/s | x cublas 1.000" in console.export_text()


def test_time_limit_stops_before_it_is_exceeded(tmp_path):
    """No case starts that, taking as long as the longest so far, would end too late; the rest is left."""
    bench = FakeBench(seconds=10)
    outcome, _ = go(tmp_path / "r.json", bench, max_seconds=35)
    assert (outcome.measured, outcome.left, bench.now) == (3, 5, 30)


def test_second_run_goes_on_where_the_first_stopped(tmp_path):
    """What the first run measured, the second skips."""
    first, second = FakeBench(), FakeBench()
    go(tmp_path / "r.json", first, max_seconds=35)
    outcome, _ = go(tmp_path / "r.json", second)
    assert (outcome.skipped, outcome.measured) == (3, 5)
    assert first.measured + second.measured == CASES


def test_crash_loses_only_the_case_in_flight(tmp_path):
    """An error in the third case leaves the first two on disk."""
    bench = FakeBench()
    whole = bench.measure

    def measure(case):
        if len(bench.measured) == 2:
            raise RuntimeError("illegal instruction")
        return whole(case)

    bench.measure = measure
    with pytest.raises(RuntimeError, match="illegal instruction"):
        go(tmp_path / "r.json", bench)
    assert {row["m"] for row in results.load(tmp_path / "r.json")["rows"]} == {64, 128}


def test_refused_case_is_reported_and_tried_again(tmp_path):
    """A failure is told with its reason, the other contender is timed, and the next run tries again."""
    bench = FakeBench(refused=(CASES[1],))
    outcome, console = go(tmp_path / "r.json", bench)
    assert outcome.failures == [("small 128x128x128 bf16 kk cutegemm", "no [such] tile")]
    assert "NOT TIMED: no [such] tile" in console.export_text()
    again = FakeBench()
    go(tmp_path / "r.json", again)
    assert again.measured == [CASES[1]]


def test_wrong_contender_is_not_timed(monkeypatch):
    """A contender with a wrong D is reported, with the reason, and gets no row; the right one is timed."""

    def wrong(x):
        x.out.zero_()

    def right(x):
        x.out.copy_(x.a.float() @ x.b.float())

    made = {"cutegemm": Contender("cutegemm", wrong), "cublas": Contender("cublas", right)}
    monkeypatch.setattr(gemm.contenders, "make", lambda name, case: made[name])
    on_cpu = inputs.make_sets
    timed = []

    def measure(contenders, sets, regime, **_):
        timed.extend(c.name for c in contenders)
        return {c.name: Measurement(us=1.0, us_min=1.0, us_max=1.0, rounds=1) for c in contenders}

    monkeypatch.setattr(timing, "measure", measure)
    monkeypatch.setattr(gemm.inputs, "make_sets", lambda case, device, count: on_cpu(case, "cpu", 2))
    bench = gemm.Bench(["cutegemm", "cublas"], timing.REGIMES["burst"], sensors=None)
    rows, failures = bench.measure(CASES[0])
    assert timed == ["cublas"] == [row["contender"] for row in rows]
    assert failures[0][0] == "cutegemm" and "Frobenius error" in failures[0][1]
    assert results.key(rows[0]) == results.key(bench.keys(CASES[0])[1]), (
        "what is measured is what is looked up"
    )


def test_wrong_result_is_not_a_gemm_error():
    """A wrong result is a defect, no refusal of input."""
    assert not issubclass(correctness.WrongResult, ValueError)


def test_select_is_the_product():
    """Suites and custom shapes, each in every dtype and choice of majors, no two alike."""
    chosen = gemm.select(["odd", "small"], [(1, 2, 3)], ["bf16", "fp16"], ["kk", "kn"])
    assert len(chosen) == len(set(chosen)) == 4 * (len(SUITES["odd"]) + len(SUITES["small"]) + 1)
    assert Case(suite="custom", dtype="fp16", majors="kn", m=1, n=2, k=3) in chosen


def test_command_line():
    """Lists are split and defaults are those of the documentation."""
    words = "--suites odd,square --shapes 1x2x3,4x5x6 --out f.json --commit abc"
    args = gemm.parse(words.split())
    assert (args.suites, args.shapes) == (["odd", "square"], [(1, 2, 3), (4, 5, 6)])
    assert (args.dtype, args.majors, args.contenders) == (["bf16"], ["kk"], ["cutegemm", "cublas"])
    assert (args.regime, args.max_seconds) == ("sustained", float("inf"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--suites squares", "squares: must be among square, prefill"),
        ("--shapes 1x2", "1x2: must be M x N x K"),
    ],
)
def test_command_line_refuses(capsys, words, message):
    """An unknown name or a malformed shape is refused with what is legal."""
    with pytest.raises(SystemExit):
        gemm.parse([*words.split(), "--out", "f", "--commit", "c"])
    assert message in capsys.readouterr().err


@pytest.mark.gpu
def test_command_on_the_gpu(tmp_path):
    """The whole command checks, times and writes a small problem, and the second time skips it."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    out = tmp_path / "r.json"
    words = f"--shapes 256x256x256 --regime burst --out {out} --commit abc".split()
    assert gemm.main(words) == 0
    ours, cublas = results.load(out)["rows"]
    assert ours["ratio"] == cublas["us"] / ours["us"] and 1 < ours["us"] < 100
    assert ours["plan"] and ours["watts"] > 10 and ours["us_min"] <= ours["us"] <= ours["us_max"]
    assert gemm.main(words) == 0 and results.load(out)["rows"] == [ours, cublas]
