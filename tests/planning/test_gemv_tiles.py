# SPDX-License-Identifier: Apache-2.0
"""Which problems of few rows or columns run on the CUDA cores, and with which tile."""

from __future__ import annotations

import dataclasses
import math

import pytest

from cutegemm import GemmSpec
from cutegemm import epilogue as epi
from cutegemm.arch.device import FewRowModel
from cutegemm.arch.records import H200
from cutegemm.config.gemv import MOST_ROWS, TILES, WARPS
from cutegemm.errors import PlanError
from cutegemm.gemm import Gemm
from cutegemm.planning import gemv_tiles
from cutegemm.planning.planner import plan
from cutegemm.problems import problem
from cutegemm.request.few_rows import MOST, allowed, as_rows, early_operands
from cutegemm.request.requirements import Batches, requested
from cutegemm.tuning.proposals import explicit, proposals


def seen(of, **fields):
    """The request as these kernels see it."""
    return as_rows(requested(GemmSpec(**fields), of, H200)[0])


@pytest.mark.parametrize("extents", [(1, 999, 1001), (999, 3, 1001), (1, 1, 64), (2, 4, 64), (4, 4096, 4096)])
def test_rows_and_columns_are_seen_as_rows(extents):
    """D's rows, or its columns' transpose, whichever are fewer."""
    of = seen(problem(*extents, majors="kk")).problem
    assert of.m == min(extents[:2]) and {of.m, of.n} == set(extents[:2]) and of.k == extents[2]


@epi.define
def summed(acc):
    """D and the sum of each row."""
    return epi.Output(d=acc, total=epi.Sum(acc, axis=1))


@epi.define
def quantized(acc):
    """D in fp8, and a scale for each block of 128 columns."""
    q = epi.quantize(acc, ("block", 1, 128))
    return epi.Output(d=q.values, scale=q.scale)


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        (problem(MOST_ROWS + 1, 999, 1001, majors="kk"), {}),
        (problem(1, 999, 15, majors="kk"), {}),
        (problem(1, 999, 1001), {}),
        (problem(2, 1000, 1024, majors="mk"), {}),
        (problem(1, 1024, 1024, majors="kk", dtype="fp32"), {}),
        (problem(1, 1024, 1024, majors="kk", dtype="fp8_e4m3"), {}),
        (problem(1, 1024, 1024, majors="kk"), {"stages": 4}),
        (problem(1, 1024, 1024, majors="kk"), {"split_k": 2}),
        (problem(1, 1024, 1024, majors="kk"), {"schedule": "cooperative"}),
        (problem(1, 1024, 1024, majors="kk"), {"batch_invariant": True}),
        (problem(1, 1024, 1024, majors="kk", epilogue=summed), {"epilogue": summed}),
        (problem(1, 1024, 1024, majors="kk", epilogue=quantized), {"epilogue": quantized}),
    ],
    ids=[
        "rows",
        "short",
        "major",
        "major of A",
        "fp32",
        "fp8",
        "stages",
        "splits",
        "schedule",
        "invariant",
        "reduction",
        "scales of D",
    ],
)
def test_what_these_kernels_cannot_serve(of, fields):
    """More rows, other types and majors, reductions, and fields that only other kernels have."""
    assert seen(of, **fields) is None
    assert plan(GemmSpec(**fields), of).config.family != "gemv"


def test_a_single_element_is_a_row_or_a_column():
    """Its tile may have either form, and the aligned one of both vectors is the row."""
    of = problem(1, 1, 640, majors="kk")
    assert plan(GemmSpec(schedule="simt", tile=(1, 8, 512)), of).swapped is False
    assert plan(GemmSpec(schedule="simt", tile=(8, 1, 512)), of).swapped is True
    shifted = dataclasses.replace(of, a=dataclasses.replace(of.a, align=2))
    assert seen(of).factors == ("a", "b") and seen(shifted).factors == ("b", "a")


def test_an_order_of_the_caller_is_of_other_kernels():
    """A function that orders options has no word on these kernels, so none of them is taken."""
    of = problem(1, 1500, 1001, majors="kk")
    assert plan(GemmSpec(), of).config.family == "gemv"
    assert plan(GemmSpec(), of, order=lambda found: found).config.family == "warp_specialized"


