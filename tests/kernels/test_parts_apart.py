# SPDX-License-Identifier: Apache-2.0
"""Parts of K that meet outside clusters: every epilogue after the sum, and runs in a row that overlap.

On the emulator, with the race detector.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import cache
from cutegemm.emulator import Options
from cutegemm.errors import PlanError
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from tests.support.emulator_pipeline import without
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, operands, results
from tests.support.in_a_row import InARow
from tests.support.numerics import assert_close

SMALL = Tile(64, 64, 32)
LAUNCH = {"split_k": 3, "split_reduction": "launch"}
CLUSTERS_LAUNCH = {"cluster": (1, 1, 2), "split_k": 4, "split_reduction": "launch"}
CLUSTERS_WORKSPACE = {"cluster": (1, 1, 2), "split_k": 4, "split_reduction": "workspace"}
PAIRS = epi.geglu("interleaved")


@pytest.mark.parametrize(
    ("graph", "swap", "fields", "batch"),
    [
        (everything, False, LAUNCH, None),
        (everything, True, CLUSTERS_LAUNCH, None),
        (everything, False, {"cluster": (1, 1, 2)}, None),
        (PAIRS, True, CLUSTERS_WORKSPACE, 2),
        (PAIRS, False, CLUSTERS_LAUNCH, 2),
    ],
)
def test_every_kind_of_input_and_output_sees_the_sum(graph, swap, fields, batch):
    """Rows, columns, matrices, stores of either major, fp8, all reductions and pairs, whatever slice a CTA stores."""
    gemm = gemm_of(graph, tile=Tile(64, 128, 32) if swap else SMALL, swap=swap, **fields)
    a, b, inputs = operands(gemm.spec.epilogue, (65, 39, 133), "emulator", batch)
    run = emulator.run(gemm, a, b, **inputs)
    assert not run.findings
    assert_outputs_close(results(run.d), gemm.spec.epilogue, a, b, inputs)


FUZZED = {
    "launch": Gemm(GemmSpec(tile=SMALL, swap=False, sms=3, **LAUNCH)),
    "clusters": Gemm(GemmSpec(tile=SMALL, swap=False, sms=4, **CLUSTERS_LAUNCH)),
    "swapped": Gemm(GemmSpec(tile=Tile(16, 64, 32), swap=True, sms=4, **CLUSTERS_WORKSPACE)),
}


@settings(max_examples=4)
@given(
    name=st.sampled_from(sorted(FUZZED)),
    tall=st.integers(1, 140),
    wide=st.integers(1, 140),
    deep=st.integers(97, 300),
    alpha=st.sampled_from((1.0, -0.5, 0.0)),
    beta=st.sampled_from((0.0, 1.0, -2.0)),
)
def test_odd_shapes_with_c_in_place(name, tall, wide, deep, alpha, beta):
    """D = alpha A B + beta C over C's own memory, the same bits when CTAs run in another order."""
    generator = torch.Generator().manual_seed(tall + wide + deep)
    a, b, c = (
        torch.randn(s, generator=generator).bfloat16() for s in ((tall, deep), (deep, wide), (tall, wide))
    )
    before, orders = c.clone(), (Options(policy="random", seed=deep), Options(policy="lazy"))
    results = []
    for options in orders:
        out = before.clone()
        emulator.run(FUZZED[name], a, b, out, alpha=alpha, beta=beta, out=out, options=options)
        results.append(out)
    assert_close(results[0], a, b, before, alpha, beta)
    assert torch.equal(*results)


def test_a_row_has_the_same_bits_whatever_adds_its_parts():
    """Under batch_invariant a launch adds parts one after the other, as a cluster does, whatever M is."""
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, generator=generator).bfloat16() for s in ((130, 500), (500, 72)))
    found = []
    for where, rows in (("launch", 130), ("launch", 5), ("cluster", 130)):
        spec = GemmSpec(split_k=8, split_reduction=where, swap=False, batch_invariant=True, d_dtype="fp32")
        found.append(Gemm(spec).run(a[:rows], b, backend="emulator")[:5])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    freely = GemmSpec(split_k=8, split_reduction="launch", swap=False)
    of = problem(130, 72, 500)
    assert plan(freely, of).storing.config.adders == 2
    assert plan(dataclasses.replace(freely, batch_invariant=True), of).storing.config.adders == 1


@pytest.mark.parametrize("fields", [LAUNCH, CLUSTERS_LAUNCH], ids=["whole", "clusters"])
def test_runs_in_a_row_overlap_without_races(fields):
    """Each launch may begin early; the next run's parts wait for this run's to be read, its A for this run's D."""
    runs = InARow(GemmSpec(tile=SMALL, swap=False, sms=4, stages=2, **fields), rows=72, width=136)
    for seed in (1, 2):
        assert not runs(Options(policy="random", seed=seed, races=True)).findings


