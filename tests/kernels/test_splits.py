# SPDX-License-Identifier: Apache-2.0
"""Split-K: every reduction gives D, the same bits in any order (atomic additions apart), and the epilogue once.

On the emulator, with the race detector. `test_combinations` pairs reductions with every other field.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm
from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Options
from cutegemm.errors import PlanError, SpecError
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from tests.support.emulator_pipeline import without
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, operands, results
from tests.support.in_a_row import InARow
from tests.support.numerics import assert_close
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

SMALL, SHALLOW = Tile(64, 64, 64), Tile(64, 64, 32)
SWAPPED, PLAIN = {"tile": Tile(16, 64, 64), "swap": True}, {"tile": SMALL, "swap": False}
LAUNCH = {"split_k": 3, "split_reduction": "launch"}
ATOMIC = {"split_k": 3, "split_reduction": "atomic"}
IN_CLUSTERS = {"cluster": (1, 1, 2), "split_k": 4}  # two splits meet in a cluster, then two sums elsewhere
CASES = {
    # more tiles than clusters, so that buffers and barriers are used again
    "cluster, many tiles": (GemmSpec(tile=SMALL, split_k=2, sms=2, stages=2), (130, 136, 300)),
    "cluster of four, that share columns": (GemmSpec(tile=SMALL, split_k=4, sms=4), (60, 72, 300)),
    "cluster of three, unequal splits": (GemmSpec(tile=SMALL, split_k=3, swap=True, sms=3), (60, 72, 456)),
    "cluster, one CTA stores": (GemmSpec(tile=Tile(8, 64, 64), split_k=4, swap=True, sms=4), (5, 136, 264)),
    "cluster, pairs share B": (
        GemmSpec(tile=SMALL, split_k=2, cluster=(2, 1), sms=4, stages=2), (200, 72, 264)
    ),
    "workspace, many tiles": (
        GemmSpec(**PLAIN, split_k=3, split_reduction="workspace", sms=4, stages=2), (100, 136, 300)
    ),
    "workspace, pairs share B": (
        GemmSpec(tile=SMALL, split_k=2, split_reduction="workspace", cluster=(2, 1), sms=4, stages=2),
        (200, 72, 264),
    ),
    "workspace after clusters, swapped": (
        GemmSpec(**SWAPPED, **IN_CLUSTERS, split_reduction="workspace", sms=4), (30, 136, 300)
    ),
    "stream-K, fewer tiles than clusters": (
        GemmSpec(**PLAIN, scheduler="stream_k", sms=5, stages=2), (60, 136, 300)
    ),
    "stream-K, some tiles whole, pairs": (
        GemmSpec(**PLAIN, scheduler="stream_k", sms=4, cluster=(2, 1), stages=2), (500, 72, 200)
    ),
    "stream-K, swapped": (GemmSpec(**SWAPPED, scheduler="stream_k", sms=3, stages=2), (13, 264, 264)),
    "launch": (GemmSpec(tile=SHALLOW, swap=False, sms=3, **LAUNCH), (100, 136, 300)),
    # the second warpgroup adds one split less, which counts as zero
    "launch, nine splits for two warpgroups": (
        GemmSpec(tile=SHALLOW, split_k=9, split_reduction="launch", swap=False, sms=4), (66, 72, 288)
    ),
    "launch, eleven slices of eight columns": (
        GemmSpec(tile=Tile(64, 88, 64), swap=False, sms=4, **LAUNCH), (100, 176, 300)
    ),
    **{
        f"launch after clusters of {x}": (
            GemmSpec(tile=SHALLOW, cluster=(1, 1, x), split_reduction="launch", swap=False), (128, 64, 64 * x)
        )
        for x in (2, 4, 8)
    },
    "atomic, many tiles": (GemmSpec(**PLAIN, sms=4, stages=2, **ATOMIC), (130, 72, 264)),
    "atomic, two warpgroups, odd operands": (
        GemmSpec(tile=Tile(128, 64, 64), swap=False, sms=3, a_load="relayout", b_load="relayout", **ATOMIC),
        (130, 71, 263),
    ),
    "atomic after clusters": (
        GemmSpec(**PLAIN, sms=4, **IN_CLUSTERS, split_reduction="atomic"), (130, 72, 264)
    ),
    "atomic after clusters, swapped": (
        GemmSpec(**SWAPPED, sms=4, **IN_CLUSTERS, split_reduction="atomic"), (130, 72, 264)
    ),
    "atomic, pairs share B": (GemmSpec(**PLAIN, sms=4, **ATOMIC, cluster=(2, 1)), (130, 72, 264)),
    "atomic, dynamic": (GemmSpec(**PLAIN, sms=3, scheduler="dynamic", **ATOMIC), (130, 72, 264)),
}  # fmt: skip
ONE_BY_ONE = "atomic, many tiles"  # of those whose bits tell nothing, the one that runs in two orders


def drawn(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Matrices of bf16."""
    generator = torch.Generator().manual_seed(sum(map(sum, shapes)))
    return [torch.randn(x, generator=generator).bfloat16() for x in shapes]


