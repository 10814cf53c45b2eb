# SPDX-License-Identifier: Apache-2.0
"""The run over fused epilogues: cases, failures, compilation, resumption, the command line."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console

from benchmarks import epilogue, fusions, gemm, results, runs, timing
from benchmarks.results import Case, Results
from tests.support.fused_cases import OF, SMALL

ENVIRONMENT = {
    "gpu": "H200",
    "torch": "2.11",
    "date": "2026-01-02T10:00:00",
    "commit": "c" * 40,
    "sources": "d",
}
REGIME = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-3, rounds=3)


class FakeDevice:
    """Runs launches on the CPU; a replay runs them again, and everything takes a millisecond."""

    def capture(self, launch):
        return launch

    def time(self, work, on_wait=None):
        work()
        return 1e-3


def bench(compiler=lambda function: function, device=None) -> epilogue.Bench:
    """A bench on the CPU whose torch.compile changes nothing."""
    console = Console(record=True, width=150)
    return epilogue.Bench(
        REGIME, None, compiler, console=console, device=device or FakeDevice(), memory="cpu"
    )


@pytest.fixture(autouse=True)
def few_sets(monkeypatch):
    """Two input sets: on the CPU there is no L2 to outrun."""
    monkeypatch.setattr(epilogue.inputs, "set_count", lambda case: 2)


def test_cases_are_those_of_the_suite():
    """The problems whose figures are set, once each, in bf16 with B as a Linear holds it."""
    assert [(c.epilogue, c.beta, c.m, c.n, c.k) for c in epilogue.cases()] == [
        ("bias_gelu_residual", 0.0, 8192, 4096, 1024),
        ("bias_gelu_residual", 0.0, 4096, 14336, 4096),
        ("bias_gelu_residual", 0.0, 8192, 8192, 8192),
        ("bias_gelu_residual", 0.0, 16, 14336, 4096),
        ("linear_combination", 0.5, 4096, 14336, 4096),
        ("linear_combination", 0.5, 8192, 4096, 1024),
        ("swiglu", 0.0, 4096, 57344, 8192),
        ("bias_quantize_fp8", 0.0, 4096, 14336, 4096),
    ]
    assert {(c.suite, c.dtype, c.majors) for c in epilogue.cases()} == {("epilogue", "bf16", "kk")}
    assert [c.epilogue for c in epilogue.cases(["swiglu"])] == ["swiglu"]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.epilogue)
def test_every_contender_is_measured_in_one_run(case):
    """A row per contender with the case's epilogue and beta, the plain GEMM the baseline of all."""
    found, failures = bench().measure(case)
    assert failures == [] and [row["contender"] for row in found] == list(fusions.names(case))
    assert {(row["epilogue"], row["beta"], row["baseline"]) for row in found} == {
        (case.epilogue, case.beta, "cutegemm_plain")
    }
    assert [results.key(row) for row in found] == [results.key(row) for row in bench().keys(case)]


def test_failing_compiler_leaves_the_others():
    """What torch.compile dies of is told in one line, and the others are measured."""

    def compiler(function):
        def call(*_, **__):
            raise RuntimeError("backend='inductor' raised:\n\nNoValidChoicesError: none\n  at x.py\nmore")

        return call

    b = bench(compiler)
    b.compile([OF["swiglu"]], seconds=1e9)
    found, failures = b.measure(OF["swiglu"])
    why = "RuntimeError: backend='inductor' raised: / NoValidChoicesError: none / at x.py"
    assert failures == [("swiglu torch_compile", why)]
    assert f"torch.compile failed: {why}" in b._console.export_text()
    assert [row["contender"] for row in found] == ["cutegemm", "cutegemm_plain", "eager"]


def test_contender_that_cannot_be_captured_is_left_out():
    """A capture that fails is tried before timing, so that it takes no other contender with it."""

    class Device(FakeDevice):
        captures = 0

        def capture(self, launch):
            self.captures += 1
            if self.captures == 1:  # cutegemm's
                raise RuntimeError("operation not permitted when stream is capturing")
            return launch

    found, failures = bench(device=Device()).measure(OF["swiglu"])
    assert [row["contender"] for row in found] == ["cutegemm_plain", "torch_compile", "eager"]
    assert failures == [("swiglu cutegemm", "RuntimeError: operation not permitted when stream is capturing")]


def test_nothing_right_is_nothing_measured(monkeypatch):
    """If every contender fails there are no rows and nothing is timed, as heating up would never end."""
    monkeypatch.setattr(timing, "measure", lambda *_, **__: pytest.fail("there is nothing to time"))

    class Device(FakeDevice):
        def capture(self, launch):
            raise RuntimeError("illegal address")

    found, failures = bench(device=Device()).measure(OF["swiglu"])
    assert found == [] and len(failures) == 4


