# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/extending.md run as they stand there."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, launch_layout, plan, problem
from cutegemm.arch import instructions
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import compile_config, record_launches
from cutegemm.dtypes import DType
from cutegemm.emulator import Options, Step, run_steps, tensor_buffer
from cutegemm.errors import EmulatorError
from cutegemm.gemm import build
from cutegemm.kernels.host import operand_layouts
from cutegemm.kernels.mainloop import frame
from cutegemm.running.numerics import reference
from tests.support.numerics import assert_close
from tests.support.watched import RACES

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BF16 = torch.bfloat16


def source(name):
    """A marked example of the page."""
    return re.search(f"<!-- example:{name} -->\n```python\n(.*?)```", PAGE.read_text(), re.S)[1]


def example(name, tmp_path):
    """The module of a marked example of the page."""
    path = tmp_path / f"{name}.py"
    path.write_text(source(name))
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("m, n, k", [(200, 136, 192)])
def test_a_scheduler_is_one_class(tmp_path, monkeypatch, m, n, k):
    """The page's scheduler, put in the table, gives another kernel that computes the same GEMM without a race."""
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=3, swap=False, scheduler="persistent")
    gemm = build(spec)
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    first, static = emulator.run(gemm, a, b, options=RACES), gemm.ptx
    monkeypatch.setitem(frame.SCHEDULERS, "static", example("scheduler", tmp_path).Backwards)
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    made = []
    monkeypatch.setattr(
        kernel_cache, "artifact", lambda config, **_: made.append(compile_config(config)) or made[-1]
    )
    second = emulator.run(build(spec), a, b, options=RACES)
    assert made
    assert_close(second.d, a, b)
    assert torch.equal(first.d, second.d) and not second.findings
    assert static not in [x.ptx for x in made]


# example -> most files and lines that it may take, as `docs/extending.md` says
MOST = {"scheduler": (3, 15), "groups": (3, 150), "flags": (3, 60), "type": (5, 60)}


# tables with a row for each scheduler, beside the file of its class
TABLES = (frame.SCHEDULERS, launch_layout.SCHEDULER_READS)


@pytest.mark.parametrize("name", MOST)
def test_an_extension_is_small(name):
    """An example has few lines in few files: a class with rows of two tables, or rows of tables and a `DType`."""
    text = source(name)
    files, lines = MOST[name]
    rows = re.findall(r"^# (\S+\.py)$", text, re.M)
    assert all((Path(launch_layout.__file__).parent / x).exists() for x in rows)
    assert 1 + (len(rows) if name == "type" else len(TABLES)) <= files
    assert len([x for x in text.splitlines() if x.strip()]) <= lines


def test_a_type_is_rows_of_tables(tmp_path, monkeypatch):
    """Without its rows a pair of types is refused; with the page's it computes a GEMM in the emulator."""
    kind = DType.FP8_E4M3
    for table, key in (
        (instructions.INSTRUCTIONS, (kind, kind, instructions.EXACT)), (operand_layouts.NUMERIC, kind),
        (operand_layouts.FORMS, "fp8"), (reference.TORCH_DTYPE, kind),
    ):  # fmt: skip
        monkeypatch.delitem(table, key)
    with pytest.raises(KeyError):
        instructions.instruction(kind, kind)
    example("type", tmp_path)
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    monkeypatch.setattr(kernel_cache, "artifact", lambda config, **_: compile_config(config))
    a, b = (torch.randn(64, 64).to(torch.float8_e4m3fn) for _ in range(2))
    spec = GemmSpec(a_dtype="fp8_e4m3", tile=Tile(64, 64, 128), sms=1, swap=False)
    found = emulator.run(build(spec), a, b.T, options=RACES)
    assert found.d.dtype == BF16 and not found.findings
    torch.testing.assert_close(found.d.float(), a.float() @ b.T.float(), rtol=2**-7, atol=2**-7)


@pytest.fixture
def extended(tmp_path, monkeypatch):
    """Make a class of the page the scheduler of plain kernels, and name the tensor that it reads."""

    def extend(name, scheduler, tensor):
        monkeypatch.setitem(frame.SCHEDULERS, "static", getattr(example(name, tmp_path), scheduler))
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


@pytest.mark.sliced
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
