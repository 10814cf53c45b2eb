# SPDX-License-Identifier: Apache-2.0
"""The run over cases: resumption, the budget, failures."""

import argparse
from dataclasses import asdict

import pytest
from rich.console import Console

from benchmarks import gemm, results, runs
from benchmarks.results import Case, Measurement, Results

CASES = gemm.select(["small"], [], None, ["kk"])
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


def go(path, bench: FakeBench, seconds: float = 1e9):
    """One run of the command over `CASES`, and what it printed."""
    console = Console(record=True, width=150)
    out = Results(path, ENVIRONMENT)
    return runs.run(
        CASES,
        bench,
        out,
        seconds=seconds,
        console=console,
        describe=gemm.describe,
        clock=lambda: bench.now,
    ), console


def test_every_case_is_measured_and_written(tmp_path):
    """A run with time enough measures all cases and leaves a row per contender."""
    outcome, console = go(tmp_path / "r.json", FakeBench())
    assert outcome == runs.Outcome(skipped=0, measured=8, failures=[], left=0)
    assert len(results.load(tmp_path / "r.json")["rows"]) == 16
    assert "2.00 us |     0.3 TFLOP/s | x cublas 1.000" in console.export_text()


def test_time_limit_stops_before_it_is_exceeded(tmp_path):
    """No case starts that, taking as long as the longest so far, would end too late; the rest is left."""
    bench = FakeBench(seconds=10)
    outcome, _ = go(tmp_path / "r.json", bench, seconds=35)
    assert (outcome.measured, outcome.left, bench.now) == (3, 5, 30)


def test_second_run_goes_on_where_the_first_stopped(tmp_path):
    """What the first run measured, the second skips."""
    first, second = FakeBench(), FakeBench()
    go(tmp_path / "r.json", first, seconds=35)
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


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_budget_must_be_positive(text):
    """A budget that is no positive number is refused by name."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    runs.add_options(parser)
    with pytest.raises(argparse.ArgumentError, match=f"--seconds: '{text}': must be a positive number"):
        parser.parse_args(["--seconds", text, "--out", "f", "--commit", "c"])
