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
from cutegemm.errors import SpecError
from cutegemm.layouts.banks import access
from cutegemm.layouts.draw import draw_banks, draw_layout
from cutegemm.layouts.layout import Layout
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle

MODULES = [name for _, name, _ in pkgutil.iter_modules(cutegemm.layouts.__path__)]


def test_draw_layout_shows_every_offset():
    """Row i, column j of the table is the offset of (i, j), under a swizzle too."""
    composed = ComposedLayout(Swizzle(2, 0, 3), 0, Layout((12, 4), (4, 1)))
    lines = draw_layout(composed).splitlines()
    assert lines[0] == "S<2,0,3> o 0 o (12,4):(4,1)"
    assert lines[1].split() == ["0", "1", "2", "3"]
    for i, line in enumerate(lines[2:]):
        head, *cells = line.split()
        assert head == f"{i}:" and cells == [str(composed(i, j)) for j in range(4)]
    assert len(lines) == 14 and len({len(line) for line in lines[1:]}) == 1


def test_draw_layout_refuses_other_ranks():
    """Only rank-2 layouts are tables."""
    with pytest.raises(SpecError, match="a table has 2 modes, got 1"):
        draw_layout(Layout(4))


def test_draw_banks_marks_idle_and_crowded_banks():
    """An idle bank is a dot, more than 9 words a plus, and the totals are those of the usage."""
    text = draw_banks(access([128 * t for t in range(32)], 4))
    assert text.splitlines()[1] == "phase 0  +" + 31 * "." + "  32 wavefronts"
    assert text.splitlines()[-1] == "total    32 wavefronts, 31 conflicts"
    assert len(draw_banks(access([16 * t for t in range(32)], 16)).splitlines()) == 1 + 4 + 1


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