def test_extents_that_its_integers_cannot_count():
    """A K within a block of the greatest integer is left to the tensor cores."""
    row = problem(1, 2000, 1024, majors="kk")
    deep = dataclasses.replace(
        row,
        k=MOST + 1,
        a=dataclasses.replace(row.a, cols=MOST + 1),
        b=dataclasses.replace(row.b, rows=MOST + 1, strides=(1, 0, 0)),
    )
    assert seen(row) is not None and seen(deep) is None
    wide = dataclasses.replace(
        row,
        n=MOST + 1,
        b=dataclasses.replace(row.b, cols=MOST + 1, strides=(1, 1024, 0)),
        outputs=tuple((name, dataclasses.replace(x, cols=MOST + 1)) for name, x in row.outputs),
    )
    assert seen(wide) is None


def test_a_grid_holds_the_ctas_of_every_tile():
    """With many batches only tiles of many columns are left, and with more of them none."""
    most, n = H200.limits.max_grid, 64
    counts = [int(x.ctas(n)) for x in TILES if x.rows == 1]
    assert min(counts) < max(counts)
    held = allowed(seen(problem(1, n, 64, majors="kk", batch=most // min(counts))))
    assert held and {int(x.ctas(n)) for x in held} == {min(counts)}
    assert seen(problem(1, n, 64, majors="kk", batch=most // min(counts) + 1)) is None


def test_groups_are_left_to_others():
    """Batches that stand for groups have rows that these kernels do not count."""
    of = problem(1, 1024, 1024, majors="kk", batch=4)
    assert seen(of) is not None
    assert as_rows(requested(GemmSpec(), of, H200, Batches("m", 1.0))[0]) is None


@pytest.mark.parametrize("extents", [(999, 1, 1001), (1, 999, 1001)])
def test_a_tile_without_a_schedule_is_of_the_tensor_cores(extents):
    """It is honoured, of a row and of a column, whichever way it may be turned."""
    made = plan(GemmSpec(tile=(64, 16, 64)), problem(*extents, majors="kk"))
    assert made.config.family == "warp_specialized"


def test_a_tile_of_one_row_is_refused_elsewhere():
    """The error says what such a tile needs."""
    with pytest.raises(PlanError, match="needs D of at most"):
        plan(GemmSpec(schedule="simt", tile=(1, 8, 512)), problem(1, 1024, 1024))


def test_an_unaligned_row_is_left_to_others():
    """Words of A are read whole, so they must begin at one."""
    of = problem(1, 999, 1001, majors="kk")
    shifted = dataclasses.replace(of, a=dataclasses.replace(of.a, align=2))
    assert seen(of) is not None and seen(shifted) is None


@pytest.mark.parametrize("extents", [(1, 1500, 1001), (1500, 1, 1001)])
def test_the_faster_of_both_is_taken(extents):
    """A plan is of the CUDA cores exactly if they are predicted to be faster, and lists both."""
    of = problem(*extents, majors="kk")
    made = plan(GemmSpec(), of)
    assert made.config.family == "gemv" and made.why.taken.us == min(x.us for x in made.why.weighed)
    assert made.tiles[:2] == ((1, made.tiles[1]) if extents[0] == 1 else (made.tiles[0], 1))
    kinds = {dict(x.fields)["schedule"] for x in made.why.weighed}
    assert kinds >= {"simt", "cooperative"}
    slow = dataclasses.replace(H200, few_rows=dataclasses.replace(H200.few_rows, launch=1e6))
    other = plan(GemmSpec(), of, slow)
    assert other.config.family != "gemv" and "simt" in {dict(x.fields)["schedule"] for x in other.why.weighed}


def test_tiles_that_a_spec_names():
    """Every tile may be named, in D's coordinates, and the tuner names those that it tries."""
    for x in TILES:
        m, n, k = x.tile
        for of, tile in (
            (problem(m, 99, 999, majors="kk"), x.tile),
            (problem(99, m, 999, majors="kk"), (n, m, k)),
        ):
            made = plan(GemmSpec(schedule="simt", tile=tile), of)
            assert (made.config.rows, made.config.own, made.config.slices) == (m, x.own, x.slices)
            assert made.swapped is (of.m == 99)
            if x.own == x.slices == 2:
                alone = Gemm(GemmSpec(schedule="simt", tile=tile)).kernel().plan
                assert sorted(alone.config.tile) == sorted(x.tile)
    found = proposals(GemmSpec(), problem(1, 1500, 1001, majors="kk"), H200, 12)
    assert {x.plan.config.family for x in found} == {"gemv", "warp_specialized"}
    assert explicit(GemmSpec(), found[0])["schedule"] == "simt"


def test_a_tile_may_have_more_rows_than_d():
    """Such a tile is taken if it is named; the planner's have as many as D."""
    of = problem(2, 999, 1001, majors="kk")
    named = next(x for x in TILES if x.rows == MOST_ROWS)
    assert plan(GemmSpec(schedule="simt", tile=named.tile), of).config.rows == MOST_ROWS
    assert {x.rows for _, x in gemv_tiles.weighed(requested(GemmSpec(), of, H200)[0])} == {2}


def test_a_plan_counts_the_ctas_that_are_launched():
    """Where columns do not fill the warps of all slices, CTAs without columns are launched, and counted."""
    for x in {(x.own, x.slices): x for x in TILES}.values():
        for n in (7, 33, 999):
            of = problem(x.rows, n, 64, majors="kk")
            gemm = Gemm(GemmSpec(schedule="simt", tile=x.tile), of)
            (launch,) = gemm.launches(of, {"a": 1 << 20, "b": 2 << 20, "d": 3 << 20})
            groups = -(-n // (WARPS * x.own))
            assert math.prod(launch.grid) == gemm.plan.clusters == groups * x.slices


@pytest.mark.parametrize(
    ("extents", "tile", "nearest"),
    [
        ((2, 1024, 1024), (1, 8, 512), (2, 8, 512)),
        ((1024, 2, 1024), (8, 1, 512), (8, 2, 512)),
        ((4, 1024, 1024), (4, 100, 512), (4, 32, 256)),
    ],
    ids=["rows", "columns", "other"],
)
def test_a_tile_that_does_not_serve_d(extents, tile, nearest):
    """The error lists the tiles for as many rows or columns, and names one."""
    with pytest.raises(
        PlanError, match="tiles of the CUDA cores for D with [24] (rows|columns) are"
    ) as error:
        plan(GemmSpec(schedule="simt", tile=tile), problem(*extents, majors="kk"))
    assert tuple(error.value.nearest) == nearest


def test_a_refusal_names_only_tiles_that_the_grid_holds():
    """Tiles with too many CTAs for so many batches are not legal values."""
    of, tile = problem(1, 60_000, 64, batch=200_000, majors="kk"), (1, 4, 1024)
    with pytest.raises(PlanError, match="with 1 row are") as error:
        plan(GemmSpec(schedule="simt", tile=tile), of)
    assert "1x4x1024" not in str(error.value).split("are", 1)[1] and tuple(error.value.nearest) != tile
    assert plan(GemmSpec(schedule="simt", tile=error.value.nearest), of).config.tile == tuple(
        error.value.nearest
    )


def test_other_types_have_their_own_tiles():
    """A tile of few rows for fp32 is refused as any other that does not exist."""
    with pytest.raises(PlanError, match="tiles of the CUDA cores are"):
        plan(GemmSpec(schedule="simt", tile=(4, 128, 16)), problem(4, 1024, 1024, dtype="fp32"))


def test_laws_of_the_model():
    """More and longer columns, unaligned ones and more rows of one word never cost less; half the SMs take longer."""
    for x in TILES:
        for n, k in ((100, 512), (1000, 4096), (40_000, 1024)):
            cost = lambda n=n, k=k, device=H200, whole=True, x=x: gemv_tiles.estimate(
                problem(x.rows, n, k, majors="kk"), x, device, whole
            )
            assert cost(n=2 * n) >= cost() and cost(k=2 * k) >= cost() and cost(whole=False) >= cost()
            assert cost(device=dataclasses.replace(H200, sms=66)) >= cost()
            more = next((y for y in TILES if (y.rows, y.own, y.slices) == (x.rows + 1, x.own, x.slices)), x)
            assert x.rows == 1 or cost(x=more) >= cost()


@pytest.mark.parametrize("name", [x.name for x in dataclasses.fields(FewRowModel)])
def test_every_rate_counts(name):
    """Twice a rate changes the time of some tile; a higher bandwidth shortens it, all others lengthen it."""
    model = dataclasses.replace(H200.few_rows, **{name: 2 * getattr(H200.few_rows, name)})
    device, sign = dataclasses.replace(H200, few_rows=model), -1 if name == "dram" else 1
    changes = [
        gemv_tiles.estimate(of, x, device, whole) - gemv_tiles.estimate(of, x, H200, whole)
        for x in TILES
        for n, k in ((64, 512), (100, 4096), (5000, 1024), (40_000, 4096))
        for of in (problem(x.rows, n, k, majors="kk"),)
        for whole in (True, False)
    ]
    assert any(changes) and all(sign * change >= 0 for change in changes)


def test_another_wave_costs_what_a_cta_waits():
    """The first CTA of a second wave costs at least its loads one after another; one that fits in the first, little."""
    for x in TILES:
        held = x.residents * H200.sms * x.columns
        cost = lambda n, x=x: gemv_tiles.estimate(problem(x.rows, n, 4096, majors="kk"), x, H200, True)
        loads = -(-4096 // x.tile[2]) * H200.few_rows.latency
        assert cost(held + x.columns) - cost(held) > loads > 5 * (cost(held) - cost(held - x.columns))


def test_what_is_loaded_early():
    """A constant, aligned B is loaded early; for one row only if its columns are short. D may be transposed."""
    row, column = (problem(*x, majors="kk") for x in ((2, 999, 1024), (999, 2, 1024)))
    for of, constant, early in (
        (row, ("b",), ("b",)),
        (row, ("a", "b"), ("b",)),
        (row, ("a",), ()),
        (column, ("a",), ("b",)),
        (column, ("b",), ()),
        (problem(2, 999, 1021, majors="kk"), ("b",), ()),
    ):
        config = plan(GemmSpec(schedule="simt", constant=constant), of).config
        assert config.early == early, (of, constant)
    most = H200.thresholds.early_blocks
    for x in TILES:
        for blocks in (most, most + 1):
            of = problem(x.rows, 999, blocks * x.tile[2], majors="kk")
            config = plan(GemmSpec(schedule="simt", tile=x.tile, constant=("b",)), of).config
            assert bool(config.early) is (x.rows > 1 or blocks == most)
            assert config.trigger == "start" or not config.early


def test_only_aligned_columns_of_b_can_be_early():
    """Other configs cannot be made."""
    config = plan(GemmSpec(schedule="simt", constant=("b",)), problem(2, 999, 1024, majors="kk")).config
    for fields in ({"early": ("a",)}, {"early": ("a", "b")}, {"aligned": False}):
        with pytest.raises(PlanError, match="only a B whose columns"):
            dataclasses.replace(config, **fields)


@pytest.mark.parametrize(
    ("of", "fields"),
    [
        (problem(128, 1024, 1024, majors="kk"), {"schedule": "simt"}),
        (problem(2, 1024, 1024, majors="kk", dtype="fp32"), {}),
        (problem(2, 1024, 0, majors="kk"), {}),
    ],
    ids=["rows", "fp32", "no products"],
)
def test_others_ignore_what_is_constant(of, fields):
    """It is a promise of the caller, which any kernel may have: the plan is the same."""
    plain, constant = (plan(GemmSpec(**fields, **x), of) for x in ({}, {"constant": ("b",)}))
    assert constant.config == plain.config and constant.config.family == "simt"


def test_beside_the_tensor_cores_a_tile_loads_constant_columns_early_or_is_not_weighed():
    """Unless their own loads begin late, too, as those of unaligned columns do."""
    for k, fields, counted in (
        (16384, {}, False),
        (16384, {"schedule": "simt"}, True),
        (16385, {}, True),
        (1024, {}, True),
    ):
        asked = requested(GemmSpec(constant=("b",), **fields), problem(1, 4096, k, majors="kk"), H200)[0]
        found = gemv_tiles.weighed(asked)
        assert bool(found) is counted, (k, fields)
        assert k % 8 or fields or all(early_operands(asked, x) for _, x in found)
    # what is constant is the operand that all CTAs read, so no kernel loads much of it early
    for of, constant in (
        (problem(4096, 1, 16384, majors="kk"), "b"),
        (problem(1, 4096, 16384, majors="kk"), "a"),
    ):
        assert gemv_tiles.weighed(requested(GemmSpec(constant=(constant,)), of, H200)[0])


def test_a_named_schedule_is_compared_with_no_other():
    """The predicted time of constant operands is longer only beside that of the tensor cores."""
    of = problem(2, 1024, 1024, majors="kk")
    for fields, longer in (({"schedule": "simt"}, 1.0), ({}, H200.thresholds.constant_few_rows)):
        plain, constant = (
            gemv_tiles.weighed(requested(GemmSpec(**fields, **x), of, H200)[0])
            for x in ({}, {"constant": ("b",)})
        )
        assert [x for x, _ in constant] == pytest.approx([longer * x for x, _ in plain])
