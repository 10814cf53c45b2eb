# SPDX-License-Identifier: Apache-2.0
"""Every stage against fp64 on a GPU: shapes around its tile, drawn shapes within its limits, aliasing, graphs."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import handwritten
from handwritten.ladder import verify
from handwritten.ladder.problem import ELEMENT_BYTES

pytestmark = pytest.mark.gpu
STAGES = handwritten.stages()
MAX_EXTENT = 700  # of a drawn M, N or K: several tiles of every stage
DRAWS = 40


@st.composite
def problems(draw, stage):
    """A dtype, extents, majors and scalars that a stage takes; odd extents where its limits allow them."""
    dtype = draw(st.sampled_from(stage.dtypes))
    majors = draw(st.sampled_from(("rr", "rc", "cr", "cc"))) if stage.limits.col_major else "rr"
    vector = max(stage.limits.align // ELEMENT_BYTES[dtype], 1)
    needs = [
        math.lcm(stage.limits.m, vector if majors[0] == "c" else 1),
        math.lcm(stage.limits.n, vector),
        math.lcm(stage.limits.k, vector),
    ]
    shape = tuple(step * draw(st.integers(1, max(MAX_EXTENT // step, 1))) for step in needs)
    alpha = draw(st.sampled_from((1.0, -0.75, 2.0)))
    beta = draw(st.sampled_from((0.0, 1.0, 0.5)))
    return dtype, shape, majors, alpha, beta


@pytest.mark.parametrize("stage", STAGES, ids=[stage.key for stage in STAGES])
def test_around_the_tile(stage):
    """One tile, several, ragged and tiny: D is right, its surroundings untouched, NaN in an unread C ignored."""
    verify.verify(stage)


@pytest.mark.parametrize("stage", STAGES, ids=[stage.key for stage in STAGES])
def test_drawn_shapes(stage):
    """Any problem within the limits is solved within the bound."""

    @settings(max_examples=DRAWS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(problems(stage))
    def solve(problem):
        dtype, shape, majors, alpha, beta = problem
        verify.error(stage, dtype, shape, majors=majors, alpha=alpha, beta=beta)

    solve()


@pytest.mark.parametrize("stage", STAGES, ids=[stage.key for stage in STAGES])
def test_in_place(stage):
    """out may be c itself."""
    dtype = stage.dtypes[0]
    a, b, c = (verify.operand(256, 256, "r", dtype, seed) for seed in range(3))
    expected = stage.run(a, b, c, 2.0, 0.5)
    stage.run(a, b, c, 2.0, 0.5, out=c)
    # Atomics reorder sums.
    close = {"rtol": 0, "atol": 0} if stage.number != 21 else {"rtol": 2**-6, "atol": 1e-2}
    torch.testing.assert_close(c, expected, **close)


def test_replays_in_a_cuda_graph():
    """A captured run works on the tensors' contents at replay, workspace included."""
    stage = handwritten.stage("split_k_atomic")
    a, b = (verify.operand(2048, 2048, "r", "bf16", seed) for seed in range(2))
    out = torch.empty_like(a)
    stage.run(a, b, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stage.run(a, b, out=out)
    a.mul_(2)
    for _ in range(3):  # the workspace is zeroed anew each time
        graph.replay()
    torch.testing.assert_close(out.float(), (a.float() @ b.float()), rtol=2e-2, atol=1.0)


def test_a_wrong_result_is_reported():
    """The check that everything here stands on fails when alpha is not what it should be."""
    stage = handwritten.stage("coalesced")

    class Wrong:
        key, dtypes, limits = stage.key, stage.dtypes, stage.limits

        def run(self, a, b, c, alpha, beta, *, out):
            return stage.run(a, b, c, alpha * 1.001, beta, out=out)

    with pytest.raises(verify.WrongResult, match="relative error"):
        verify.error(Wrong(), "fp32", (64, 64, 64))
