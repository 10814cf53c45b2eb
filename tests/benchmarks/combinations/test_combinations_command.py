# SPDX-License-Identifier: Apache-2.0
"""How combinations are made, watched, compared and shrunk; the cases themselves run in `tests/kernels`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys

import pytest

from benchmarks.combinations import farm
from benchmarks.combinations.__main__ import DENSE_ARRAY, SETS, failed, made, main, parse, run_entry, summary
from benchmarks.combinations.cover import Array, drawn, legal
from benchmarks.combinations.factors import Meaningless, declared, shortened, value_of
from benchmarks.combinations.fields import FACTORS
from benchmarks.combinations.memory import Arena
from benchmarks.combinations.runs import Wrong, on_gpu, prepared
from benchmarks.combinations.shrink import shrunk
from cutegemm.epilogue import Graph
from cutegemm.errors import CompileError, PlanError
from cutegemm.running.numerics import reference

WORKER = """
import os, pathlib, sys, time
from benchmarks.combinations import farm
from benchmarks.combinations.__main__ import main

def run(entry, told):
    told("running")
    if entry["case"] == "hang":
        time.sleep(1e6)
    if entry["case"] == "die":
        os._exit(9)
    return {"case": entry["case"], "outcome": "ok"}

farm.RUN_SECONDS = 5.0
farm.work(pathlib.Path(sys.argv[1]), run)
"""


def meaningful(case):
    """Whether a case means anything; asks no planner."""
    try:
        declared(case)
    except Meaningless:
        return False
    return True


def test_an_array_holds_every_pair_that_is_legal():
    """Every pair of some fields' values is in a case or listed, and a listed one in none; the seed alone decides."""
    names = (
        "stages",
        "swap",
        "schedule",
        "cluster",
        "dtype",
        "a_lies",
        "b_lies",
        "c",
        "epilogue",
        "batch",
        "depth",
    )
    factors = {name: FACTORS[name] for name in names}
    array = Array(
        3, lambda case: meaningful(case) and not (value_of(case, "swap") and "stages" in case), factors
    )
    cases = list(array.make())
    assert array.left == 0 and array.covered + len(array.impossible) == array.pairs
    listed = set(array.impossible)
    assert ("stages", 1, "swap", True) in listed and ("a_lies", "by_2", "b_lies", "odd") not in listed
    held = set()
    for case in cases:
        values = [(name, value_of(case, name)) for name in factors]
        held |= {(*x, *y) for x, y in itertools.combinations(values, 2)}
    assert not held & {x for x in listed if "depth" not in x}
    again = Array(3, array.accepts, factors)
    assert [shortened(x) for x in itertools.islice(again.make(), 5)] == [shortened(x) for x in cases[:5]]


def test_the_stored_array_holds_what_the_fields_have():
    """Every value of every field is in a case, and every pair is in one or listed."""
    stored = json.loads(DENSE_ARRAY.read_text())
    array = Array(1)
    array.take(stored["cases"], [tuple(x) for x in stored["impossible"]])
    assert array.left == 0
    for name, values in FACTORS.items():
        assert {value_of(case, name) for case in stored["cases"]} == set(values), name


def test_a_stored_array_is_extended_by_what_it_lacks(tmp_path):
    """`--extend` keeps the file's cases and adds others; without it the file is taken as it is."""
    path = tmp_path / "array"
    path.write_text(json.dumps({"cases": [{"batch": "two"}], "impossible": []}))
    for words, count in (([], 1), (["--extend", "--first", "3"], 3), ([], 3)):
        array = Array(1, meaningful)
        cases = made(array, parse(["--array", str(path), *words]))
        assert len(cases) == count and shortened(cases[0]) == {"batch": "two"}


def test_drawn_cases_are_legal_and_follow_from_seed_and_number():
    """Any worker draws the same case of a number."""
    cases = [drawn(7, i) for i in range(4)]
    assert all(map(legal, cases)) and cases == [drawn(7, i) for i in range(4)]
    assert len({str(x) for x in cases}) == 4


@pytest.mark.parametrize("name", ["a_lies", "b_lies", "out", "inputs", "batch"])
def test_tensors_lie_as_the_planner_was_told(name):
    """Each ends at most 15 bytes before its allocation does, at an address aligned as declared and no better."""
    for value in FACTORS[name]:
        case = {name: value, "epilogue": "matrix"} if name == "inputs" else {name: value}
        case |= {"c": "as_a"} if value == "in_place" else {}
        call = prepared(case, Arena("cpu"))
        for key, operand in {"a": call.made.problem.a, **dict(call.made.problem.inputs)}.items():
            view, home = call.placed[key].view, call.placed[key].bytes
            last = sum((n - 1) * s for n, s in zip(view.shape, view.stride())) + 1
            assert view.data_ptr() + last * view.element_size() == home.data_ptr() + len(home)
            assert view.data_ptr() % min(2 * operand.align, 16) == (
                operand.align if operand.align < 16 else 0
            )


