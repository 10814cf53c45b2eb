# SPDX-License-Identifier: Apache-2.0
"""Drawn problems on compiled kernels through the emulator: every family, schedule, store, major and type; epilogues.

Three problems a case by default, two of fused epilogues, and 10,000 in all with `pytest --profile long`;
`tests/kernels/test_combinations.py` varies fields. The kernels of a case are compiled once; what is drawn is shapes
around every tile edge, batches, scalars, and the order in which asynchronous work completes.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm import emulator
from cutegemm.spec import LOADS, SCHEDULERS, SCHEDULES, STORES, SWIZZLES
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import LIBRARY, everything, gemm_of, operands, results
from tests.support.kernel_cases import CASES, GEMMS, compile_all
from tests.support.numerics import assert_close
from tests.support.patience import PATIENCE
from tests.support.profile import cases
from tests.support.rows import names
from tests.support.strategies import scalars

FUSED = {  # epilogue on a schedule
    "everything, cooperative": gemm_of(everything, "cooperative"),
    "everything, pingpong": gemm_of(everything, "pingpong", sms=2),
    "swiglu, cooperative": gemm_of(LIBRARY["swiglu halves"], "cooperative"),
    "dropout and residual, pingpong": gemm_of(LIBRARY["dropout_residual"], "pingpong"),
    "fp8, multistage": gemm_of(LIBRARY["bias_quantize_fp8"], "multistage"),
    "bias, gelu and residual, simt": gemm_of(LIBRARY["bias_act_residual gelu"], "simt"),
}
DRAWS = cases(3 * (len(CASES) + len(FUSED)), 10_000)
EACH = -(-DRAWS // (len(CASES) + len(FUSED)))
EACH_FUSED = cases(2, EACH)
BEYOND = 40  # elements of M, N and K past one tile
# Cases that meet beta = 0, too: each kind of epilogue, which is another kernel where C is not read.
UNREAD = (
    *("row, row", "store staged, D odd", "store direct", "pingpong"),
    *("multistage", "K cut in a cluster", "simt bf16"),
)


@pytest.fixture(scope="module", autouse=True)
def compiled(request):
    """Every kernel of the cases that run, compiled in parallel."""
    compile_all(names(request))


def tile_of(case) -> tuple[int, int, int]:
    """The tile that a case's plan has, along D's rows, its columns and K."""
    chosen = cutegemm.plan(case.spec, case.problems()[0])
    first, second, k = chosen.config.tile
    return (second, first, k) if chosen.swapped else (first, second, k)


@st.composite
def extents(draw, case) -> tuple[int, int, int]:
    """(M, N, K) at, next to or between the edges of the warps' and of the CTA's tile; 2 at least: vectors have other
    majors, and so other kernels."""
    out = []
    for tile in tile_of(case):
        edges = [x + d for x in (8, 16, 64, tile) for d in (-1, 0, 1) if 2 <= x + d <= tile + BEYOND]
        out.append(draw(st.sampled_from(edges) | st.integers(2, tile + BEYOND)))
    return tuple(out)


ORDERS = st.builds(
    lambda policy, seed: emulator.Options(policy=policy, seed=seed, max_seconds=PATIENCE),
    st.sampled_from(("eager", "lazy", "random")),
    st.integers(0, 9),
)
BATCHES = st.sampled_from((None, None, None, 1, 2, 3))


@pytest.mark.sliced
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=EACH)
@given(data=st.data(), alpha=scalars(), batch=BATCHES, options=ORDERS)
def test_any_problem_in_any_order(name, data, alpha, batch, options):
    """D is alpha A B + beta C within rounding, nothing around it is written, and C is not read when beta is 0."""
    case = CASES[name]
    beta = data.draw(scalars() if name in cases(UNREAD, tuple(CASES)) else scalars().filter(bool))
    broadcast = data.draw(st.sampled_from(("", "a", "b", "c"))) if batch else ""
    a, b, c, d = case.tensors(data.draw(extents(case)), "cpu", batch, broadcast)
    if c is None:
        beta = None
    elif beta == 0:
        c.fill_(torch.nan)
    run = emulator.run(GEMMS[case.spec], a, b, c, out=d.view, alpha=alpha, beta=beta, options=options)
    assert run.d is d.view
    assert_close(d.view, a, b, c, alpha, beta or 0.0)
    assert d.untouched(), "elements around out were written"


@pytest.mark.sliced
@pytest.mark.parametrize("name", FUSED)
@settings(max_examples=EACH_FUSED)
@given(shape=st.sampled_from((8, 64, 72, 128, 136)), odd=st.booleans(), data=st.data(), options=ORDERS)
def test_fused_epilogues_in_any_order(name, shape, odd, data, options):
    """Every output of a fused epilogue keeps its bound; extents that TMA takes and that it does not."""
    gemm, edge = FUSED[name], st.sampled_from((8, 16, 40, 64, 72, 104, 128, 136))
    m, n, k = (x + odd * data.draw(st.integers(1, 7)) for x in (shape, data.draw(edge), data.draw(edge)))
    batch = data.draw(st.sampled_from((None, None, 2)))
    a, b, inputs = operands(gemm.spec.epilogue, (m, n, k), "emulator", batch)
    run = emulator.run(gemm, a, b, **inputs, options=options)
    assert_outputs_close(results(run.d), gemm.spec.epilogue, a, b, inputs)


def named(case) -> set[str]:
    """What a case's spec asks for by name, and what its plan chose."""
    words = {value for value in vars(case.spec).values() if isinstance(value, str)}
    for step in cutegemm.plan(case.spec, case.problems()[0]).steps:
        config = step.config
        words.add(config.family)
        if hasattr(config, "persistent"):
            words |= {"persistent" if config.persistent else "per_tile", *(x.store for x in config.outputs)}
            words |= {config.a.load, config.b.load, *(x.swizzle for x in config.operands)}
    return words


def test_every_choice_is_drawn():
    """Every schedule, scheduler, load, store and swizzle that a spec can name is in some case."""
    words = set().union(*(named(case) for case in CASES.values()))
    if "warp_specialized" in words:
        words.add("cooperative")  # the schedule of that family
    assert {*SCHEDULES, *SCHEDULERS, *LOADS, *STORES, *SWIZZLES} <= words
