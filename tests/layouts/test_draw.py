# SPDX-License-Identifier: Apache-2.0
"""The pictures, the worked example of every docstring, and what the package imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

import cutegemm.layouts
from cutegemm.layouts.banks import access
from cutegemm.layouts.draw import draw_phases

MODULES = [name for _, name, _ in pkgutil.iter_modules(cutegemm.layouts.__path__)]


def test_phases_mark_idle_and_crowded_banks():
    """An idle bank is a dot, more than 9 words a plus, and the totals are those of the usage."""

    def drawn(addresses, width):
        usage = access(addresses, width)
        return draw_phases([[len(words) for words in phase] for phase in usage.phases]).splitlines()

    lines = drawn([128 * t for t in range(32)], 4)
    assert lines[1] == "phase 0  +" + 31 * "." + "  32 wavefronts"
    assert lines[-1] == "total    32 wavefronts, 31 conflicts"
    assert len(drawn([16 * t for t in range(32)], 16)) == 1 + 4 + 1


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    """Each module has worked examples and they are true."""
    result = doctest.testmod(importlib.import_module(f"cutegemm.layouts.{name}"), verbose=False)
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_modules_need_nothing_but_python(name):
    """The layouts import the standard library, the errors and the hardware table, and nothing else."""
    tree = ast.parse(Path(importlib.import_module(f"cutegemm.layouts.{name}").__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    own = {"cutegemm.errors", "cutegemm.arch.sm90", "cutegemm.layouts"}
    for module in imported:
        standard = module.split(".")[0] in sys.stdlib_module_names
        assert module in own or module.startswith("cutegemm.layouts.") or standard
