# SPDX-License-Identifier: Apache-2.0
"""Probes of operand types: what is drawn, checked, written and compiled, without a GPU."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
import torch
from rich.console import Console

from benchmarks import contenders, fresh_draws, results, runs, timing
from benchmarks.probes import beside, fp8, majors
from benchmarks.probes.beside import Bench, Case
from benchmarks.results import Results
from benchmarks.timing import Contender
from cutegemm.arch.records import H200
from cutegemm.compiling import kernel_cache
from cutegemm.config import RelayoutConfig
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

REGIME = timing.Regime(name="short", preheat=0.0, rest=0.0, sample=1e-3, rounds=2)
EVERY = fp8.kinds(["auto", 256])


def bench(kinds):
    """A bench with a fake clock: every call takes a millisecond, so a graph has few of them."""
    gpu = FakeGpu()

    class Costing(Bench):
        def _made(self, kind, name, sets):
            made = super()._made(kind, name, sets)
            cost = gpu.costing(Contender(name, lambda x: None), 1e-3)
            return Contender(name, lambda x: (cost.call(x), made.call(x))[1], made.plan)

    return Costing(kinds, REGIME, None, H200, device=gpu, memory="cpu")


def case(kind, dtype, axes="kk", m=48, n=32, k=64, of="square"):
    """A small problem of a kind."""
    return Case(suite=beside.SUITE, kind=kind, of=of, dtype=dtype, majors=axes, m=m, n=n, k=k)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Two sets of inputs."""
    monkeypatch.setattr(beside.inputs, "ROTATION_BYTES", 1)


@pytest.mark.parametrize(
    ("axes", "launches"), [("mn", "relayout a and b"), ("kn", "relayout b"), ("kk", "gemm")]
)
def test_8_bits_of_every_major_stand_beside_bf16(axes, launches):
    """The row names the kernel that is chosen, copies included, and the error; operands of both types lie alike."""
    of = case("fp8", "fp8_e4m3", axes, m=512, n=512, k=512)
    made = bench(majors.KINDS)
    rows, failures = made.measure(of)
    assert not failures and [x["contender"] for x in rows] == ["ours", "ours bf16", "torch bf16"]
    assert [results.key(x) for x in rows] == [results.key(x) for x in made.keys(of)]
    assert rows[0]["plan"].startswith(launches) and "tile" in rows[0]["plan"] and rows[2]["plan"] is None
    assert rows[0]["error"] < 0.01 < rows[2]["error"] < 0.1 and rows[0]["ratio"] == pytest.approx(1)
    x = majors.KINDS["fp8"].draw(of, 0, "cpu")
    assert x.a.stride() == x.a16.stride() and x.b.stride() == x.b16.stride()
    text = beside.describe(rows[0])
    assert text.startswith("fp8 square") and "512x512x512" in text and "x torch bf16 1.000" in text


def test_integers_stand_beside_torchs():
    """Exact, each of them, and so is bf16 in the place of integers."""
    rows, failures = bench(majors.KINDS).measure(case("int8", "int8"))
    assert not failures and [x["error"] for x in rows][::2] == [0.0, 0.0] and rows[1]["error"] < 0.01


@pytest.mark.parametrize("kind", EVERY)
def test_every_kind_of_scales_and_tf32_is_measured(kind):
    """Ours is right, by each promotion; who does not serve has a row that says why, and no times."""
    made = bench(EVERY)
    of = case(kind, EVERY[kind].dtype, m=136, n=144, k=256)
    rows, failures = made.measure(of)
    assert not failures and {x["contender"] for x in rows} == set(EVERY[kind].names)
    for x in rows:
        assert set(x) == set(results.PROBE_FIELDS) and (x["us"] is None) is (x["refused"] is not None)
        assert x["us"] is not None or x["contender"].startswith("torch")
    names = [x for x in EVERY[kind].names if x.startswith("ours") and "bf16" not in x]
    assert names == (["ours auto", "ours 256"] if kind in ("tensor", "row") else names[:1])


def test_rows_are_written_at_once_and_a_run_goes_on(tmp_path):
    """Each problem's rows are in the file before the next begins; what is there is skipped."""
    todo = [case("fp8", "fp8_e4m3", axes) for axes in ("kk", "kn", "mk")]
    path, console = tmp_path / "rows.json", Console(file=io.StringIO())

    def run(seconds, clock):
        out = Results(path, dict(ENVIRONMENT))
        made = bench(majors.KINDS)
        return runs.run(
            todo,
            made,
            out,
            seconds=seconds,
            console=console,
            describe=beside.describe,
            clock=iter(clock).__next__,
        )

    assert run(5, [0, 0, 4, 4]).left == 2
    assert {x["majors"] for x in json.loads(path.read_text())["rows"]} == {"kk"}
    outcome = run(1e9, range(100))
    assert (outcome.skipped, outcome.measured, outcome.left) == (1, 2, 0)
    rows = Results(path, dict(ENVIRONMENT)).rows
    assert [x["majors"] for x in rows[::3]] == ["kk", "kn", "mk"]
    text = Console(file=io.StringIO(), width=200)
    beside.summarize(rows, text)
    assert "== fp8 square kn: torch bf16 over ours 1.000, least 1.000 of 1" in text.file.getvalue()