@pytest.mark.parametrize("name", CASES)
def test_splits_add_up_in_place_without_races(name):
    """D = 2 A B + C / 2 in place of C; but for atomic sums it has the same bits when clusters run one by one."""
    spec, (m, n, k) = CASES[name]
    a, b, before = drawn((m, k), (k, n), (m, n))
    found = []
    orders = (
        Options(policy="random", seed=2, races=True),
        Options(policy="lazy", races=True, resident_ctas=1),
    )
    for options in orders[: 1 if "atomic" in name and name != ONE_BY_ONE else 2]:
        c = before.clone()
        run = emulator.run(Gemm(spec), a, b, c, alpha=2.0, beta=0.5, out=c, options=options)
        assert not run.findings
        assert_close(c, a, b, before, 2.0, 0.5)
        found.append(c)
    assert "atomic" in name or torch.equal(*found)


@settings(max_examples=6)
@given(
    name=st.sampled_from([x for x in CASES if "odd operands" not in x and "after clusters of" not in x]),
    shape=st.tuples(st.integers(1, 140), st.integers(1, 140), st.integers(289, 330)),
    batch=st.sampled_from((None, 1, 3)),
    alpha=st.sampled_from((1.0, -0.5, 0.0)),
    beta=st.sampled_from((0.0, 1.0, -2.0)),
    policy=st.sampled_from(("lazy", "random")),
)
def test_any_shape_alpha_beta_and_batch(name, shape, batch, alpha, beta, policy):
    """D = alpha A B + beta C over C's own memory, of every batch."""
    (m, n, k), lead = shape, () if batch is None else (batch,)
    a, b, c = drawn((*lead, m, k), (*lead, k, n), (*lead, m, n))
    before = c.clone()
    options = Options(policy=policy, seed=k)
    emulator.run(Gemm(CASES[name][0]), a, b, c, alpha=alpha, beta=beta, out=c, options=options)
    for of in range(batch or 1):
        d, x, y, z = (t if batch is None else t[of] for t in (c, a, b, before))
        assert_close(d, x, y, z, alpha, beta)


PAIRS = epi.geglu("interleaved")


@pytest.mark.parametrize(
    ("graph", "swap", "fields", "batch"),
    [
        (everything, False, LAUNCH, None),
        (everything, True, IN_CLUSTERS | {"split_reduction": "launch"}, None),
        (everything, False, {"cluster": (1, 1, 2)}, None),
        (everything, False, ATOMIC, 2),
        (PAIRS, True, IN_CLUSTERS | {"split_reduction": "workspace"}, 2),
        (PAIRS, False, IN_CLUSTERS | {"split_reduction": "launch"}, 2),
        (PAIRS, True, IN_CLUSTERS | {"split_reduction": "atomic"}, None),
        (PAIRS, True, {"split_k": 2, "split_reduction": "cluster"}, None),
    ],
)
def test_the_epilogue_is_applied_once_after_the_sum(graph, swap, fields, batch):
    """Vectors, matrices, stores of either major, fp8, all reductions and gated pairs see the sum, whoever stores it."""
    gemm = gemm_of(graph, tile=Tile(64, 128, 32) if swap else SHALLOW, swap=swap, **fields)
    a, b, inputs = operands(gemm.spec.epilogue, (65, 39, 133), "emulator", batch)
    run = emulator.run(gemm, a, b, options=RACES, **inputs)
    assert not run.findings
    assert_outputs_close(results(run.d), gemm.spec.epilogue, a, b, inputs)


@pytest.mark.parametrize("where", ["workspace", "atomic", "launch"])
def test_a_run_after_one_that_was_aborted_is_right(where):
    """Splits that another run left behind in the same workspace do not count; counters are not there."""
    spec = GemmSpec(tile=SMALL, split_k=2, split_reduction=where, swap=False)
    a, b = drawn((60, 136), (136, 72))
    gemm = Gemm(spec)
    need = plan(spec, problem(60, 72, 136)).workspace_bytes
    for left_behind in (0, 1, 255):
        workspace = torch.full((need + 64,), left_behind, dtype=torch.uint8)
        aligned = workspace[-workspace.data_ptr() % 64 :]
        assert_close(gemm.run(a, b, backend="emulator", workspace=aligned), a, b)


