# SPDX-License-Identifier: Apache-2.0
"""Kernels of every kind: each compiles, uses exactly the shared memory that was planned, does not spill, and holds the
instructions that its spec stands for."""

import contextlib
import dataclasses
import functools
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cutegemm import GemmSpec, KernelPlan, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch import sm90 as hw
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import compile_config
from cutegemm.config import KernelConfig
from cutegemm.errors import CompileError
from cutegemm.planning.planner import plan
from cutegemm.problems import Problem
from tests.support.fused_kernels import (
    FIELDS,
    FIELDS_SHAPE,
    LIBRARY,
    READY,
    SHAPES,
    everything,
    gemm_of,
    problem_of,
)
from tests.support.kernel_cases import CASES
from tests.support.rows import names

SMALL = Tile(128, 64, 64)


@epi.define
def norms(acc, *, gain: epi.Col):
    """Nothing but reductions."""
    return epi.Output(sums=epi.Sum(acc * gain, axis=1), top=epi.LogSumExp(acc, axis=0), all=epi.Max(abs(acc)))


def grid() -> Iterator[tuple[str, GemmSpec, Problem]]:
    """Kernels to check: those that the emulator runs in other tests, and those that need most registers."""
    for name, case in CASES.items():
        yield name, case.spec, case.problems()[0]
    for (name, schedule), graph in ((x, LIBRARY[x[0]]) for x in READY):
        yield f"fused {name}, {schedule}", gemm_of(graph, schedule).spec, problem_of(graph, SHAPES[0])
    for name, fields in FIELDS.items():
        yield f"fused {name}", gemm_of(everything, **fields).spec, problem_of(everything, FIELDS_SHAPE)
    worst = problem(512, 512, 512, d_dtype="fp32", c_dtype="fp32", d_major="m")
    for schedule, consumers, m, n in (
        ("cooperative", 1, 128, 144), ("cooperative", 2, 256, 192), ("cooperative", 3, 192, 256),
        ("cooperative", 3, 384, 128), ("multistage", 2, 256, 160), ("pingpong", 2, 128, 192),
    ):  # fmt: skip
        spec = GemmSpec(tile=Tile(m, n, 64), schedule=schedule, consumers=consumers)
        yield f"most accumulators, {schedule} {consumers} {m}x{n}", spec, worst
    for schedule in ("pingpong", "simt"):
        spec = GemmSpec(epilogue=norms, schedule=schedule, tile="auto" if schedule == "simt" else SMALL)
        yield f"norms, {schedule}", spec, problem(512, 512, 512, epilogue=norms)


GRID = {name: (spec, of) for name, spec, of in grid()}
# Most bytes that a thread spills: on the CUDA cores two CTAs an SM are worth more than a few addresses in registers
# (`planning.simt_tiles`).
SPILLS = {x: 40 for x in GRID if "simt" in x}


@functools.cache
def plan_of(name: str) -> KernelPlan:
    """The plan of a kernel of the grid."""
    return plan(*GRID[name])


@pytest.fixture(scope="module", autouse=True)
def compiled(request):
    """Every kernel of the rows that run, compiled in parallel; one that fails is left to its own test."""
    with contextlib.suppress(CompileError):
        kernel_cache.ensure(
            [step.config for name in GRID if name in names(request) for step in plan_of(name).steps]
        )


def resources_of(step):
    """Resources of a step's kernel, from the cache."""
    return kernel_cache.artifact(step.config).resources


def gemm_resources(p):
    """Resources of a plan's GEMM kernel."""
    return resources_of(next(step for step in p.steps if step.name == "gemm"))


@pytest.mark.sliced
@pytest.mark.parametrize("name", GRID)
def test_it_compiles_fits_and_does_not_spill(name):
    """Shared memory is what the plan says, registers are the launch's, and no thread has a stack but of `SPILLS`."""
    p = plan_of(name)
    for step in p.steps:
        used = resources_of(step)
        assert used.frame_bytes <= (SPILLS.get(name, 0) if step.name == "gemm" else 0)
        assert used.registers <= hw.LIMITS.registers_per_thread and used.smem_bytes <= hw.SMEM_BYTES
        assert used.registers * used.threads <= hw.REGISTERS_PER_SM
    used = gemm_resources(p)
    assert used.threads == p.config.threads
    if isinstance(p.config, KernelConfig):
        assert used.smem_bytes == p.smem_bytes


def runs_simt(spec: GemmSpec, of: Problem) -> bool:
    """Whether a kernel runs on the CUDA cores."""
    return spec.schedule == "simt" or of.a.dtype.bytes == 4


