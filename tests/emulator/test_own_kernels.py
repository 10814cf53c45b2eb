# SPDX-License-Identifier: Apache-2.0
"""The project's own kernels, exactly as the DSL compiles them and its host code launches them, on the emulator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import GemmSpec, Tile
from cutegemm.arch.records import DEFAULT
from cutegemm.compiling import kernel_cache
from cutegemm.database import choose
from cutegemm.emulator import Buffer, Options, Step, run_steps
from cutegemm.gemm import Gemm
from cutegemm.problems import problem
from tests.support.emulator_launch import aligned, to_bits, to_values


def matrix(operand, rng, guard: int = 0):
    """Memory of an operand, and its (batch, rows, cols) view."""
    kind = operand.dtype.value
    dtype = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}[kind]
    memory = aligned(operand.rows * operand.cols * operand.batch, dtype)
    memory[...] = to_bits(rng.standard_normal(memory.size).astype(np.float32), kind)
    row, col, batch = operand.strides
    view = np.lib.stride_tricks.as_strided(
        memory, (operand.batch, operand.rows, operand.cols), [s * memory.itemsize for s in (batch, row, col)]
    )
    return memory, view


def emulate(spec, shape, *, alpha=1.0, beta=0.0, options=None, **kinds):
    """Run a spec on a problem; returns (largest scaled error, findings)."""
    of = problem(*shape, **kinds)
    rng = np.random.default_rng(sum(shape))
    gemm = Gemm(spec)
    memory = {name: matrix(getattr(of, name), rng) for name in "abcd" if getattr(of, name) is not None}
    memory["d"][0].view(np.uint8)[...] = 0xFF  # NaN in every dtype
    workspace = aligned(max(gemm.workspace_bytes(of), 16), np.uint8, 0xFF)
    addresses = {name: x.ctypes.data for name, (x, _) in memory.items()}
    numbers = {"alpha": alpha} | ({"beta": beta} if "c" in memory else {})
    launches = gemm.launches(of, addresses, workspace.ctypes.data, **numbers)
    # the launches are those of the database's choice, where it has one
    configs = [step.config for step in choose(spec, of, DEFAULT).plan.steps]
    steps = [
        Step(kernel_cache.artifact(config).ptx, x.grid, x.block, x.cluster, x.smem, x.params)
        for config, x in zip(configs, launches, strict=True)
    ]
    buffers = [Buffer(m.ctypes.data, m.nbytes, n.upper()) for n, (m, _) in memory.items()]
    buffers.append(Buffer(workspace.ctypes.data, workspace.nbytes, "workspace"))
    reports = run_steps(steps, buffers, options)
    value = {n: to_values(view, getattr(of, n).dtype.value) for n, (_, view) in memory.items()}
    want = alpha * (value["a"] @ value["b"])
    scale = abs(alpha) * np.abs(value["a"]) @ np.abs(value["b"])
    if "c" in value:
        want, scale = want + beta * value["c"], scale + abs(beta) * np.abs(value["c"])
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-24}[of.d.dtype.value]
    bound = unit * np.abs(want) + 2.0**-23 * math.sqrt(max(shape[2], 1)) * scale + 2.0**-24
    error = np.abs(value["d"] - want) / bound
    return (math.inf if np.isnan(error).any() else float(error.max())), [
        f for r in reports for f in r.findings
    ]


POLICIES = [Options(policy="lazy", races=True), Options(policy="random", seed=1, races=True)]
CASES = {
    "aligned": (GemmSpec(), (128, 256, 192), {}),
    "ragged": (GemmSpec(), (131, 72, 200), {"c_dtype": "bf16", "alpha": 2.0, "beta": 0.5}),
    "odd": (GemmSpec(), (63, 77, 33), {"c_dtype": "bf16", "beta": 1.0}),
    "fp32": (GemmSpec(), (70, 66, 40), {"dtype": "fp32"}),
    "cluster": (
        GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 1), stages=3),
        (300, 136, 136),
        {"dtype": "fp16"},
    ),
    "tile 256x192": (GemmSpec(tile=Tile(256, 192, 64), swap=False), (200, 200, 72), {"c_dtype": "bf16"}),
    "tile 192x256 in halves": (
        GemmSpec(tile=Tile(192, 256, 64), consumers=3, swap=False),
        (200, 264, 72),
        {"c_dtype": "bf16", "beta": 0.5},
    ),
    "transposed": (GemmSpec(tile=Tile(128, 128, 64)), (136, 136, 72), {"majors": "mn", "d_dtype": "fp32"}),
}


@pytest.mark.sliced
@pytest.mark.parametrize("options", POLICIES, ids=["lazy", "random"])
@pytest.mark.parametrize("case", list(CASES))
def test_own_kernels_are_right_and_free_of_races(case, options):
    """Every kernel family computes D within rounding, and the detector stays silent."""
    spec, shape, kinds = CASES[case]
    error, findings = emulate(spec, shape, options=options, **kinds)
    assert not findings, [str(f) for f in findings[:3]]
    assert error <= 1.5


EDGES = st.sampled_from([1, 7, 8, 16, 63, 64, 65, 127, 128, 129, 130])


@settings(max_examples=6)
@given(
    m=EDGES,
    n=EDGES,
    k=EDGES,
    majors=st.sampled_from(["kn", "kk", "mn", "mk"]),
    beta=st.sampled_from([0.0, 1.0, -0.5]),
)
def test_shapes_around_every_tile_edge(m, n, k, majors, beta):
    """Small and odd shapes of every major, with and without C, through the default spec."""
    kinds = {"c_dtype": "bf16"} if beta else {}
    error, _ = emulate(GemmSpec(), (m, n, k), beta=beta, majors=majors, **kinds)
    assert error <= 1.5