def test_one_that_is_wrong_is_not_timed():
    """Ours counts as a failure, torch's as left out."""
    kind = majors.KINDS["int8"]
    broken = {"int8": dataclasses.replace(kind, exact=lambda x: 2 * kind.exact(x))}
    rows, failures = bench(broken).measure(case("int8", "int8"))
    assert [name for name, _ in failures] == ["ours", "ours bf16"] and len(rows) == 3
    assert all("error 0.5 of the norm" in x["refused"] and x["us"] is None for x in rows)
    assert "left out: RuntimeError: error 0.5" in beside.describe(rows[0])


def test_kernels_are_compiled_without_a_gpu(monkeypatch):
    """All that a run needs: copies, one kernel for each promotion, those of bf16."""
    found = []
    monkeypatch.setattr(kernel_cache, "ensure", found.extend)
    assert majors.main(["--compile-only", "--kinds", "fp8", "--suites", "odd"]) == 0
    assert {x.units for x in found if isinstance(x, RelayoutConfig)} >= {
        ("col", "transposed"),
        ("col", "row"),
    }
    x = majors.KINDS["fp8"].draw(case("fp8", "fp8_e4m3", "kn", m=1023, n=1023, k=1023), 0, "meta")
    ours = majors.KINDS["fp8"].ours["ours"]
    assert set(step.config for step in ours.plan(x, H200).steps) <= set(found)
    assert contenders.plan_label(ours.plan(x, H200)).startswith("relayout a and b -> gemm")
    found.clear()
    assert (
        fp8.main(["--compile-only", "--kinds", "tensor,tf32", "--suites", "decode", "--promote", "128,none"])
        == 0
    )
    assert {x.promote for x in found if getattr(x, "operands", None) and x.operands[0].dtype.bits == 8} == {
        128,
        0,
    }
    assert any(getattr(x, "arithmetic", "") == "tf32" for x in found)


def test_the_meta_device_poses_the_same_problem():
    """A draw on the meta device has the strides, types and device scales of one on the CPU, so kernels fit both."""
    for kinds, of in (
        (EVERY, case("block", "fp8_e4m3", k=300)),
        (majors.KINDS, case("fp8", "fp8_e4m3", "mn")),
    ):
        kind = kinds[of.kind]
        for ours in kind.ours.values():
            assert ours.problem(kind.draw(of, 0, "meta")) == ours.problem(kind.draw(of, 0, "cpu"))


def test_drawn_problems_keep_their_majors():
    """Those of `fresh_draws`, of another type, under a name of their own."""
    for family, (first, *_) in ((x, fresh_draws.draw(x, 3, 2)) for x in majors.FAMILIES["fp8"]):
        found = list(beside.drawn(majors.KINDS, ["fp8"], [family], 3, 2))
        assert len(found) == 2 and found[0].what == f"fp8 fresh_{family}" and found[0].dtype == "fp8_e4m3"
        assert (found[0].m, found[0].n, found[0].k, found[0].majors) == (
            first.m,
            first.n,
            first.k,
            first.majors,
        )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "--out and --commit must be given, or --compile-only"),
        ("--out x --commit y --kinds fp9", "fp9: must be among "),
        ("--out x --commit y --suites squares", "squares: must be among "),
        ("--out x --commit y --seconds 0", "must be a positive number of seconds"),
    ],
)
@pytest.mark.parametrize("probe", [fp8, majors])
def test_a_command_line_that_is_wrong_is_refused(probe, words, told, capsys):
    """Before anything is measured."""
    with pytest.raises(SystemExit):
        probe.main(words.split())
    assert told in capsys.readouterr().err
    with pytest.raises(SystemExit):
        fp8.main(["--promote", "some"])


def test_shapes_are_some_of_the_suites_or_all():
    """`--all` asks for the suites', in each of their majors."""
    some, every = (list(majors.cases(["fp8", "int8"], list(majors.SHAPES), x)) for x in (False, True))
    assert len(some) < len(every) and {x.majors for x in every if x.of == "prefill" and x.kind == "fp8"} == {
        "mk", "mn", "kn"
    }  # fmt: skip
    assert {x.majors for x in every if x.kind == "int8"} == {"kk"}
    assert all(x.m > 16 for x in every if x.kind == "int8")
    assert torch.float8_e4m3fn.itemsize == majors.KINDS["fp8"].size