def expected(config) -> dict[str, bool]:
    """Which characteristic instructions a config's kernel must hold (True) or must not (False)."""
    if not isinstance(config, KernelConfig):
        return {"wgmma": False, "tma_load": False, "tma_store": False, "fma.f32": True}
    if config.adds_up:
        # who stores depends on the reduction
        return {"wgmma": True, "setmaxnreg": config.registers is not None}
    loads = (config.a.load, config.b.load)
    boxed = [x.boxed for x in config.stage]
    inputs, stores = [x.load for x in config.inputs], [x.store for x in config.outputs]
    return {
        "wgmma": True,
        "tma_load": "tma" in loads or "tma" in inputs or any(boxed),
        "tma_multicast": config.cluster_size > 1,
        "tma_store": "tma" in stores,
        "setmaxnreg": config.registers is not None,
        "stmatrix": any(x.store != "direct" and x.dtype.bytes == 2 for x in config.outputs),
        "st.global": set(stores) != {"tma"} or bool(config.epilogue.reductions),
        "ld.global": "gather" in loads
        or any(x == "shift" and not y for x, y in zip(loads, boxed, strict=True))
        or "direct" in inputs
        or bool(config.device_scalars),
    }


@pytest.mark.sliced
@pytest.mark.parametrize("name", GRID)
def test_it_holds_the_instructions_of_its_spec(name):
    """WGMMA, TMA loads and stores, multicast, stmatrix and setmaxnreg stand in the PTX exactly where planned."""
    p = plan_of(name)
    counts = gemm_resources(p).instructions
    assert {x: counts[x] > 0 for x in expected(p.config)} == expected(p.config)


@pytest.mark.sliced
@pytest.mark.parametrize("name", [x for x, (spec, of) in GRID.items() if not runs_simt(spec, of)])
def test_wgmma_has_the_planned_shape(name):
    """Every wgmma is m64nNk16 with the planned N, of the problem's type, accumulating in fp32."""
    p = plan_of(name)
    pattern = r"wgmma\.mma_async\.sync\.aligned\.(\w+)\.(\w+)\.(\w+)\.(\w+)"
    found = set(re.findall(pattern, kernel_cache.artifact(p.config).ptx))
    kind = {"bf16": "bf16", "fp16": "f16"}[p.config.a.dtype.value]
    assert found == {(f"m64n{p.config.mma_columns}k16", "f32", kind, kind)}
    passes = p.config.passes * p.config.tile[2] // 16
    assert gemm_resources(p).instructions["wgmma"] % passes == 0


def test_a_kernel_that_the_dsl_refuses_is_reported():
    """A config that cannot be fails in one short line: the family, the compiler's last words; the rest beside it."""
    config = plan(GemmSpec(tile=SMALL), problem(512, 512, 512)).config
    # without what the config has worked out of its own tile, for whoever asked before
    broken = object.__new__(type(config))
    for x in dataclasses.fields(config):
        object.__setattr__(broken, x.name, getattr(config, x.name))
    object.__setattr__(broken, "tile", (128, 60, 64))
    with pytest.raises(
        CompileError, match=r"^warp_specialized kernel does not compile: \S.{19,239}\nconfig: "
    ) as e:
        compile_config(broken)
    assert "\n" not in e.value.rule and e.value.context["config"].startswith("KernelConfig(")
    words = e.value.rule.removesuffix(" ...").split(": ", 1)[1]
    assert "SMEM layout" in words and words[-40:] in str(e.value.__cause__)


def test_a_kernel_that_takes_long_is_announced(monkeypatch, capsys):
    """A line says what is compiled and for how long."""
    monkeypatch.setattr("cutegemm.compiling.progress.QUIET_PIPE_SECONDS", 0.02)
    compile_config(plan(GemmSpec(tile=SMALL), problem(512, 512, 512)).config)
    said = capsys.readouterr().err.splitlines()
    assert said and all(
        re.fullmatch(r"cutegemm: compiling a warp_specialized kernel, \d+ s so far", x) for x in said
    )


NO_STREAMS = """
import os, sys
told = os.dup(1)
os.close(2)
sys.stderr = sys.stdout = None
from cutegemm.compiling.compiler import compile_config
from tests.support.compiled import CONFIG
os.write(told, str(compile_config(CONFIG).resources.frame_bytes).encode())
try:
    os.fstat(2)
except OSError:
    os.write(told, b" closed")
"""


def test_a_service_without_standard_streams_compiles():
    """Where sys.stderr is None and descriptor 2 is closed kernels compile, and both stay as they were."""
    done = subprocess.run([sys.executable, "-c", NO_STREAMS], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 closed")
