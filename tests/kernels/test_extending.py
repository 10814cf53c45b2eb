# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/extending.md run as they stand there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.compiling import cache
from cutegemm.compiling.compiler import compile_config
from cutegemm.gemm import build
from cutegemm.kernels import frame
from tests.support.numerics import assert_close

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def example(name, tmp_path):
    """The module of a marked example of the page."""
    found = re.search(f"<!-- example:{name} -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    path = tmp_path / f"{name}.py"
    path.write_text(found[1])
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("m, n, k", [(200, 136, 192)])
def test_a_walk_is_one_class(tmp_path, monkeypatch, m, n, k):
    """The page's walk, put in the table, gives another kernel that computes the same product without a race."""
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, swap=False)
    gemm = build(spec)
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    first, static = emulator.run(gemm, a, b), gemm.ptx
    monkeypatch.setitem(frame.WALKS, "static", example("walk", tmp_path).Backwards)
    monkeypatch.setattr(cache, "_MEMORY", {})
    made = []
    monkeypatch.setattr(
        cache, "artifact", lambda config, **_: made.append(compile_config(config)) or made[-1]
    )
    second = emulator.run(build(spec), a, b)
    assert made
    assert_close(second.d, a, b)
    assert torch.equal(first.d, second.d) and not second.findings
    assert static not in [x.ptx for x in made]
