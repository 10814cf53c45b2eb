# SPDX-License-Identifier: Apache-2.0
"""Which places are mutated, and which tests are asked of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutants import calls, changes, judge
from benchmarks.mutants.changes import Mutant, function_at
from benchmarks.mutants.judge import Baseline

SOURCE = """ENDS = 1 + 2


def outer(x):
    def inner(y):
        return y + 1

    return inner(x) * 2
"""
MODULE = "kernels/load/rows.py"


@pytest.fixture
def tree(monkeypatch, tmp_path):
    """A package of one module in a subfolder, and tests of it."""
    module = tmp_path / "cutegemm" / MODULE
    module.parent.mkdir(parents=True)
    module.write_text(SOURCE)
    tests = tmp_path / "tests" / "kernels"
    tests.mkdir(parents=True)
    for name in ("test_other.py", "test_rows.py"):
        (tests / name).write_text("")
    for where in (changes, judge):
        monkeypatch.setattr(where, "ROOT", tmp_path)
    monkeypatch.setattr(changes, "PACKAGES", ("kernels",))
    return tmp_path


def test_modules_of_subfolders_are_mutated(tree):
    """A sample holds places of every folder; the same seed gives the same ones."""
    found = changes.sample(1, 3)
    assert {x.module for x in found} == {MODULE} and found == changes.sample(1, 3)


@pytest.mark.parametrize(("line", "name"), [(1, "<module>"), (6, "inner"), (8, "outer")])
def test_a_place_belongs_to_the_innermost_function(line, name):
    """A line of a nested function is not its outer one's; one outside of all is the module's."""
    assert function_at(SOURCE, line) == name


def test_files_that_call_a_mutants_function_are_asked_the_quickest_first(tree):
    """Where no call was seen there are none, and those of the package are asked, those named after the module first."""
    seconds = {"tests/kernels/test_a.py": 9.0, "tests/kernels/test_b.py": 1.0}
    baseline = Baseline((), seconds, {f"{MODULE}:inner": list(seconds)})
    place = lambda line: Mutant(MODULE, line, "", "", 0, 0)
    assert baseline.files(place(6)) == ["tests/kernels/test_b.py", "tests/kernels/test_a.py"]
    assert baseline.files(place(8)) == []
    assert judge.tests_of(MODULE, baseline)[0] == "tests/kernels/test_rows.py"


def test_calls_are_noted(tmp_path):
    """A session that is traced writes the functions that its tests called, of modules below the package."""
    file, found = tmp_path / "test_one.py", tmp_path / "calls.json"
    file.write_text("from cutegemm.dtypes import as_dtype\n\n\ndef test_it():\n    as_dtype('bf16')\n")
    root = Path(__file__).resolve().parents[2]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        calls.__name__,
        "-p",
        "no:cacheprovider",
        str(file),
    ]
    environment = os.environ | {calls.VARIABLE: str(found), "PYTHONPATH": str(root)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    subprocess.run(command, cwd=root, env=environment, check=True, capture_output=True)
    noted = [tuple(x) for x in json.loads(found.read_text())]
    assert ("dtypes.py", "as_dtype") in noted and ("planning/planner.py", "plan") not in noted
