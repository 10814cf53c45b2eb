# SPDX-License-Identifier: Apache-2.0
"""Every handwritten stage, as NVRTC compiles it and its own plan launches it, on the emulator."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import handwritten
from cutegemm.emulator import Buffer, Launch, Module, Options, launch
from cutegemm.emulator.state.tensors import TensorMap, encode
from handwritten.ladder import plans
from handwritten.ladder.problem import Matrix, Problem
from tests.support.emulator_launch import aligned, to_bits, to_values
from tests.support.ladder_variants import variants

KINDS = {"fp32": ("f32", 4, np.float32), "bf16": ("bf16", 2, np.uint16), "fp16": ("f16", 2, np.float16)}


def memory(rows: int, cols: int, dtype: str, col_major: bool, rng) -> tuple[np.ndarray, np.ndarray, Matrix]:
    """Packed memory of a matrix (pitch a multiple of 8 elements), its (rows, cols) view and its description."""
    inner, outer = (rows, cols) if col_major else (cols, rows)
    pitch = -(-inner // 8) * 8
    store = aligned(pitch * outer, KINDS[dtype][2])
    store[...] = to_bits(rng.standard_normal(store.size).astype(np.float32), dtype)
    view = store.reshape(outer, pitch)[:, :inner]
    return store, view.T if col_major else view, Matrix(store.ctypes.data, rows, cols, pitch, col_major)


def parameter(argument, workspace: int) -> bytes:
    """The bytes of one kernel argument."""
    if isinstance(argument, plans.TensorMap):
        kind, item, _ = KINDS[argument.dtype]
        pitch, extents, box = (argument.pitch_bytes,), tuple(argument.extents), tuple(argument.box)
        return encode(TensorMap(argument.pointer, kind, item, extents, pitch, box, (1, 1), 3, 0, False))
    if isinstance(argument, plans.Workspace):
        return (workspace + argument.offset).to_bytes(8, "little")
    if isinstance(argument, ctypes.c_void_p):
        return int(argument.value or 0).to_bytes(8, "little")
    return bytes(argument)


def largest_error(stage, dtype: str, majors: str, shape, options: Options) -> float:
    """Largest error of D relative to its rounding and to fp32 sums."""
    m, n, k = shape
    rng = np.random.default_rng(1)
    a, a_view, a_matrix = memory(m, k, dtype, majors[0] == "c", rng)
    b, b_view, b_matrix = memory(k, n, dtype, majors[1] == "c", rng)
    (c, c_view, c_matrix), (d, d_view, d_matrix) = (memory(m, n, dtype, False, rng) for _ in range(2))
    d.view(np.uint8)[...] = 0xFF
    plan = stage.plan(Problem(dtype, a_matrix, b_matrix, d_matrix, c_matrix, 1.5, 0.5))
    workspace = aligned(max(plan.workspace_bytes, 16), np.uint8)
    buffers = [
        Buffer(x.ctypes.data, x.nbytes, name)
        for name, x in zip("ABCDW", (a, b, c, d, workspace), strict=True)
    ]
    module = Module.parse(stage.compiled(dtype, majors).ptx)
    for step in plan.launches:
        params = [parameter(x, workspace.ctypes.data) for x in step.arguments]
        what = Launch(
            grid=step.grid, block=(step.threads, 1, 1), smem_bytes=step.smem, params=params, buffers=buffers
        )
        launch(module.kernel(step.kernel), what, options)
    values = [to_values(x, dtype) for x in (a_view, b_view, c_view, d_view)]
    want = 1.5 * values[0] @ values[1] + 0.5 * values[2]
    scale = 1.5 * np.abs(values[0]) @ np.abs(values[1]) + 0.5 * np.abs(values[2])
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}[dtype]
    error = np.abs(values[3] - want) / (unit * np.abs(want) + 2.0**-23 * np.sqrt(k) * scale)
    return np.inf if np.isnan(error).any() else error.max()


def cases():
    """Every stage with its dtypes, row- and column-major, on an odd shape where it takes one."""
    for stage in handwritten.stages():
        for dtype, majors in variants(stage):
            if majors in ("rr", "cc"):
                shape = (70, 72, 40) if stage.takes(dtype, 70, 72, 40, majors) else (64, 128, 64)
                yield pytest.param(stage, dtype, majors, shape, id=f"{stage.key}-{dtype}-{majors}")


@pytest.mark.parametrize("stage, dtype, majors, shape", list(cases()))
def test_a_stage_is_right_under_late_completion(stage, dtype, majors, shape):
    """D = 1.5 A B + 0.5 C within rounding, with every copy and product completed as late as allowed."""
    assert largest_error(stage, dtype, majors, shape, Options(policy="lazy")) <= 1.5
