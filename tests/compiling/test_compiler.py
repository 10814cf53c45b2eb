# SPDX-License-Identifier: Apache-2.0
"""A grid of specs: each compiles, uses exactly the shared memory that was planned, does not spill, and holds the
instructions that its spec stands for."""

import contextlib
import copy
import dataclasses
import re
import subprocess
import sys

import pytest

from cutegemm import GemmSpec, Operand, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch import sm90 as hw
from cutegemm.compiling import cache
from cutegemm.compiling.compiler import compile_config
from cutegemm.config import KernelConfig
from cutegemm.errors import CompileError
from cutegemm.planning.planner import plan
from cutegemm.problems import Problem

SMALL = Tile(128, 64, 64)
ALIGNED = {"m": 512, "n": 512, "k": 512}


def with_strides(of: Problem, name: str, strides) -> Problem:
    """The problem with one operand, input or output lying otherwise: `strides` makes its new ones from it."""
    change = lambda x: dataclasses.replace(x, strides=strides(x))
    if name in ("a", "b"):
        return dataclasses.replace(of, **{name: change(getattr(of, name))})
    parts = {part: getattr(of, part) for part in ("inputs", "outputs")}
    changed = {k: tuple((n, change(x) if n == name else x) for n, x in v) for k, v in parts.items()}
    return dataclasses.replace(of, **changed)


def strided(of: Problem, name: str) -> Problem:
    """The problem with one operand's elements two apart."""
    return with_strides(of, name, lambda x: tuple(2 * s for s in x.strides))


def odd(of: Problem, names: str) -> Problem:
    """The problem with odd leading dimensions of the named operands."""
    for name in names:
        of = with_strides(of, name, _odd_strides)
    return of


def _odd_strides(x: Operand) -> tuple:
    row, col, step = x.strides
    return (row + 1, col, step) if x.unit_col else (row, col + 1, step)


@epi.define
def everything(
    acc,
    *,
    bias: epi.Row,
    shift: epi.Row,
    gain: epi.Col,
    c: epi.Matrix,
    r: epi.Matrix,
    scale: epi.Scalar,
    seed: epi.Integer,
):
    """Every kind of input twice or once, two matrices stored, a reduction of every axis."""
    h = epi.gelu(acc * scale * gain + bias) + c
    kept = epi.where(epi.random(seed, seed) < 0.75, h, shift)
    return epi.Output(
        d=kept * r,
        pre=epi.Store(h),
        rows=epi.Sum(h, axis=1),
        top=epi.Max(kept, axis=0),
        norm=epi.LogSumExp(h, partial=True),
    )


@epi.define
def residual(acc, *, c: epi.Matrix, bias: epi.Row):
    """What a linear layer with a residual does."""
    return acc + bias + c


@epi.define
def norms(acc, *, gain: epi.Col):
    """Nothing but reductions."""
    return epi.Output(sums=epi.Sum(acc * gain, axis=1), top=epi.LogSumExp(acc, axis=0), all=epi.Max(abs(acc)))


@epi.define
def quantised(acc, *, scale: epi.Scalar):
    """fp8 beside fp32."""
    return epi.Output(d=epi.Store(acc * scale, dtype="fp8_e4m3"), full=epi.Store(acc, dtype="fp32"))


PAIRS = {x: epi.define(lambda gate, up: epi.silu(gate) * up, gated=x) for x in ("halves", "interleaved")}


def fused() -> dict[str, tuple[GemmSpec, Problem]]:
    """The same for fused epilogues."""
    found = {}

    def add(name, graph, schedule="cooperative", tile=SMALL, scalars=(), of=None, **fields):
        given = fields.pop("spec", {})
        made = of or problem(**ALIGNED, epilogue=graph, **fields)
        shape = {} if schedule == "simt" or made.a.dtype.bytes == 4 else {"schedule": schedule, "tile": tile}
        if schedule == "simt":
            shape = {"schedule": "simt"}
        spec = GemmSpec(epilogue=graph, **shape, **given)
        found[f"fused {name}"] = spec, dataclasses.replace(made, device_scalars=scalars)

    for schedule in ("cooperative", "pingpong", "multistage", "simt"):
        add(f"everything, {schedule}", everything, schedule)
        add(f"norms, {schedule}", norms, schedule)
        for layout in ("halves", "interleaved"):
            add(f"gated {layout}, {schedule}", PAIRS[layout], schedule, majors="kk")
    add("everything, fp32 columns", everything, d_dtype="fp32", input_dtype="fp32", d_major="m")
    add("everything, scalar on the device", everything, scalars=("scale",))
    for stages in (1, 2, 4):
        add(
            f"residual, {stages} input stages",
            residual,
            tile=Tile(128, 256, 64),
            spec={"input_stages": stages},
        )
    for store in ("staged", "direct"):
        add(f"everything, {store}", everything, spec={"store": store})
    of = problem(**ALIGNED, epilogue=residual)
    add("residual, odd C", residual, of=odd(of, ["c"]))
    add("residual, strided C, odd D", residual, of=odd(strided(of, "c"), ["d"]))
    add("quantised", quantised)
    add("quantised, direct columns", quantised, d_major="m", spec={"store": "direct"})
    add("wide, two consumers", everything, tile=Tile(128, 192, 64))
    add("everything, fp32", everything, "simt", dtype="fp32")
    return found


