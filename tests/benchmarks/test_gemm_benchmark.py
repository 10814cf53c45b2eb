# SPDX-License-Identifier: Apache-2.0
"""The benchmark over suites: which problems, which contenders, the command line."""

import pytest
import torch

from benchmarks import correctness, gemm, inputs, results, timing
from benchmarks.results import Case, Measurement
from benchmarks.suites import SUITES
from benchmarks.timing import Contender
from tests.support.fake_gpu import FakeGpu

CASES = gemm.select(["small"], [], None, ["kk"])


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


def test_suites_have_their_types_and_batches():
    """Suite fp32 is in fp32 whatever is asked for the others, and batched problems carry their batch."""
    chosen = gemm.select(["fp32", "batched"], [], ["bf16", "fp16"], ["kk"])
    assert {case.dtype for case in chosen if case.suite == "fp32"} == {"fp32"}
    assert len([case for case in chosen if case.suite == "fp32"]) == len(SUITES["fp32"])
    assert {case.dtype for case in chosen if case.suite == "batched"} == {"bf16", "fp16"}
    assert {case.batch for case in chosen if case.suite == "batched"} == {4, 8, 32, 64, 128, 256}


@pytest.mark.parametrize("size", ["batch", "fp32"])
def test_every_kind_of_problem_is_measured(monkeypatch, size):
    """A batch and an fp32 problem are checked, timed side by side and described, on a fake GPU."""
    gpu = FakeGpu()
    seconds = {"cutegemm": 10e-6, "cublas": 20e-6}
    real = gemm.contenders.make

    def make(name, case):
        return gpu.costing(Contender(name, real("cublas", case).call), seconds[name])

    monkeypatch.setattr(gemm.contenders, "make", make)
    monkeypatch.setattr(gemm.inputs, "set_count", lambda case: 2)
    more = {"dtype": "bf16", "batch": 3} if size == "batch" else {"dtype": "fp32"}
    case = Case(suite="custom", majors="kk", m=16, n=24, k=32, **more)
    regime = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-3, rounds=4)
    bench = gemm.Bench(["cutegemm", "cublas"], regime, None, device=gpu, memory="cpu")
    rows, failures = bench.measure(case)
    assert failures == [] and rows[0]["ratio"] == pytest.approx(2.0)
    assert rows[0]["samples"] == pytest.approx([10.0] * 4)
    assert rows[0]["tflops"] == pytest.approx(case.flops / 10e-6 / 1e12)
    assert ("3:16x24x32" if size == "batch" else " 16x24x32") in gemm.describe(rows[0])


def test_command_line():
    """Lists are split and defaults are those of the documentation."""
    words = "--suites odd,square --shapes 1x2x3,4x5x6 --out f.json --commit abc"
    args = gemm.parse(words.split())
    assert (args.suites, args.shapes) == (["odd", "square"], [(1, 2, 3), (4, 5, 6)])
    assert (args.dtype, args.majors, args.contenders) == (None, ["kk"], ["cutegemm", "cublas"])
    assert (args.regime, args.seconds, args.device) == ("sustained", float("inf"), 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--suites squares", "squares: must be among square, prefill"),
        ("--shapes 1x2", "1x2: must be M x N x K"),
        ("--shapes axbxc", "axbxc: must be M x N x K"),
        ("--shapes 0x2x3", "0x2x3: must be M x N x K, each at least 1"),
        ("", "nothing to measure: give --suites or --shapes"),
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
