# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/extending.md run as they stand there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, launch_layout, plan, problem
from cutegemm.compiling import cache
from cutegemm.compiling.compiler import compile_config, record_launches
from cutegemm.emulator import Options, Step, run_steps, tensor_buffer
from cutegemm.errors import EmulatorError
from cutegemm.gemm import build
from cutegemm.kernels import frame
from tests.support.numerics import assert_close

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BF16 = torch.bfloat16


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


@pytest.fixture
def extended(tmp_path, monkeypatch):
    """Make a class of the page the scheduler of plain kernels, and name the tensor that it reads."""

    def extend(name, scheduler, tensor):
        monkeypatch.setitem(frame.WALKS, "static", getattr(example(name, tmp_path), scheduler))
        monkeypatch.setitem(launch_layout.SCHEDULER_READS, "static", (tensor,))
        launch_layout.layout_of.cache_clear()

    yield extend
    launch_layout.layout_of.cache_clear()


def run_extended(spec, shape, tensors, changed=None):
    """One launch of the plan of a problem in the emulator, with tensors by name; what it found.

    `changed` are arguments by group and name that differ from the plan's.
    """
    (step,) = plan(spec, problem(*shape)).steps
    values = dict(step.values({name: x.data_ptr() for name, x in tensors.items()}, 0, {"alpha": 1.0}))
    for group, fields in (changed or {}).items():
        values[group] = {**values[group], **fields}
    made = compile_config(step.config)
    arguments = (*launch_layout.layout_of(step.config).pack(values), 0)
    steps = [
        Step(made.ptx, x.grid, x.block, x.cluster, x.smem, x.params)
        for x in record_launches(made.obj, made.ptx, arguments)
    ]
    buffers = [tensor_buffer(x, name) for name, x in tensors.items()]
    return [x for report in run_steps(steps, buffers, options=Options(races=True)) for x in report.findings]


@pytest.mark.parametrize("store", ["staged", "direct"])
@pytest.mark.parametrize("ends", [[70, 70, 71, 200], [0, 0, 150, 190], [-5, 90, 40, 300]])
def test_a_scheduler_computes_a_gemm_for_each_group_of_rows(extended, ends, store):
    """Groups of any number of rows, whose ends only the device knows, have a B each; no other row is written."""
    extended("groups", "GroupedRows", "ends")
    m, n, k = 200, 72, 96
    a, b = torch.randn(m, k).to(BF16), torch.randn(len(ends), k, n).to(BF16)
    d = torch.full((m, n), 7.0, dtype=BF16)
    tensors = {"a": a, "b": b, "d": d, "ends": torch.tensor(ends, dtype=torch.int32)}
    changed = {"shape": {"b.l": len(ends)}, "strides": {"b": (1, n, k * n)}}
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, cluster=(1, 1), swap=False, store=store)
    assert not run_extended(spec, (m, n, k), tensors, changed)
    row = 0
    for group, end in enumerate(ends):
        last = max(row, min(end, m))
        if last > row:
            assert_close(d[row:last], a[row:last], b[group])
        row = last
    assert torch.all(d[row:] == 7.0)


def test_a_producer_waits_for_flags(extended):
    """With all flags set a GEMM is right; where one never is, the report names who waits."""
    extended("flags", "Flagged", "flags")
    m, n, k = 130, 72, 128
    a, b, d = torch.randn(m, k).to(BF16), torch.randn(k, n).to(BF16), torch.empty(m, n, dtype=BF16)
    tensors = {"a": a, "b": b, "d": d, "flags": torch.ones(3, dtype=torch.int32)}
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, cluster=(1, 1), swap=False)
    assert not run_extended(spec, (m, n, k), tensors)
    assert_close(d, a, b)
    tensors["flags"][1] = 0
    with pytest.raises(EmulatorError, match="deadlock"):
        run_extended(spec, (m, n, k), tensors)