def grid() -> dict[str, tuple[GemmSpec, Problem]]:
    """Name -> (spec, problem), one per kernel to check."""
    base = problem(**ALIGNED)
    found = {}
    for m, n in ((64, 16), (64, 128), (64, 256), (128, 48), (128, 128), (128, 208), (128, 256), (192, 192), (256, 64),
                 (256, 128), (512, 64)):  # fmt: skip
        found[f"tile {m}x{n}"] = GemmSpec(tile=Tile(m, n, 64)), base
    for k in (16, 48, 128):
        found[f"tile depth {k}"] = GemmSpec(tile=Tile(128, 64, k)), base
    for cluster in ((1, 2), (2, 2), (1, 4), (8, 1), (4, 2)):
        found[f"cluster {cluster}"] = GemmSpec(tile=Tile(128, 128, 64), cluster=cluster), base
    found["cluster (2, 1), wide"] = GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), base
    for swizzle in ("64B", "32B", "none"):
        for majors in ("kk", "mn")[: 1 + (swizzle == "64B")]:
            spec = GemmSpec(tile=SMALL, swizzle=swizzle)
            found[f"swizzle {swizzle} {majors}"] = spec, problem(**ALIGNED, majors=majors)
    for stages in (1, 2):
        found[f"stages {stages}"] = GemmSpec(tile=SMALL, stages=stages), base
    found["epilogue stages 1"] = GemmSpec(tile=SMALL, epilogue_stages=1), base
    found["per tile"] = GemmSpec(tile=SMALL, scheduler="per_tile"), base
    found["dynamic"] = GemmSpec(tile=SMALL, scheduler="dynamic", cluster=(2, 1)), base
    found["raster n"] = GemmSpec(tile=SMALL, raster=("n", 4)), base
    found["one consumer, two passes"] = GemmSpec(tile=SMALL, consumers=1), base
    for majors in ("kk", "mn", "mk"):
        found[f"majors {majors}, fp16"] = (
            GemmSpec(tile=SMALL),
            problem(**ALIGNED, majors=majors, dtype="fp16"),
        )
    for store in ("tma", "staged", "direct"):
        for d_dtype, d_major in (("bf16", "m"), ("fp32", "n"), ("fp32", "m")):
            of = problem(**ALIGNED, d_dtype=d_dtype, c_dtype=d_dtype, d_major=d_major)
            found[f"store {store} {d_dtype} {d_major} with C"] = GemmSpec(tile=SMALL, store=store), of
    for store in ("staged", "direct"):
        found[f"store {store}, strided D"] = GemmSpec(tile=SMALL, store=store), strided(base, "d")
    for loads in (("gather", "tma"), ("tma", "gather"), ("gather", "gather")):
        for majors in ("kn", "mk"):
            spec = GemmSpec(tile=SMALL, a_load=loads[0], b_load=loads[1])
            found[f"loads {loads} {majors}"] = spec, problem(**ALIGNED, majors=majors)
    for stages in (1, 4):
        for scheduler in ("per_tile", "persistent"):
            spec = GemmSpec(tile=SMALL, schedule="multistage", stages=stages, scheduler=scheduler)
            found[f"multistage {stages} {scheduler}"] = spec, base
    for m, n, fields in ((64, 128, {}), (128, 192, {"cluster": (2, 1)}), (128, 128, {"a_load": "gather"})):
        spec = GemmSpec(tile=Tile(m, n, 64), schedule="pingpong", **fields)
        found[f"pingpong {m}x{n} {fields}"] = spec, base
    worst = problem(**ALIGNED, d_dtype="fp32", c_dtype="fp32", d_major="m")  # needs most registers
    for schedule, consumers, m, n in (
        ("cooperative", 1, 128, 144), ("cooperative", 2, 256, 192), ("cooperative", 3, 192, 256),
        ("cooperative", 3, 384, 128),
        ("multistage", 2, 256, 160), ("pingpong", 2, 128, 192),
    ):  # fmt: skip
        spec = GemmSpec(tile=Tile(m, n, 64), schedule=schedule, consumers=consumers)
        found[f"most accumulators, {schedule} {consumers}"] = spec, worst
    found["simt fp32"] = GemmSpec(), problem(**ALIGNED, dtype="fp32", c_dtype="fp32")
    found["simt fp32, strided"] = GemmSpec(), strided(problem(**ALIGNED, dtype="fp32"), "a")
    found["simt bf16"] = GemmSpec(schedule="simt"), base
    found["relayout rows"] = GemmSpec(tile=SMALL, a_load="relayout"), odd(base, "a")
    found["relayout strided"] = GemmSpec(tile=SMALL, b_load="relayout"), strided(base, "b")
    return found


