# SPDX-License-Identifier: Apache-2.0
"""Ours beside other libraries: which problems, rows of who is left out, means, the command line, the README's table."""

import pytest

from benchmarks import gemm, libraries, peer_rows, peers, results, suite_tables, suites, table, timing
from benchmarks.results import Case
from benchmarks.timing import Contender
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

SECONDS = {"cutegemm": 10e-6, "cublas": 20e-6, "quack": 15e-6, "quack_tuned": 5e-6, "torch_compile": 40e-6}
CASE = Case(suite="peers_square", dtype="bf16", majors="kk", m=16, n=24, k=32)


@pytest.fixture
def bench(monkeypatch):
    """A bench whose contenders compute on the CPU and cost `SECONDS` on a fake GPU; `faults` die or are wrong."""

    def make(faults=(), contenders=peers.NAMES):
        gpu = FakeGpu()
        real = gemm.contenders.make

        def product(name, case):
            if name in faults:
                return Contender(name, faults[name])
            return gpu.costing(Contender(name, real("cublas", case).call), SECONDS[name])

        monkeypatch.setattr(gemm.contenders, "make", product)
        monkeypatch.setattr(gemm.inputs, "set_count", lambda case: 2)
        regime = timing.Regime(name="sustained", preheat=0.0, rest=0.0, sample=1e-3, rounds=2)
        return peers.Bench(list(contenders), regime, None, device=gpu, memory="cpu")

    return make


def test_three_problems_of_each_suite():
    """Each is one of its suite, so that its rows can be set beside those of `benchmarks.gemm`."""
    for suite, named in suites.PEERS.items():
        assert len(set(named.values())) == 3 and set(named.values()) <= set(suites.extents(suite))
    assert set(suites.PEERS) == set(suites.PRODUCTS) - {"fp32", "sampled", *suites.DRAWN}
    assert {(1, 8192, 8192, 8192), (1, 16384, 16384, 16384)} <= set(suites.PEERS["square"].values())


def test_parts_make_the_whole():
    """Every problem is in one part, and parts are as long as each other."""
    whole = peers.cases(list(suites.PEERS))
    parts = [peers.cases(list(suites.PEERS), (i, 4)) for i in range(4)]
    assert {len(part) for part in parts} == {6} and set(whole) == {x for part in parts for x in part}
    assert all(x.suite.startswith("peers_") for x in whole)


def test_left_out_has_a_row_and_ours_may_not_fail(bench, tmp_path):
    """A library that dies or is wrong has the reason in its row, and is not measured again; of ours it is a failure."""

    def dies(x):
        raise libraries.LeftOut("ValueError: 16 bytes")

    def wrong(x):
        x.out.zero_()

    found = bench({"quack": dies, "torch_compile": wrong, "cutegemm": wrong})
    rows, failures = found.measure(CASE)
    assert [row["contender"] for row in rows] == peers.NAMES
    assert [row["us"] is None for row in rows] == [True, False, True, False, True]
    by_name = {row["contender"]: row for row in rows}
    assert by_name["quack"]["refused"] == "ValueError: 16 bytes" and by_name["cublas"]["refused"] is None
    assert "Frobenius error" in by_name["torch_compile"]["refused"]
    assert [name for name, _ in failures] == ["cutegemm"]
    out = results.Results(tmp_path / "r.json", ENVIRONMENT)
    out.put(rows)
    assert out.has(found.keys(CASE)) and results.load(out.path)["rows"] == rows
    assert "quack: left out: ValueError: 16 bytes" in peers.describe(by_name["quack"])
    assert "us |" in peers.describe(by_name["cublas"])


def test_what_cannot_be_captured_is_left_out(bench, monkeypatch):
    """It dies alone, before the others are timed beside it."""
    calls = []

    def capture(gpu, launch):
        launch()
        return launch

    monkeypatch.setattr(FakeGpu, "capture", capture)

    def dies_in_a_graph(x):
        calls.append(x)
        x.out.copy_(x.a.float() @ x.b.float())
        if len(calls) > 1:
            raise libraries.LeftOut("RuntimeError: capture")

    rows, failures = bench({"quack_tuned": dies_in_a_graph}).measure(CASE)
    assert [row["refused"] for row in rows] == [
        None,
        None,
        None,
        "RuntimeError: capture",
        None,
    ] and not failures


def test_small_problems_are_timed_short(bench):
    """So that few seconds go to what is never capped; keys and rows agree."""
    small = Case(suite="peers_small", dtype="bf16", majors="kk", m=16, n=24, k=32)
    found = bench(contenders=["cutegemm", "cublas"])
    rows, _ = found.measure(small)
    assert {row["regime"] for row in rows} == {"short"} == {key["regime"] for key in found.keys(small)}
    assert {key["regime"] for key in found.keys(CASE)} == {"sustained"}


def test_means_are_over_problems_both_were_timed_on(bench):
    """The geometric mean of the others' times over ours, by suite; who was left out counts nowhere."""
    rows, _ = bench().measure(CASE)
    left = [peer_rows.left_out(CASE, "quack", "why", "short")]
    found = peer_rows.means([*rows, *left])["square"]
    assert found["quack"] == pytest.approx((1.5, 1.5, 1)) and found["quack_tuned"][0] == pytest.approx(0.5)
    assert list(found) == ["cublas", "quack", "quack_tuned", "torch_compile"]


def test_table_in_full(bench):
    """A line a suite with means and leasts, empty where nobody was timed; then speed and energy of the squares."""
    odd = Case(suite="peers_odd", dtype="bf16", majors="kk", m=17, n=23, k=31)
    rows = bench().measure(CASE)[0] + bench(contenders=["cutegemm", "cublas"]).measure(odd)[0]
    for row in rows:
        row |= {"tflops": 700.0, "tflop_per_j": 1.02 if row["contender"] == "cutegemm" else None}
    text = table.render("peers", {"r.json": {"environment": ENVIRONMENT, "rows": rows}})
    said = "\n".join(suite_tables.PEERS_SAY)
    assert text.startswith(
        f"{said}\n\n"
        "| suite, three problems | × cuBLAS (least) | × quack (least) | × quack, tuned (least) "
        "| × torch.compile (least) |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| square | **2.00** (2.00) | **1.50** (1.50) | **0.50** (0.50) | **4.00** (4.00) |\n"
        "| odd | **2.00** (2.00) |  |  |  |\n"
        "\n"
        "| TFLOP/s, TFLOP/J | cutegemm | cuBLAS | quack | quack, tuned | torch.compile |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| 16×24×32 | 700, 1.02 | 700 | 700 | 700 | 700 |\n"
    )


def test_command_line(capsys):
    """Everything by default; a part that does not exist is refused."""
    words = ["--out", "f.json", "--commit", "abc"]
    args = peers.parse(words)
    assert (args.suites, args.contenders, args.part) == (list(suites.PEERS), peers.NAMES, (0, 1))
    assert peers.parse([*words, "--part", "1/4", "--suites", "odd"]).part == (1, 4)
    for text in ("4/4", "x"):
        with pytest.raises(SystemExit):
            peers.parse([*words, "--part", text])
        assert f"{text}: must be I/N" in capsys.readouterr().err
