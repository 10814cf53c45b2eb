# SPDX-License-Identifier: Apache-2.0
"""The emulator stands alone: it knows no spec, plan or kernel, and shows its progress when asked."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from emulator_harness import aligned, kernel_text, run

import cutegemm.emulator
from cutegemm.emulator import progress
from cutegemm.errors import EmulatorError

FILES = sorted(Path(cutegemm.emulator.__file__).parent.glob("*.py"))


def imported(path: Path) -> set[str]:
    """Modules a file imports, by name."""
    out = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            out.add(node.module or "")
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_nothing_of_the_builder_is_imported(path):
    """Only cutegemm.errors is shared: a second opinion must not come from the planner it checks."""
    ours = {name for name in imported(path) if name.split(".")[0] == "cutegemm"}
    assert all(name == "cutegemm.errors" or name.startswith("cutegemm.emulator") for name in ours), ours


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