GRID = grid() | fused()
# Epilogues that do not fit their registers beside the accumulators: most bytes that a thread spills.
SPILLS = {
    "fused norms, pingpong": 176,
    # addresses of single elements, beside which two CTAs an SM are worth more (`planning.simt`)
    "simt fp32, strided": 24,
    "simt bf16": 24,
    "fused everything, simt": 48,
    "fused norms, simt": 24,
    "fused everything, fp32": 16,
}


PLANS = {name: plan(spec, of) for name, (spec, of) in GRID.items()}


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Every kernel of the grid, compiled in parallel; one that fails is left to its own test."""
    with contextlib.suppress(CompileError):
        cache.ensure([step.config for p in PLANS.values() for step in p.steps])


def resources_of(step):
    """Resources of a step's kernel, from the cache."""
    return cache.artifact(step.config).resources


def gemm_resources(p):
    """Resources of a plan's GEMM kernel."""
    return resources_of(next(step for step in p.steps if step.name == "gemm"))


def test_the_grid_is_wide():
    """At least sixty different plain kernels and twenty-eight of fused epilogues are checked."""
    kernels = {name: p.config for name, p in PLANS.items()}
    assert len({x for name, x in kernels.items() if not name.startswith("fused")}) >= 60
    assert len({x for name, x in kernels.items() if name.startswith("fused")}) >= 28


@pytest.mark.parametrize("name", GRID)
def test_it_compiles_fits_and_does_not_spill(name):
    """Shared memory is what the plan says, registers are the launch's, and no thread has a stack but of `SPILLS`."""
    p = PLANS[name]
    for step in p.steps:
        used = resources_of(step)
        assert used.frame_bytes <= (SPILLS.get(name, 0) if step.name == "gemm" else 0)
        assert used.registers <= hw.LIMITS.registers_per_thread and used.smem_bytes <= hw.SMEM_BYTES
        assert used.registers * used.threads <= hw.REGISTERS_PER_SM
    used = gemm_resources(p)
    assert used.threads == p.config.threads
    if isinstance(p.config, KernelConfig):
        assert used.smem_bytes == p.smem_bytes


def expected(config) -> dict[str, bool]:
    """Which characteristic instructions a config's kernel must hold (True) or must not (False)."""
    if not isinstance(config, KernelConfig):
        return {"wgmma": False, "tma_load": False, "tma_store": False, "fma.f32": True}
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


@pytest.mark.parametrize("name", GRID)
def test_it_holds_the_instructions_of_its_spec(name):
    """WGMMA, TMA loads and stores, multicast, stmatrix and setmaxnreg stand in the PTX exactly where planned."""
    p = PLANS[name]
    counts = gemm_resources(p).instructions
    assert {x: counts[x] > 0 for x in expected(p.config)} == expected(p.config)


@pytest.mark.parametrize(
    "name", [x for x, (spec, _) in GRID.items() if spec.schedule != "simt" and "simt" not in x]
)
def test_wgmma_has_the_planned_shape(name):
    """Every wgmma is m64nNk16 with the tile's N, of the problem's type, accumulating in fp32."""
    p = PLANS[name]
    pattern = r"wgmma\.mma_async\.sync\.aligned\.(\w+)\.(\w+)\.(\w+)\.(\w+)"
    found = set(re.findall(pattern, cache.artifact(p.config).ptx))
    kind = {"bf16": "bf16", "fp16": "f16"}[p.config.a.dtype.value]
    assert found == {(f"m64n{p.config.tile[1]}k16", "f32", kind, kind)}
    passes = p.config.passes * p.config.tile[2] // 16
    assert gemm_resources(p).instructions["wgmma"] % passes == 0


def test_a_kernel_that_the_dsl_refuses_is_reported():
    """A config that cannot be fails in one short line: the family, the compiler's last words; the rest beside it."""
    broken = copy.copy(plan(GemmSpec(tile=SMALL), problem(**ALIGNED)).config)
    object.__setattr__(broken, "tile", (128, 60, 64))
    with pytest.raises(
        CompileError, match=r"^warp_specialized kernel does not compile: \S.{19,239}\nconfig: "
    ) as e:
        compile_config(broken)
    assert "\n" not in e.value.rule and e.value.context["config"].startswith("KernelConfig(")
    assert (
        str(e.value.__cause__)
        .strip()
        .endswith(e.value.rule[-300:].removesuffix(" ...").split(": ", 1)[1][-40:])
    )


def test_a_kernel_that_takes_long_is_announced(monkeypatch, capsys):
    """A line says what is compiled and for how long."""
    monkeypatch.setattr("cutegemm.compiling.progress.QUIET_PIPE_SECONDS", 0.02)
    compile_config(plan(GemmSpec(tile=SMALL), problem(**ALIGNED)).config)
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
