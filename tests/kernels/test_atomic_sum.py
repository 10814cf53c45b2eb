# SPDX-License-Identifier: Apache-2.0
"""`split_reduction="atomic"`: parts of K are added as they come, and everything else happens once, after the sum.

On the emulator, with the race detector.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.compiling import cache
from cutegemm.emulator import Options
from cutegemm.errors import SpecError
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, operands, results
from tests.support.fused_runs import GRAPHS, assert_fused
from tests.support.in_a_row import InARow
from tests.support.numerics import assert_close

SMALL = Tile(64, 64, 64)
ATOMIC = {"split_k": 3, "split_reduction": "atomic"}
CLUSTERS = {"cluster": (1, 1, 2), "split_k": 4, "split_reduction": "atomic"}
FORMS = {
    "many tiles": Gemm(GemmSpec(tile=SMALL, swap=False, sms=4, stages=2, **ATOMIC)),
    "two warpgroups, odd operands": Gemm(
        GemmSpec(tile=Tile(128, 64, 64), swap=False, sms=3, a_load="relayout", b_load="relayout", **ATOMIC)
    ),
    "clusters add up first": Gemm(GemmSpec(tile=SMALL, swap=False, sms=4, **CLUSTERS)),
    "swapped": Gemm(GemmSpec(tile=Tile(16, 64, 64), swap=True, sms=4, **CLUSTERS)),
    "pairs share B": Gemm(GemmSpec(tile=SMALL, swap=False, sms=4, **ATOMIC | {"cluster": (2, 1)})),
    "works from a counter": Gemm(GemmSpec(tile=SMALL, swap=False, sms=3, scheduler="dynamic", **ATOMIC)),
}
ORDERS = {
    "lazy": Options(policy="lazy", races=True),
    "one CTA at a time": Options(policy="lazy", races=True, resident_ctas=1),
    "random": Options(policy="random", seed=3, races=True),
}


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Matrices of bf16."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(x, generator=generator).bfloat16() for x in shapes]


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *((x, "random") for x in FORMS),
        ("many tiles", "lazy"),
        ("swapped", "lazy"),
        ("many tiles", "one CTA at a time"),
    ],
)
def test_parts_add_up_in_place_in_whatever_order_they_come(name, order):
    """D = 2 A B + C / 2 in place of C, without races; a CTA waits for one that came before it and for nobody else."""
    a, b, c = drawn((130, 264), (264, 72), (130, 72))
    before = c.clone()
    run = emulator.run(FORMS[name], a, b, c, alpha=2.0, beta=0.5, out=c, options=ORDERS[order])
    assert not run.findings
    assert_close(c, a, b, before, 2.0, 0.5)


@settings(max_examples=5)
@given(
    name=st.sampled_from(sorted(FORMS)),
    shape=st.tuples(st.integers(1, 140), st.integers(1, 140), st.integers(200, 330)),
    batch=st.sampled_from((None, 1, 3)),
    alpha=st.sampled_from((1.0, -0.5, 0.0)),
    beta=st.sampled_from((0.0, 1.0, -2.0)),
)
def test_any_shape_alpha_beta_and_batch(name, shape, batch, alpha, beta):
    """D = alpha A B + beta C over C's own memory, of every batch."""
    (m, n, k), lead = shape, () if batch is None else (batch,)
    a, b, c = drawn((*lead, m, k), (*lead, k, n), (*lead, m, n))
    before = c.clone()
    options = Options(policy="random", seed=k)
    emulator.run(FORMS[name], a, b, c, alpha=alpha, beta=beta, out=c, options=options)
    for of in range(batch or 1):
        d, x, y, z = (t if batch is None else t[of] for t in (c, a, b, before))
        assert_close(d, x, y, z, alpha, beta)


@pytest.mark.parametrize(("swap", "fields"), [(False, ATOMIC), (True, CLUSTERS)], ids=["whole", "clusters"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_epilogue_is_applied_once_after_the_sum(name, swap, fields):
    """Activations, gated pairs and reductions see the whole sum, whoever comes last."""
    tile = Tile(32, 128, 64) if swap else SMALL
    assert_fused(name, GemmSpec(tile=tile, swap=swap, **fields), (30, 72, 264))


def test_every_kind_of_input_and_output_sees_the_sum():
    """Rows, columns, matrices, stores of either major, fp8 and all reductions, of every batch."""
    gemm = gemm_of(everything, tile=Tile(64, 64, 32), swap=False, **ATOMIC)
    a, b, inputs = operands(gemm.spec.epilogue, (65, 39, 133), "emulator", 2)
    run = emulator.run(gemm, a, b, **inputs)
    assert not run.findings
    assert_outputs_close(results(run.d), gemm.spec.epilogue, a, b, inputs)


def test_a_part_lies_in_workspace_instead_of_all():
    """Beside counters a tile's sum takes one fp32 tile; additions are of four numbers at once."""
    of, fields = problem(128, 128, 4096), {"tile": SMALL, "swap": False, "split_k": 8}
    added, kept = (plan(GemmSpec(**fields, split_reduction=x), of) for x in ("atomic", "workspace"))
    assert kept.workspace_bytes - added.workspace_bytes == 7 * 128 * 128 * 4
    assert cache.artifact(added.config).ptx.count("red.relaxed.gpu.global.add.v4.f32") == 64 * 64 // 128 // 4
    assert "in 8 parts that meet in the workspace, added as they come" in str(added)


def test_runs_in_a_row_overlap_without_races():
    """The next run's parts and counts wait for this run to end, though it begins earlier."""
    runs = InARow(GemmSpec(tile=SMALL, swap=False, sms=4, stages=2, trigger="start", **ATOMIC), 72, 136)
    assert not runs(Options(policy="random", seed=1, races=True)).findings


def test_it_is_done_only_where_it_is_asked_for():
    """No plan adds in no order by itself, and what promises a row's bits refuses it."""
    for m, n, k in ((16, 7168, 16384), (128, 128, 16384), (512, 512, 8192)):
        assert plan(GemmSpec(), problem(m, n, k)).config.split_reduction != "atomic"
        assert plan(GemmSpec(**ATOMIC), problem(m, n, k)).config.split_reduction == "atomic"
    with pytest.raises(SpecError) as caught:
        GemmSpec(**ATOMIC, batch_invariant=True)
    assert (caught.value.field, caught.value.nearest) == ("split_reduction", "workspace")