def test_compile_comes_once_and_before():
    """A case's function is compiled once: ahead where there is time, else when it is measured."""
    made = []

    def compiler(function):
        made.append(function)
        return function

    b, clock = bench(compiler), iter(range(0, 100, 10))
    b.compile(
        [OF["linear_combination"], OF["swiglu"], OF["bias_gelu_residual"]],
        seconds=15,
        clock=lambda: next(clock),
    )
    assert made == [fusions.swiglu], "10 s had passed before swiglu, 40 before the next"
    b.measure(OF["swiglu"])
    assert made == [fusions.swiglu]
    b.measure(OF["bias_gelu_residual"])
    assert made == [fusions.swiglu, fusions.bias_gelu_residual]


def go(path, b: epilogue.Bench, todo: list[Case]) -> runs.Outcome:
    """One run of the command's loop."""
    return runs.run(
        todo, b, Results(path, ENVIRONMENT), seconds=1e9, console=b._console, describe=gemm.describe
    )


def test_second_run_goes_on(tmp_path):
    """A second run skips rows that the file has; cases of one size that differ in epilogue or beta are separate."""
    path = tmp_path / "epilogue.json"
    assert go(path, bench(), SMALL[:2]).measured == 2
    again = go(path, bench(), SMALL)
    assert (again.skipped, again.measured) == (2, 2)
    assert len(results.load(path)["rows"]) == sum(len(fusions.names(case)) for case in SMALL)


def test_without_torch_compile(tmp_path):
    """--no-compile leaves that contender out; a later run with it measures the whole problem again."""
    path, case = tmp_path / "epilogue.json", OF["swiglu"]
    assert bench(None).names(case) == ["cutegemm", "cutegemm_plain", "eager"]
    assert go(path, bench(None), [case]).measured == 1
    assert go(path, bench(), [case]).measured == 1
    found = results.load(path)["rows"]
    assert len({row["baseline_us"] for row in found}) == 1 and len(found) == 4
    assert go(path, bench(None), [case]).skipped == 1


def test_command_line(capsys):
    """Defaults are all cases with torch.compile; an unknown epilogue is refused."""
    words = ["--out", "f.json", "--commit", "abc"]
    args = epilogue.parse(words)
    assert (args.cases, args.no_compile, args.seconds) == (None, False, float("inf"))
    args = epilogue.parse([*words, "--cases", "swiglu", "bias_quantize_fp8", "--no-compile"])
    assert (args.cases, args.no_compile) == (["swiglu", "bias_quantize_fp8"], True)
    with pytest.raises(SystemExit):
        epilogue.parse([*words, "--cases", "geglu"])
    assert "invalid choice: 'geglu'" in capsys.readouterr().err


def test_command_in_full(tmp_path, monkeypatch, capsys):
    """The command measures, writes, prints every figure and succeeds; a failure is told and makes it fail."""
    monkeypatch.setattr(runs.environment, "select", lambda device: None)
    monkeypatch.setattr(runs.environment, "sensors", lambda device: None)
    monkeypatch.setattr(
        runs.environment, "record", lambda commit, reader, device: ENVIRONMENT | {"commit": commit}
    )
    monkeypatch.setattr(epilogue, "EPILOGUES", [(c.epilogue, c.beta, (c.m, c.n, c.k)) for c in SMALL])
    monkeypatch.setattr(epilogue, "max_autotune", lambda function: None)
    on_gpu = epilogue.Bench
    monkeypatch.setattr(
        epilogue, "Bench", lambda *a, **kw: on_gpu(*a, **kw, device=FakeDevice(), memory="cpu")
    )
    monkeypatch.setitem(timing.REGIMES, "sustained", REGIME)
    words = ["--out", str(tmp_path / "r.json"), "--commit", "abc", "--cases", "swiglu", "linear_combination"]
    assert epilogue.main([*words, "--no-compile"]) == 0
    printed = capsys.readouterr().out
    assert "measured 2, already there 0, left 0" in printed and "not measured" in printed
    document = results.load(tmp_path / "r.json")
    assert document["environment"]["commit"] == "abc" and len(document["rows"]) == 7
    assert epilogue.main([*words, "--seconds", "1e-9"]) == 0
    assert "measured 0, already there 1, left 1" in capsys.readouterr().out
    assert epilogue.main(words) == 1
    assert "NOT TIMED epilogue 48x128x64 bf16 kk swiglu torch_compile: TypeError" in capsys.readouterr().out


@pytest.mark.gpu
def test_contenders_on_the_gpu(tmp_path):
    """The whole loop checks, captures and times small problems with every contender but torch.compile."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    b = epilogue.Bench(REGIME, None, None, console=Console(width=150))
    outcome = go(tmp_path / "r.json", b, [replace(case, m=256, n=512, k=256) for case in SMALL])
    assert outcome.failures == [] and outcome.measured == len(SMALL)
    assert all(0.5 < row["us"] < 1000 for row in results.load(tmp_path / "r.json")["rows"])