@pytest.mark.parametrize("name", ["gemm", "add parts"])
def test_without_its_waits_a_launch_meets_the_other_ones_parts(name):
    """Parts read before they are written, or overwritten by the next run while this one's are still read, are found."""
    runs = InARow(GemmSpec(tile=SMALL, swap=False, sms=4, stages=2, **LAUNCH), rows=72, width=136)
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
    """A CTA has 64 rows of a slice; the product lets it start after its loads, as it does the next launch."""
    p = plan(GemmSpec(tile=Tile(128, 128, 64), split_k=8, split_reduction="launch"), problem(512, 512, 8192))
    product, adding = p.steps
    assert p.storing is adding and not product.config.stores and not adding.config.multiplies
    assert adding.clusters == 2 * 16 * adding.config.slices >= 120
    assert adding.config.stored_columns >= 8
    assert product.config.trigger == adding.config.trigger == "loads"
    assert p.workspace_bytes == 8 * 512 * 512 * 4
    assert "griddepcontrol.launch_dependents" in cache.artifact(adding.config).ptx


@pytest.mark.parametrize(
    ("fields", "field", "nearest"),
    [
        ({"cluster": (2, 1, 4), "split_k": 8, "split_reduction": "launch"}, None, None),
        ({"split_k": 4, "split_reduction": "launch", "epilogue_stages": 1}, "epilogue_stages", "auto"),
        ({"split_k": 200, "split_reduction": "launch"}, "split_k", 128),
        (
            {"cluster": (1, 1, 4), "split_k": 8, "split_reduction": "launch", "schedule": "cooperative",
             "stages": 9}, "stages", 8,
        ),
    ],
)  # fmt: skip
def test_what_parts_exclude_is_refused(fields, field, nearest):
    """Buffers of an epilogue that is another launch's, more parts than k tiles, stages beside the cluster's buffer."""
    of = problem(128, 128, 8192)
    if field is None:
        assert plan(GemmSpec(tile=Tile(64, 64, 64), **fields), of).config.cluster_size == 8
        return
    with pytest.raises(PlanError) as caught:
        plan(GemmSpec(tile=Tile(64, 128, 64), **fields), of)
    assert (caught.value.field, caught.value.nearest) == (field, nearest)
    fields[field] = nearest
    plan(GemmSpec(tile=Tile(64, 128, 64), **fields), of)


@pytest.mark.parametrize("depth", [2, 4, 8])
def test_a_launch_adds_the_sums_of_several_clusters(depth):
    """Where only a cluster's splits are given there are two clusters' sums; one would leave the launch none to add."""
    spec = GemmSpec(tile=SMALL, cluster=(1, 1, depth), split_reduction="launch", swap=False)
    m, n, k = 128, 64, 2 * depth * SMALL.k
    config = plan(spec, problem(m, n, k)).config
    assert (config.splits, config.cluster_parts, config.outer_parts) == (2 * depth, depth, 2)
    generator = torch.Generator().manual_seed(depth)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((m, k), (k, n)))
    run = emulator.run(Gemm(spec), a, b, options=Options(policy="random", seed=1, races=True))
    assert not run.findings
    assert_close(run.d, a, b)
    with pytest.raises(PlanError) as given:
        plan(dataclasses.replace(spec, split_k=depth), problem(m, n, k))
    assert (given.value.field, given.value.nearest) == ("split_k", 2 * depth)
    with pytest.raises(PlanError) as short:
        plan(spec, problem(m, n, k - SMALL.k))
    assert short.value.field == "cluster"
    plan(dataclasses.replace(spec, cluster=short.value.nearest), problem(m, n, k - SMALL.k))


def test_shares_of_unequal_parts_are_padded():
    """Nine parts of two warpgroups: the second one's share lacks one, which counts as nothing."""
    spec = GemmSpec(tile=SMALL, split_k=9, split_reduction="launch", swap=False, sms=4)
    m, n, k = 66, 72, 9 * SMALL.k
    adds = plan(spec, problem(m, n, k)).storing.config
    assert (adds.outer_parts, adds.adders) == (9, 2)
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(shape, generator=generator).bfloat16() for shape in ((m, k), (k, n)))
    run = emulator.run(Gemm(spec), a, b, options=Options(policy="random", seed=1, races=True))
    assert not run.findings
    assert_close(run.d, a, b)