def test_a_row_has_the_same_bits_whatever_adds_its_splits():
    """Under batch_invariant a launch adds splits one after the other, as a cluster does, whatever M is."""
    a, b = drawn((130, 500), (500, 72))
    found = []
    for where, rows in (("launch", 130), ("launch", 5), ("cluster", 130)):
        spec = GemmSpec(split_k=8, split_reduction=where, swap=False, batch_invariant=True, d_dtype="fp32")
        found.append(Gemm(spec).run(a[:rows], b, backend="emulator")[:5])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    freely = GemmSpec(split_k=8, split_reduction="launch", swap=False)
    of = problem(130, 72, 500)
    assert plan(freely, of).storing.config.adders == 2
    assert plan(dataclasses.replace(freely, batch_invariant=True), of).storing.config.adders == 1


IN_A_ROW = {"launch": LAUNCH, "launch after clusters": IN_CLUSTERS | {"split_reduction": "launch"},
            "atomic": ATOMIC | {"trigger": "start"}}  # fmt: skip


def in_a_row(fields: dict) -> InARow:
    """Two runs on one workspace, each launch of which may begin early."""
    return InARow(GemmSpec(tile=SHALLOW, swap=False, sms=4, stages=2, **fields), rows=72, width=136)


@pytest.mark.parametrize("name", IN_A_ROW)
def test_runs_in_a_row_overlap_without_races(name):
    """The next run's splits and counts wait until this run's are read, its A for this run's D."""
    runs = in_a_row(IN_A_ROW[name])
    for seed in (1, 2) if "launch" in name else (1,):
        assert not runs(Options(policy="random", seed=seed, races=True)).findings


@pytest.mark.parametrize("name", ["gemm", "add parts"])
def test_without_its_waits_a_launch_meets_the_other_ones_splits(name):
    """Splits read before they are written, or overwritten by the next run while they are still read, are found."""
    runs = in_a_row(LAUNCH)
    ptx = runs.kernels[name]
    kernel = runs.parsed[ptx]
    waits = [i for i, x in enumerate(kernel.code) if x.op == "griddepcontrol.wait"]
    assert len(waits) == {"gemm": 2, "add parts": 1}[name]
    for place in reversed(waits):
        kernel = without(kernel, place)
    runs.parsed[ptx] = kernel
    found = runs(Options(policy="random", seed=1, races=True)).findings
    assert any("workspace" in str(x) for x in found)


def test_the_adding_launch_covers_the_sms_and_begins_early():
    """A CTA has 64 rows of a slice; the GEMM lets it start after its loads, as it does the next launch."""
    p = plan(GemmSpec(tile=Tile(128, 128, 64), split_k=8, split_reduction="launch"), problem(512, 512, 8192))
    product, adding = p.steps
    assert p.storing is adding and not product.config.stores and not adding.config.multiplies
    assert adding.clusters == 2 * 16 * adding.config.slices >= 120
    assert adding.config.stored_columns >= 8
    assert product.config.trigger == adding.config.trigger == "loads"
    assert p.workspace_bytes == 8 * 512 * 512 * 4
    assert "griddepcontrol.launch_dependents" in kernel_cache.artifact(adding.config).ptx
    nine, of = CASES["launch, nine splits for two warpgroups"][0], problem(66, 72, 288)
    assert (plan(nine, of).storing.config.outer_splits, plan(nine, of).storing.config.adders) == (9, 2)
    assert (
        plan(CASES["launch, eleven slices of eight columns"][0], problem(100, 176, 300)).storing.config.slices
        == 11
    )


def test_the_adding_launch_takes_tiles_wider_than_four_warpgroups_multiply():
    """Four warpgroups that only add have no wgmma, whose operands limit a tile's columns."""
    spec = GemmSpec(tile=Tile(64, 208, 64), split_k=20, split_reduction="launch", swap=False)
    a, b = (torch.randn(x, dtype=torch.float16) for x in ((64, 1280), (1280, 208)))
    adding = plan(spec, problem(64, 208, 1280, dtype="fp16")).storing.config
    assert adding.threads == 4 * adding.limits.warpgroup
    assert_close(emulator.run(cutegemm.build(spec), a, b, options=RACES).d, a, b)


def test_atomic_sums_take_one_tile_of_workspace():
    """Beside counters a tile's sum takes one fp32 tile; additions are of four numbers at once."""
    of, fields = problem(128, 128, 4096), {"tile": SMALL, "swap": False, "split_k": 8}
    added, kept = (plan(GemmSpec(**fields, split_reduction=x), of) for x in ("atomic", "workspace"))
    assert kept.workspace_bytes - added.workspace_bytes == 7 * 128 * 128 * 4
    assert (
        kernel_cache.artifact(added.config).ptx.count("red.relaxed.gpu.global.add.v4.f32")
        == 64 * 64 // 128 // 4
    )
    assert "8 splits of K reduced in workspace, by atomics" in str(added)


