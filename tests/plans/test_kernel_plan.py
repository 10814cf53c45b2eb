# SPDX-License-Identifier: Apache-2.0
"""What plans say: launches, barriers, boxes, partial results, plain data."""

import dataclasses
import json

import pytest
from hypothesis import assume, given

from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import DEFAULT
from cutegemm.config import boxes, smem_budget
from cutegemm.config.shared import SharedPlan
from cutegemm.config.simt import TILES
from cutegemm.errors import PlanError
from cutegemm.gemm import representative
from cutegemm.planning.grouped import plan_groups
from cutegemm.planning.planner import plan
from cutegemm.plans.steps import Ends
from tests.support.planned import (
    MISALIGNED_A,
    attempt,
    odd,
)
from tests.support.strategies import for_problem, problems, specs


def test_the_choices_for_a_large_aligned_problem():
    """4096^3 in bf16: TMA both ways, warp-specialised, persistent, two consumers, one wave of clusters in flight."""
    p = plan(GemmSpec(), problem(4096, 4096, 4096))
    assert p.config.family == "warp_specialized" and p.config.persistent and p.config.consumers == 2
    assert (p.config.a.load, p.config.b.load, p.config.d.store) == ("tma", "tma", "tma")
    assert p.workspace_bytes == 0 and len(p.steps) == 1


@pytest.mark.parametrize(("changed", "steps"), [("a", ["relayout a", "gemm"]), ("b", ["relayout b", "gemm"])])
def test_only_the_misaligned_operand_is_copied(changed, steps):
    """Where threads cannot load, an odd leading dimension costs a re-layout of that operand alone."""
    p = plan(GemmSpec(cluster=(2, 2)), odd(**{changed: MISALIGNED_A}))
    assert [step.name for step in p.steps] == steps
    assert p.workspace_bytes == 256 * 256 * 2


def test_an_odd_d_costs_no_copy():
    """An odd leading dimension of D changes only the store path."""
    p = plan(GemmSpec(), odd(outputs=(("d", MISALIGNED_A),)))
    assert p.config.d.store == "staged" and p.workspace_bytes == 0


def test_shapes_share_a_kernel():
    """Two shapes of one alignment class have equal configs under a given tile."""
    spec = GemmSpec(tile=Tile(128, 128, 64))
    assert plan(spec, problem(128, 256, 512)).config == plan(spec, problem(1000, 1000, 1000)).config


def test_barriers_count_their_participants():
    """Multicast: a stage's empty barrier hears every consumer warp of the CTA's cluster row and column."""
    p = plan(GemmSpec(tile=Tile(128, 128, 64), cluster=(2, 2), stages=3), problem(512, 512, 512))
    barriers = {b.name: (b.count, b.arrivals) for b in p.barriers}
    assert barriers == {"full": (3, 1), "empty": (3, 3 * 2 * 4), "epilogue": (2, 128)}
    gathered = plan(GemmSpec(tile=Tile(128, 128, 64), a_load="gather", stages=3), problem(512, 512, 512))
    assert {b.name: b.arrivals for b in gathered.barriers}["full"] == 1 + 128
    spec = GemmSpec(tile=Tile(128, 128, 64), input_stages=2, schedule="cooperative")
    fetched = plan(spec, problem(512, 512, 512, c_dtype="bf16"))
    assert {b.name: (b.count, b.arrivals) for b in fetched.barriers}["subtiles"] == (2 * 2, 1)
    direct = plan(GemmSpec(tile=Tile(128, 128, 64), store="direct"), problem(512, 512, 512))
    assert {b.name for b in direct.barriers} == {"full", "empty"}


def test_boxes_of_a_multicast():
    """CTAs that share a tile load a slice of it each, cut along its strided axis."""
    p = plan(GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), problem(512, 512, 512))
    boxes = {b.operand: (b.extents, b.count) for b in p.boxes}
    assert boxes == {"A": ((64, 128), 1), "B": ((64, 32), 4), "D": ((64, 64), 1)}


@pytest.mark.parametrize(("majors", "b_box"), [("kn", ((64, 64), 4)), ("kk", ((64, 128), 2))])
def test_boxes_of_a_fused_tile(majors, b_box):
    """Each half of a gated B has boxes of its own, each input and output one of a warpgroup's subtile."""
    fields = {"majors": majors, "epilogue": GATED_SUM, "input_dtype": "fp32", "d_major": "m"}
    p = plan(GemmSpec(tile=Tile(128, 256, 64), epilogue=GATED_SUM), problem(512, 512, 512, **fields))
    boxes = {b.operand: (b.extents, b.count) for b in p.boxes}
    assert p.config.epi_n == 32 and boxes["A"] == ((64, 128), 1) and boxes["B"] == b_box
    assert boxes["D"] == boxes["pre"] == ((64, 32), 1) and boxes["C"] == ((32, 32), 2)


