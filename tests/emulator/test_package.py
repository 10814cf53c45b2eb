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
from cutegemm.emulator import Launch, run_sequence
from cutegemm.emulator.launching import progress_bar
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
    """Only errors and checks of single values are shared: a second opinion must not come from the planner it checks."""
    ours = {name for name in imported(path) if name.split(".")[0] == "cutegemm"}
    assert all(
        name in ("cutegemm.errors", "cutegemm.checks") or name.startswith("cutegemm.emulator")
        for name in ours
    ), ours


# A package knows itself and those before.
FLOORS = (
    "ptx",
    "numbers",
    "state",
    "units",
    "translate",
    "watch",
    "races",
    "launching",
    "",
)
# Pairs that do not know each other.
ASIDE = {("watch", "translate"), ("races", "translate"), ("ptx", "numbers"), ("numbers", "ptx")}
MOST_FILES = 15


def modules() -> dict[str, Path]:
    """Every module of the package by its name after `cutegemm.emulator`."""
    root = Path(cutegemm.emulator.__file__).parent
    return {".".join(p.relative_to(root).with_suffix("").parts): p for p in FILES if p.name != "__init__.py"}


def arrows() -> set[tuple[str, str]]:
    """Which module imports which, by name; `from package import module` counts as the module."""
    known, out = modules(), set()
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cutegemm.emulator"):
                target = node.module.removeprefix("cutegemm.emulator").lstrip(".")
                for alias in node.names:
                    joined = f"{target}.{alias.name}".lstrip(".")
                    out.add((name, joined if joined in known else target))
    return out


def test_packages_import_downwards():
    """No module imports from a layer above its own, types included; observers know nothing of translation."""
    floor = lambda name: name.split(".")[0] if "." in name else ""  # noqa: E731
    for name, target in arrows():
        assert FLOORS.index(floor(target)) <= FLOORS.index(floor(name)), (name, target)
        assert (floor(name), floor(target)) not in ASIDE, (name, target)


def test_packages_are_small():
    """At most fifteen modules lie in each package."""
    names = [name.rpartition(".")[0] for name in modules()]
    assert {name: names.count(name) for name in names if names.count(name) > MOST_FILES} == {}


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
    monkeypatch.setattr(progress_bar, "PATIENCE", 0.0)
    body = " mov.u32 %r0, 1;"
    run(body, [aligned(1, np.uint32)], grid=(4, 1, 1), progress=True)
    assert "emulating CTAs" in capsys.readouterr().err
    run(body, [aligned(1, np.uint32)], grid=(4, 1, 1), progress=False)
    assert capsys.readouterr().err == ""


REFUSALS = {
    "policy='hasty': one of eager, lazy, random": {"policy": "hasty"},
    "block=(1025, 1, 1): must be from 1 to (1024, 1024, 64); nearest legal value: (1024, 1, 1)": {
        "threads": 1025
    },
    "cluster=(2, 1, 1): must divide the grid (3, 1, 1); nearest legal value: (1, 1, 1)": {
        "grid": (3, 1, 1),
        "cluster": (2, 1, 1),
    },
    "smem_bytes=232449: must be from 0 to 232448; nearest legal value: 232448": {"smem": 232449},
}


@pytest.mark.parametrize("message", list(REFUSALS))
def test_launches_the_hardware_refuses_are_refused(message):
    """Geometry, shared memory and parameters are checked before anything runs; the message is pinned."""
    with pytest.raises(EmulatorError) as e:
        run(" mov.u32 %r0, 1;", [aligned(1, np.uint32)], **REFUSALS[message])
    assert str(e.value) == message


NO_PTX = {
    "empty": " ",
    "words": "no kernel at all",
    "cut": kernel_text(" mov.u32 %r0, 1;")[:-3],
    "half a statement": kernel_text(" mov.u32 %r0, 1;").rpartition(";")[0],
    "unknown type": kernel_text("").replace(".u64 p0", ".u63 p0"),
    "no operand": kernel_text(" wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16;"),
    "no label": kernel_text(" bra nowhere;"),
    "setmaxnreg without a number": kernel_text(" setmaxnreg.inc.sync.aligned.u32 [;"),
    "nothing to do": kernel_text("").replace("ret;", ""),
}


@pytest.mark.parametrize("case", list(NO_PTX))
def test_text_that_is_no_kernel_is_refused(case):
    """Whatever the reader or the translator stumbles over is an error about the PTX."""
    with pytest.raises(EmulatorError) as e:
        run("", [aligned(1, np.uint64)], text=NO_PTX[case])
    assert e.value.field == "ptx" and len(e.value.rule) > 5


def test_a_sequence_is_checked_before_its_first_launch():
    """An error in the last launch is raised before the first one writes."""
    x = aligned(1, np.uint32)
    store = kernel_text(" ld.param.u64 %rd0, [p0]; st.global.u32 [%rd0], 7;")
    good, bad = ({"ptx": store, "grid": 1, "block": 32, "args": [x], **more} for more in ({}, {"cluster": 2}))
    with pytest.raises(EmulatorError, match="^cluster="):
        run_sequence([Launch(**good), Launch(**bad)])
    assert x[0] == 0
    run_sequence([Launch(**good)])
    assert x[0] == 7


def test_missing_parameters_are_refused():
    """A launch brings exactly the parameters the kernel declares."""
    with pytest.raises(EmulatorError, match=r"^params=\[\]: k declares parameters of \[8\] bytes; .* \[8\]$"):
        run("", [], text=kernel_text(" mov.u32 %r0, 1;", params=1))
