# SPDX-License-Identifier: Apache-2.0
"""The emulator stands alone: it knows no spec, plan or kernel, and shows its progress when asked."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import cutegemm.emulator
from cutegemm.emulator.state import progress
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, kernel_text, run

FILES = sorted(Path(cutegemm.emulator.__file__).parent.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Modules a file imports, by name."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            out.add(node.module or "")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_nothing_of_the_builder_is_imported(path):
    """Only cutegemm.errors is shared: a second opinion must not come from the planner it checks."""
    ours = {name for name in imported(path) if name.split(".")[0] == "cutegemm"}
    assert all(name == "cutegemm.errors" or name.startswith("cutegemm.emulator") for name in ours), ours


# A package knows itself and those before.
FLOORS = (
    "ptx",
    "numbers",
    "state",
    "units",
    "translate",
    "watch",
    "",
)
ASIDE = {("translate", "watch"), ("watch", "translate"), ("ptx", "numbers"), ("numbers", "ptx")}  # strangers


def modules() -> dict[str, Path]:
    """Every module of the package by its name after `cutegemm.emulator`."""
    root = Path(cutegemm.emulator.__file__).parent
    return {".".join(p.relative_to(root).with_suffix("").parts): p for p in FILES if p.name != "__init__.py"}


def for_types_alone(node: ast.stmt) -> bool:
    """Whether a statement is an `if TYPE_CHECKING` that only imports."""
    guard = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return guard and not node.orelse and all(isinstance(x, ast.ImportFrom) for x in node.body)


def arrows() -> set[tuple[str, str]]:
    """Which module imports which, by name; `from package import module` counts as the module."""
    known, out = modules(), set()
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        # Types name what a module is handed, from above too; what is imported for them alone never runs.
        tree.body = [node for node in tree.body if not for_types_alone(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cutegemm.emulator"):
                target = node.module.removeprefix("cutegemm.emulator").lstrip(".")
                for alias in node.names:
                    joined = f"{target}.{alias.name}".lstrip(".")
                    out.add((name, joined if joined in known else target))
    return out


def test_packages_import_downwards():
    """No module imports from a floor above its own, and translation and observers do not know each other."""
    floor = lambda name: name.split(".")[0] if "." in name else ""  # noqa: E731
    for name, target in arrows():
        assert FLOORS.index(floor(target)) <= FLOORS.index(floor(name)), (name, target)
        assert (floor(name), floor(target)) not in ASIDE, (name, target)


def test_modules_import_each_other_in_no_circle():
    """The graph of imports can be sorted (graphlib raises CycleError with the circle)."""
    graph: dict[str, set[str]] = {}
    for name, target in arrows():
        graph.setdefault(name, set()).add(target)
    list(TopologicalSorter(graph).static_order())


def test_the_emulator_is_loaded_on_first_use():
    """`cutegemm.emulator` works after `import cutegemm` alone, which does not load it."""
    code = (
        "import sys, cutegemm; assert 'cutegemm.emulator' not in sys.modules;"
        "cutegemm.emulator.run; assert not hasattr(cutegemm, 'emulater')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_progress_shows_past_a_second(monkeypatch, capsys):
    """The bar appears on standard error once patience has run out, and only when wanted."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    body = " mov.u32 %r0, 1;"
    run(body, [aligned(1, np.uint32)], grid=(4, 1, 1), progress=True)
    assert "emulating CTAs" in capsys.readouterr().err
    run(body, [aligned(1, np.uint32)], grid=(4, 1, 1), progress=False)
    assert capsys.readouterr().err == ""


REFUSALS = {
    "policy='hasty': one of eager, lazy, random": {"policy": "hasty"},
    "block=(1025, 1, 1): 1 to 1024 threads": {"threads": 1025},
    "cluster=(2, 1, 1): must divide the grid (3, 1, 1)": {"grid": (3, 1, 1), "cluster": (2, 1, 1)},
    "smem_bytes=232449: with 0 static bytes exceeds 232448": {"smem": 232449},
}


@pytest.mark.parametrize("message", list(REFUSALS))
def test_launches_the_hardware_refuses_are_refused(message):
    """Geometry, shared memory and parameters are checked before anything runs; the message is pinned."""
    with pytest.raises(EmulatorError) as e:
        run(" mov.u32 %r0, 1;", [aligned(1, np.uint32)], **REFUSALS[message])
    assert str(e.value) == message


def test_missing_parameters_are_refused():
    """A launch brings exactly the parameters the kernel declares."""
    with pytest.raises(EmulatorError, match="^params=<0 values>: k declares 1$"):
        run("", [], text=kernel_text(" mov.u32 %r0, 1;", params=1))
