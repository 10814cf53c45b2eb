# SPDX-License-Identifier: Apache-2.0
"""A grid of specs: each compiles, uses exactly the shared memory that was planned, does not spill, and holds the
instructions that its spec stands for."""

import contextlib
import dataclasses
import re

import pytest

from cutegemm import GemmSpec, Tile, cache, plan, problem
from cutegemm import hardware as hw
from cutegemm.compile import compile_config
from cutegemm.config import KernelConfig
from cutegemm.errors import CompileError
from cutegemm.problem import Problem

SMALL = Tile(128, 64, 64)
ALIGNED = {"m": 512, "n": 512, "k": 512}


def strided(of: Problem, name: str) -> Problem:
    """The problem with one operand's elements two apart."""
    x = getattr(of, name)
    return dataclasses.replace(of, **{name: dataclasses.replace(x, strides=tuple(2 * s for s in x.strides))})


def odd(of: Problem, names: str) -> Problem:
    """The problem with odd leading dimensions of the named operands."""
    for name in names:
        x = getattr(of, name)
        row, col, step = x.strides
        leading = (row + 1, col, step) if x.unit_col else (row, col + 1, step)
        of = dataclasses.replace(of, **{name: dataclasses.replace(x, strides=leading)})
    return of


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
    found["raster n"] = GemmSpec(tile=SMALL, raster=("n", 4)), base
    found["one consumer, two passes"] = GemmSpec(tile=SMALL, consumers=1), base
    for majors in ("kk", "mn", "mk"):
        found[f"majors {majors}, fp16"] = GemmSpec(tile=SMALL), problem(**ALIGNED, majors=majors, dtype="fp16")
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
    worst = problem(**ALIGNED, d_dtype="fp32", c_dtype="fp32", d_major="m")  # needs most registers
    for schedule, consumers, m, n in (("cooperative", 1, 128, 144), ("cooperative", 2, 128, 256),
                                      ("cooperative", 3, 192, 192), ("multistage", 2, 256, 160)):  # fmt: skip
        spec = GemmSpec(tile=Tile(m, n, 64), schedule=schedule, consumers=consumers)
        found[f"most accumulators, {schedule} {consumers}"] = spec, worst
    found["simt fp32"] = GemmSpec(), problem(**ALIGNED, dtype="fp32", c_dtype="fp32")
    found["simt fp32, strided"] = GemmSpec(), strided(problem(**ALIGNED, dtype="fp32"), "a")
    found["simt bf16"] = GemmSpec(schedule="simt"), base
    found["relayout rows"] = GemmSpec(tile=SMALL, a_load="relayout"), odd(base, "a")
    found["relayout strided"] = GemmSpec(tile=SMALL, b_load="relayout"), strided(base, "b")
    return found


GRID = grid()


PLANS = {name: plan(spec, of) for name, (spec, of) in GRID.items()}


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Every kernel of the grid, compiled in parallel; one that fails is left to its own test."""
    with contextlib.suppress(CompileError):
        cache.ensure([step.config for p in PLANS.values() for step in p.steps])


def resources_of(step):
    """Resources of a step's kernel, from the cache."""
    return cache.artifact(step.config).resources


def test_the_grid_is_wide():
    """At least sixty different kernels are checked."""
    assert len({p.config for p in PLANS.values()}) >= 60


@pytest.mark.parametrize("name", GRID)
def test_it_compiles_fits_and_does_not_spill(name):
    """Shared memory is what the plan says, registers are within the launch's, and no thread has a stack."""
    p = PLANS[name]
    for step in p.steps:
        used = resources_of(step)
        assert used.frame_bytes == 0
        assert used.registers <= hw.MAX_REGISTERS and used.smem_bytes <= hw.SMEM_BYTES
        assert used.registers * used.threads <= hw.REGISTERS_PER_SM
    used = resources_of(p.steps[-1])
    assert used.threads == p.config.threads
    if isinstance(p.config, KernelConfig):
        assert used.smem_bytes == p.smem_bytes


def expected(config) -> dict[str, bool]:
    """Which characteristic instructions a config's kernel must hold (True) or must not (False)."""
    if not isinstance(config, KernelConfig):
        return {"wgmma": False, "tma_load": False, "tma_store": False, "fma.f32": True}
    loads = (config.a.load, config.b.load)
    return {
        "wgmma": True,
        "tma_load": "tma" in loads,
        "tma_multicast": config.cluster_size > 1,
        "tma_store": config.store == "tma",
        "setmaxnreg": config.registers is not None,
        "stmatrix": config.store != "direct" and config.d.dtype.bytes == 2,
        "st.global": config.store != "tma",
        "ld.global": "gather" in loads or config.c is not None,
    }


@pytest.mark.parametrize("name", GRID)
def test_it_holds_the_instructions_of_its_spec(name):
    """WGMMA, TMA loads and stores, multicast, stmatrix and setmaxnreg stand in the PTX exactly where planned."""
    p = PLANS[name]
    counts = resources_of(p.steps[-1]).instructions
    assert {x: counts[x] > 0 for x in expected(p.config)} == expected(p.config)


@pytest.mark.parametrize("name", [x for x, (spec, _) in GRID.items() if spec.schedule != "simt" and "simt" not in x])
def test_wgmma_has_the_planned_shape(name):
    """Every wgmma is m64nNk16 with the tile's N, of the problem's type, accumulating in fp32."""
    p = PLANS[name]
    pattern = r"wgmma\.mma_async\.sync\.aligned\.(\w+)\.(\w+)\.(\w+)\.(\w+)"
    found = set(re.findall(pattern, cache.artifact(p.config).ptx))
    kind = {"bf16": "bf16", "fp16": "f16"}[p.config.a.dtype.value]
    assert found == {(f"m64n{p.config.tile[1]}k16", "f32", kind, kind)}
    passes = p.config.passes * p.config.tile[2] // 16
    assert resources_of(p.steps[-1]).instructions["wgmma"] % passes == 0


def test_a_kernel_that_the_dsl_refuses_is_reported():
    """A config no planner makes fails with the family, the compiler's last lines and the config."""
    config = plan(GemmSpec(tile=SMALL), problem(**ALIGNED)).config
    broken = dataclasses.replace(config, tile=(128, 60, 64))
    with pytest.raises(CompileError, match=r"(?s)^warp_specialized kernel does not compile: .*config: KernelConfig"):
        compile_config(broken)