@pytest.mark.sliced(False)
@pytest.mark.parametrize("scheduler", ["persistent", "dynamic"])
@pytest.mark.parametrize("reduction", ["workspace", "atomic"])
def test_splits_that_one_cluster_adds_need_no_other_reduction(reduction, scheduler):
    """They are the kernel of split_reduction="cluster": no workspace, and no counter but a dynamic scheduler's."""
    of, fields = problem(130, 136, 264), PLAIN | {"cluster": (1, 1, 2), "scheduler": scheduler}
    made, added = (plan(GemmSpec(**fields, split_reduction=x), of) for x in (reduction, "cluster"))
    assert made.config == added.config and made.config.split_reduction == "cluster"
    assert (made.workspace_bytes, made.counter_bytes) == (0, 8 * (scheduler == "dynamic"))
    for split_k, kept in ((2, "cluster"), (4, reduction)):
        config = plan(GemmSpec(**fields, split_reduction=reduction, split_k=split_k), of).config
        assert config.split_reduction == kept


def test_atomic_sums_are_only_asked_for():
    """No plan adds in no order by itself."""
    for m, n, k in ((16, 7168, 16384), (128, 128, 16384), (512, 512, 8192)):
        assert plan(GemmSpec(), problem(m, n, k)).config.split_reduction != "atomic"
        assert plan(GemmSpec(**ATOMIC), problem(m, n, k)).config.split_reduction == "atomic"


@pytest.mark.sliced(False)
@pytest.mark.parametrize("depth", [2, 4, 8])
def test_a_launch_adds_the_sums_of_several_clusters(depth):
    """Where only a cluster's splits are given there are two clusters' sums; one would leave the launch none to add."""
    spec, (m, n, k) = CASES[f"launch after clusters of {depth}"]
    config = plan(spec, problem(m, n, k)).config
    assert (config.splits, config.cluster_splits, config.outer_splits) == (2 * depth, depth, 2)
    with pytest.raises(PlanError) as given:
        plan(dataclasses.replace(spec, split_k=depth), problem(m, n, k))
    assert (given.value.field, given.value.nearest) == ("split_k", 2 * depth)
    with pytest.raises(PlanError) as short:
        plan(spec, problem(m, n, k - spec.tile.k))
    assert short.value.field == "cluster"
    plan(dataclasses.replace(spec, cluster=short.value.nearest), problem(m, n, k - spec.tile.k))


TALL, WIDE = {"tile": Tile(128, 64, 64), "swap": False}, {"tile": Tile(64, 128, 64)}


@pytest.mark.sliced(False)
@pytest.mark.parametrize(
    ("fields", "k", "field", "nearest"),
    [
        (TALL | {"split_k": 3, "cluster": (4, 1), "split_reduction": "cluster"}, 256, "split_k", 2),
        (TALL | {"split_k": 5}, 256, "split_k", 4),
        (TALL | {"split_k": 2, "schedule": "pingpong"}, 256, "split_k", 1),
        (TALL | {"split_k": 2, "schedule": "multistage"}, 256, "split_k", 1),
        (TALL | {"scheduler": "stream_k", "schedule": "pingpong"}, 256, "scheduler", "persistent"),
        (WIDE | {"split_k": 4, "split_reduction": "launch", "epilogue_stages": 1}, 8192, "epilogue_stages", "auto"),
        (WIDE | {"split_k": 200, "split_reduction": "launch"}, 8192, "split_k", 128),
        (
            WIDE | {"cluster": (1, 1, 4), "split_k": 8, "split_reduction": "launch", "schedule": "cooperative",
                    "stages": 9}, 8192, "stages", 8,
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused(fields, k, field, nearest):
    """More splits than a cluster or K holds, schedules that cannot add, buffers and stages beside the cluster's."""
    with pytest.raises((PlanError, SpecError)) as caught:
        plan(GemmSpec(**fields), problem(128, 128, k))
    assert (caught.value.field, caught.value.nearest) == (field, nearest)
    plan(GemmSpec(**fields | {field: nearest}), problem(128, 128, k))


def test_two_tiles_of_a_cluster_may_be_split():
    """A cluster has both extents, and several of them are added by a launch."""
    spec = GemmSpec(tile=SMALL, cluster=(2, 1, 4), split_k=8, split_reduction="launch")
    assert plan(spec, problem(128, 128, 8192)).config.cluster_size == 8