@pytest.mark.parametrize("fault", ["value", "beside", None])
def test_a_wrong_value_and_a_write_beside_the_output_are_found(fault, monkeypatch):
    """What runs on the CPU in the place of kernels is right; spoiled, it is not."""
    real = reference.evaluate
    case = {"out": "strided", "a_lies": "odd", "batch": "two", "before": "out"}

    def spoiled(graph: Graph, a, b, inputs, dtype):
        found = real(graph, a, b, inputs, dtype)
        if fault == "value":
            found["d"].view(-1)[3] += 1.0
        if fault == "beside":
            # an element between two of a, whose rows are padded
            a.as_strided((1,), (1,), a.storage_offset() + a.shape[-1]).fill_(1.0)
        return found

    monkeypatch.setattr(reference, "evaluate", spoiled)
    monkeypatch.setattr("cutegemm.running.backends.torch_backend.evaluate", spoiled, raising=False)
    if fault is None:
        on_gpu(case, Arena("cpu"))
        return
    with pytest.raises(Wrong, match="d: 1 of" if fault == "value" else "in or around a were written"):
        on_gpu(case | ({"a_lies": "by_8", "depth": "odd"} if fault == "beside" else {}), Arena("cpu"))


def test_a_failure_is_shrunk_to_the_fields_that_show_it():
    """Fields stay only if the case passes without them."""
    case = {
        "stages": 3,
        "swizzle": "64B",
        "store": "direct",
        "shape": "waves",
        "batch": "two",
        "dtype": "fp16",
    }
    fails = lambda x: value_of(x, "store") == "direct" and value_of(x, "batch") == "two"
    assert shrunk(case, fails, accepts=meaningful) == {"store": "direct", "batch": "two"}


def test_a_worker_that_hangs_or_dies_is_named_and_replaced(tmp_path):
    """The case at hand is marked, and those behind it run."""
    cases = ["one", "hang", "two", "die", "three"]
    entries = [{"id": x, "case": x} for x in cases]
    lines = farm.farm(entries, 1, tmp_path, command=(sys.executable, "-c", WORKER), seconds=100)
    assert [(x["id"], x["outcome"]) for x in lines] == [
        ("one", "ok"), ("hang", "hung"), ("two", "ok"), ("die", "died"), ("three", "ok"),
    ]  # fmt: skip
    assert lines[1]["why"] == "hung while running" and lines[1]["case"] == "hang"
    assert "status 9" in lines[3]["why"]


@pytest.mark.parametrize(
    ("error", "accepted", "outcome", "bad"),
    [
        (None, True, "ok", False),
        (PlanError("younger"), False, "refused", False),
        (PlanError("older"), True, "refused by the run", True),
        (CompileError("no"), True, "does not compile", True),
    ],
)
def test_what_the_planner_accepts_may_not_be_refused_later(error, accepted, outcome, bad):
    """Only what it refuses itself is passed over."""

    def emulated(case):
        if error is not None:
            raise error

    of = dataclasses.replace(SETS[False], emulated=emulated, legal=lambda case: accepted)
    line = run_entry({"case": {"batch": "two"}}, lambda stage: None, "emulator", None, of) | {"id": "array 0"}
    assert line["outcome"] == outcome and failed(line) is bad
    found = summary([line], 1)
    assert len(found["failures"]) == bad and found["refused"] == (outcome == "refused")


def test_pairs_of_cases_that_are_not_right_are_not_covered(tmp_path):
    """The results file counts those of right cases alone."""
    array, lines, out = (tmp_path / x for x in ("array", "lines", "out"))
    cases = [{}, {"batch": "two"}]
    array.write_text(json.dumps({"cases": cases, "impossible": []}))
    count = len(FACTORS) * (len(FACTORS) - 1) // 2
    for outcome, held in (
        ("ok", count + len(FACTORS) - 1),
        ("refused by the run", count),
        ("refused", count),
    ):
        ran = [{"id": f"array {i}", "case": cases[i], "outcome": ("ok", outcome)[i]} for i in (0, 1)]
        lines.write_text("".join(json.dumps(x) + "\n" for x in ran))
        files = ["--array", str(array), "--lines", str(lines), "--out", str(out), "--backend", "emulator"]
        assert main(files) == (outcome == "refused by the run")
        assert json.loads(out.read_text())["array"]["covered"] == held


def test_a_case_with_a_line_is_not_run_again(tmp_path):
    """`--lines` and `--share` leave the cases to run that have no line and belong to the share, small ones first."""
    cases = [{"depth": "deep"}, {}, {"batch": "two"}]
    array, lines, out = (tmp_path / x for x in ("array", "lines", "out"))
    array.write_text(json.dumps({"cases": cases, "impossible": []}))
    ran = [{"id": f"array {i}", "case": cases[i], "outcome": "ok"} for i in (0, 1)]
    lines.write_text("".join(json.dumps(x) + "\n" for x in ran))
    files = ["--array", str(array), "--lines", str(lines), "--out", str(out), "--backend", "emulator"]
    assert main([*files, "--share", "0/2"]) == 0
    found = json.loads(out.read_text())["array"]
    assert (found["cases"], found["run"], found["ok"]) == (2, 2, 2)
    assert [json.loads(x)["id"] for x in lines.read_text().splitlines()] == ["array 0", "array 1"]
