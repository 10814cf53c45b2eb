# SPDX-License-Identifier: Apache-2.0
"""Every stage runs, as compiled, in the emulator: right on drawn problems, free of races, and mutants are caught."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import handwritten
from cutegemm.errors import EmulatorError
from handwritten.ladder import emulated
from handwritten.ladder.problem import ELEMENT_BYTES
from tests.support import ladder_emulation as emulation
from tests.support.emulator_pipeline import without
from tests.support.ladder_variants import variants

pytestmark = pytest.mark.sliced

STAGES = handwritten.stages()
by_key = pytest.mark.parametrize("stage", STAGES, ids=[stage.key for stage in STAGES])
# problems of a stage's type and majors: the largest, and one drawn, in the default profile
DRAWS = max(settings().max_examples // 20, 1)


def steps(stage, dtype, majors):
    """What M, N and K must be multiples of; pitches are padded to the stage's alignment by the test."""
    vector = max(stage.limits.align // ELEMENT_BYTES[dtype], 1) if stage.number == 9 else 1
    return (stage.limits.m, math.lcm(stage.limits.n, vector), math.lcm(stage.limits.k, vector))


@st.composite
def problems(draw, stage, dtype, majors):
    """A problem within the stage's limits, around its tile: often ragged, sometimes smaller than a tile."""
    tile = [stage.constants.get(name, 16) for name in ("BM", "BN", "BK")]
    most = (tile[0] + tile[0] // 2, tile[1] + tile[1] // 2, 4 * tile[2])
    shape = tuple(
        step * draw(downwards(max(extent // step, 1)))
        for step, extent in zip(steps(stage, dtype, majors), most)
    )
    return shape, draw(st.sampled_from((-0.75, 1.0))), draw(st.sampled_from((0.5, 1.0, 0.0)))


def downwards(most):
    """From 1 to `most`, which is drawn first."""
    return st.integers(0, most - 1).map(lambda x: most - x)


VARIANTS = [(stage, *variant) for stage in STAGES for variant in variants(stage)]


@pytest.mark.parametrize(
    ("stage", "dtype", "majors"), VARIANTS, ids=[f"{x.key}-{y}-{z}" for x, y, z in VARIANTS]
)
def test_right_on_drawn_problems(stage, dtype, majors):
    """Each type and majors, first with all asynchronous work as late as it may be, comes out right in any order."""

    @settings(max_examples=DRAWS)
    @given(problems(stage, dtype, majors), st.sampled_from(("lazy", "eager", "random")))
    def solve(problem, policy):
        shape, alpha, beta = problem
        emulation.solve(stage, dtype, shape, majors, alpha, beta, policy=policy)

    solve()


def ragged(stage):
    """A problem a little larger than one tile in each direction, several tiles of K."""
    tile = [stage.constants.get(name, 16) for name in ("BM", "BN", "BK")]
    wanted = (tile[0] + 9, tile[1] + 9, 5 * tile[2] + 5)
    needs = steps(stage, stage.dtypes[0], "rr")
    return tuple(-(-extent // step) * step for extent, step in zip(wanted, needs))


@by_key
def test_free_of_races(stage):
    """With every warp interleaved and all accesses tracked, the detector has nothing to say."""
    findings = emulation.solve(stage, stage.dtypes[0], ragged(stage), beta=0.5, policy="random", races=True)
    assert findings == []


MUTANTS = [
    ("smem_tile", "bar.sync"),
    ("pipelined", "bar.sync"),
    ("wmma_double_buffer", "cp.async.wait_group"),
    ("mma_sync", "cp.async.wait_group"),
    ("mma_tma", "mbarrier.try_wait"),
    ("wgmma_serial", "wgmma.wait_group"),
    ("producer_consumer", "mbarrier.try_wait"),
    ("staged_epilogue", "bar.sync"),
    ("persistent_cluster", "fence.proxy.async"),
    ("persistent_cluster", "cp.async.bulk.wait_group.read"),
]


@pytest.mark.parametrize("name, instruction", MUTANTS)
def test_a_stage_without_its_synchronisation_is_caught(name, instruction, monkeypatch):
    """Deleting some wait, fence or barrier of a kind makes the run fail: a finding, an error or a wrong D."""
    stage = handwritten.stage(name)
    dtype = stage.dtypes[0]
    module = emulated.module(stage, dtype, "rr")
    kernel = module.kernel("gemm")
    places = [i for i, ins in enumerate(kernel.code) if ins.op.startswith(instruction)]
    assert places, f"{name} has no {instruction}"
    shape = (2 * stage.constants["BM"] + 9 - 9 * (stage.limits.m > 1), *ragged(stage)[1:])

    def caught(place):
        mutant = replace(module, kernels={"gemm": without(kernel, place)})
        monkeypatch.setattr(emulated, "module", lambda *_: mutant)
        try:
            return bool(emulation.solve(stage, dtype, shape, races=True, policy="lazy", sms=2))
        except (EmulatorError, AssertionError):
            return True

    assert any(caught(place) for place in places), (
        f"none of {len(places)} deletions of {instruction} was caught"
    )
