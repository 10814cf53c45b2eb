# SPDX-License-Identifier: Apache-2.0
"""The tests' own order: folders mirror the package, helpers lie in `tests/support`, every test says its claim."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.heads import taken
from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[1]
MODULES = sorted(ROOT.glob("tests/**/*.py"))
TESTS = [path for path in MODULES if path.name.startswith("test_")]
# Of the whole: the contract of public calls, and what is only type checked.
BESIDE = {"contract", "support", "typing"}
TREES = {"": "cutegemm", "benchmarks": "benchmarks", "handwritten": "handwritten"}


@functools.cache
def facts(path: Path) -> tuple[set[str], list[int]]:
    """What a module takes from the tests, and the lines of its tests that have no docstring."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {f"{node.module}." for node in nodes if isinstance(node, ast.ImportFrom)}
    tests = [x for x in nodes if isinstance(x, ast.FunctionDef) and x.name.startswith("test_")]
    ours = {name for name in names if name.split(".")[0] == "tests"}
    return ours, [x.lineno for x in tests if not ast.get_docstring(x)]


def named(path: Path) -> str:
    """A module's name in a failure."""
    return str(path.relative_to(ROOT / "tests"))


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_only_helpers_are_imported(path):
    """What a module takes from the tests, it takes from `tests.support`."""
    ours, _ = facts(path)
    assert all(name.startswith("tests.support") for name in ours), ours


def test_folders_mirror_the_package():
    """A folder of tests is a folder of what it tests; a helper lies in `tests/support`."""
    for path in TESTS:
        folder = path.relative_to(ROOT / "tests").parent
        if folder.parts and folder.parts[0] not in BESIDE:
            tree = TREES.get(folder.parts[0])
            assert (ROOT / folder if tree else ROOT / TREES[""] / folder).is_dir(), folder
    helpers = {path.relative_to(ROOT / "tests").parent.parts[:1] for path in MODULES if path not in TESTS}
    assert helpers <= {(), ("contract",), ("support",), ("typing",)}


@pytest.mark.parametrize("path", TESTS, ids=named)
def test_every_test_says_its_claim(path):
    """A test has a docstring."""
    assert not facts(path)[1], f"{path.name}:{facts(path)[1]}"


def test_a_worker_starts_no_workers(tmp_path):
    """The whole suite starts as many workers as there are cores, and those start none."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "tests" / "test_one.py").write_text(
        "import os\n\n\ndef test_one():\n    assert os.environ['PYTEST_XDIST_WORKER']\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_commits_take_other_rows_of_sliced_tests():
    """About one row in three, each row in some run, one of few at least, and the same of any test that has a name."""
    rows = [f"row {i}" for i in range(40)]
    runs = [taken(rows, 3, number) for number in range(60)]
    assert set().union(*runs) == set(rows) and 0.28 < sum(map(len, runs)) / (60 * 40) < 0.39
    assert all(taken(rows[:2], 3, number) for number in range(60))
    assert all(taken(rows[:20], 3, number) == runs[number] & set(rows[:20]) for number in range(60))