@epi.define(gated="halves")
def GATED_SUM(gate, up, *, c: epi.Matrix):  # noqa: N802
    """A gated pair with an input and two outputs."""
    h = gate * up
    return epi.Output(d=h + c, pre=epi.Store(h))


def test_inputs_take_the_room_that_the_ring_does_not_need():
    """As many subtiles of the inputs are held ready as leave the ring its share; what is left makes stages."""
    of = problem(4096, 4096, 4096, c_dtype="fp32", d_dtype="fp32")
    for tile in (Tile(128, 256, 64), Tile(128, 128, 64), Tile(256, 64, 64)):
        spec = GemmSpec(tile=tile, schedule="cooperative", consumers=2, store="tma")
        config = plan(spec, of).config
        ring = min(4, -(-144 * 1024 // smem_budget.stage_bytes(config)))
        legal = [x for x in range(1, config.subtiles + 1) if config.subtiles % x == 0]
        given = (dataclasses.replace(spec, input_stages=x, stages=ring) for x in legal)
        fits = [x.input_stages for x in given if not isinstance(attempt(x, of), PlanError)]
        assert config.input_stages == max(fits, default=1)
        more = attempt(
            dataclasses.replace(spec, input_stages=config.input_stages, stages=config.stages + 1), of
        )
        assert config.stages == 8 or isinstance(more, PlanError)


def test_partial_results_of_a_plan():
    """A partial result per 16 rows, per tile along N, and per warp and tile; finishes for all but partial ones."""
    p = plan(
        GemmSpec(tile=Tile(128, 128, 64), epilogue=REDUCED), problem(1000, 300, 64, epilogue=REDUCED, batch=2)
    )
    assert p.parts == (63, 3, 8 * 3 * 8)
    assert [(x.name, x.parts, x.results, x.config.kind, x.config.across) for x in p.steps[1:]] == [
        ("finish rows", 3, 2 * 1000, "sum", True),
        ("finish top", 63, 2 * 300, "logsumexp", True),
        ("finish whole", 192, 2, "max", False),
    ]
    sizes = [4 * 3 * 2000, 2 * 4 * 63 * 600]
    offsets = [0, sizes[0] + -sizes[0] % 256]
    offsets.append(offsets[1] + sizes[1] + -sizes[1] % 256)
    assert p.partials == (offsets[0], offsets[1], None, offsets[2])
    assert p.workspace_bytes == offsets[2] + 4 * 192 * 2
    simt = plan(GemmSpec(schedule="simt", epilogue=REDUCED), problem(1000, 300, 64, epilogue=REDUCED))
    # of whichever tile the planner takes
    (tile_m, tile_n, _), (rows, columns) = simt.config.tile, simt.config.partial_width
    whole = -(-1000 // tile_m) * -(-300 // tile_n) * (tile_m // rows) * (tile_n // columns)
    assert simt.parts == (-(-1000 // rows), -(-300 // columns), whole)
    alone = plan(GemmSpec(epilogue=PARTIAL), problem(1000, 300, 64, epilogue=PARTIAL))
    assert (
        [x.name for x in alone.steps] == ["gemm"] and alone.workspace_bytes == 0 and alone.partials == (None,)
    )


@epi.define
def REDUCED(acc):  # noqa: N802
    """Reductions of every kind and axis, one of them partial."""
    return epi.Output(
        d=acc,
        rows=epi.Sum(acc, axis=1),
        top=epi.LogSumExp(acc, axis=0),
        part=epi.Sum(acc, axis=0, partial=True),
        whole=epi.Max(acc),
    )


@epi.define
def PARTIAL(acc):  # noqa: N802
    """One partial reduction and nothing else."""
    return epi.Output(part=epi.Max(acc, axis=1, partial=True))


@given(problems(low=1, high=4000), specs())
def test_a_plan_is_plain_data(of, spec):
    """`to_dict` survives JSON unchanged, and the text names the problem's shape."""
    result = attempt(for_problem(spec, of), of)
    assume(not isinstance(result, PlanError))
    data = result.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["problem"]["m"] == of.m and len(data["steps"]) == len(result.steps)
    assert f"{of.m} x {of.n} x {of.k}" in str(result)


def test_sms_limits_the_grid():
    """`sms` bounds the CTAs of a persistent grid and changes no kernel."""
    free, limited = (
        plan(GemmSpec(tile=Tile(128, 128, 64), **x), problem(4096, 4096, 64)) for x in ({}, {"sms": 10})
    )
    assert (free.clusters, limited.clusters) == (132, 10) and free.config == limited.config


def test_clusters_that_add_splits_up_are_one_work():
    """The grid has a cluster for each tile and for each group of splits that a cluster does not add up itself."""
    p = plan(
        GemmSpec(tile=Tile(64, 64, 64), swap=False, cluster=(1, 1, 2), split_k=4, scheduler="per_tile"),
        problem(128, 192, 4096),
    )
    assert p.tiles == (2, 3, 1) and p.clusters == 2 * 3 * 2


@pytest.mark.parametrize(("k", "width"), [(264, 16), (260, 8), (258, 4)])
def test_copies_are_as_wide_as_rows_are_aligned(k, width):
    """cp.async copies 16, 8 or 4 bytes."""
    p = plan(GemmSpec(tile=Tile(64, 64, 64), swap=False, a_load="cp_async"), problem(256, 256, k))
    assert (p.config.a.load, p.config.a.width) == ("cp_async", width)


@pytest.mark.parametrize(("store", "conflicts"), [("staged", 0), ("tma", 0), ("direct", None)])
def test_bank_conflicts_are_told_of_staged_stores(store, conflicts):
    """An output of 16 bits that stmatrix stages has a count of them; one that threads write themselves has none."""
    p = plan(GemmSpec(tile=Tile(128, 128, 64), swap=False, store=store), problem(256, 256, 256))
    assert p.store_conflicts == conflicts


def test_a_bare_spec_is_planned_for_an_odd_k_only_where_its_tile_needs_it():
    """The one CUDA-core tile that takes elements one by one has a representative problem of odd K."""
    extents = {x.tile: representative(GemmSpec(schedule="simt", tile=Tile(*x.tile))).k for x in TILES}
    assert {tile for tile, k in extents.items() if k % 2} == {(112, 128, 8)}
    assert set(extents.values()) == {4095, 4096}


def test_groups_launch_no_more_clusters_than_they_have_tiles():
    """A group's rows fill whole tiles of a cluster and begin one more at most."""
    of = problem(200, 64, 96, batch=3)
    a, d = (dataclasses.replace(x, rows=200, batch=1) for x in (of.a, dict(of.outputs)["d"]))
    rows = dataclasses.replace(of, a=a, outputs=(("d", d),))
    spec = GemmSpec(tile=Tile(64, 64, 64), cluster=(2, 1), swap=False)
    assert plan_groups(spec, rows, "rows", Ends(), DEFAULT).clusters == 200 // 128 + 3


def test_one_kernel_serves_every_number_of_rows_of_a_bucket():
    """Up to 1,000 rows a group there are a few kernels, and between two buckets there is one."""
    of = problem(4096, 1536, 2048, batch=64)

    def kernel(m):
        a, d = (dataclasses.replace(x, rows=m, batch=1) for x in (of.a, dict(of.outputs)["d"]))
        rows = dataclasses.replace(of, m=m, a=a, outputs=(("d", d),))
        return plan_groups(GemmSpec(), rows, "rows", Ends(), DEFAULT).config

    assert len({kernel(m) for m in range(64 * 86, 64 * 92, 17)}) == 1
    assert 3 <= len({kernel(m) for m in range(1, 64 * 1000, 499)}) <= 20


def test_nothing_is_computed_for_display_that_nobody_asked_for(monkeypatch):
    """Boxes, bank conflicts and shared memory are those of the config, and a plan is made without them."""
    refused = {"boxes": None, "store_conflicts": None}
    with monkeypatch.context() as patch:
        for name in refused:
            patch.setattr(boxes, name, None)
        patch.setattr(SharedPlan, "of", None)
        made = plan(GemmSpec(), problem(1111, 2056, 1032))
    assert made.boxes and made.smem and made.barriers and made.to_dict()["smem_bytes"] == made.smem_bytes


def test_a_plan_of_groups_shows_the_kernel_of_groups():
    """Its boxes are as high as the tile, and shared memory is named by the caller's operands."""
    made = plan_groups(GemmSpec(swap=True), problem(9, 232, 2992, batch=8), "masked", Ends(), DEFAULT)
    assert made.swapped and made.config.a.role == "a"
    (a,) = (x for x in made.boxes if x.operand == "A")
    assert a.extents[1] * a.count == made.config.tile[1]
    held = {x.name: x.size // made.config.stages for x in made.smem}
    m, n, k = made.config.tile
    assert (held["B"], held["A"]) == (m * k * 2, n * k * 2)
