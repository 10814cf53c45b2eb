# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: the candidates, their predicted times, and the reason each lost."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from benchmarks import first_plans
from cutegemm import GemmSpec, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.arch.records import RECORDS
from cutegemm.planning.planner import plan
from cutegemm.planning.why import SHOWN, predicted_us
from cutegemm.plans.kernel_plan import Why
from tests.support.counted import calls

ROOT = Path(__file__).parents[2]

PROBLEMS = {
    "square": problem(4096, 4096, 4096),
    "few rows": problem(16, 4096, 4096),
    "odd": problem(1023, 1023, 1023),
    "deep": problem(128, 128, 16384),
    "batch, C": problem(2048, 2048, 1024, batch=8, c_dtype="bf16"),
    "fp32": problem(500, 500, 500, dtype="fp32"),
}


@pytest.mark.parametrize("device", RECORDS, ids=lambda x: x.name)
@pytest.mark.parametrize("of", PROBLEMS.values(), ids=PROBLEMS)
def test_one_candidate_is_taken_and_every_other_has_a_reason(of, device):
    """The taken one is the plan's, at its predicted time; nothing that serves is predicted faster."""
    made = plan(GemmSpec(), of, device)
    why = made.why
    weighed = why.weighed
    (taken,) = (x for x in weighed if not x.lost)
    assert why.taken is taken and taken.us == pytest.approx(predicted_us(made)) and taken.us > 0
    m, n, k = made.config.tile
    assert str((n, m, k) if made.swapped else (m, n, k)) in taken.what
    assert all(x.us >= taken.us for x in weighed if x.lost.startswith("slower"))
    faster = [x for x in weighed[: weighed.index(taken)] if x.serves]
    assert all(x.us >= taken.us or "registers" in x.lost for x in faster)


@pytest.mark.parametrize(
    ("fields", "shape", "epilogue"),
    [
        # a gated pair, read as one of its halves
        ({}, (203, 376, 103), epi.swiglu("halves")),
        # named by the rule of few rows and by the order
        ({}, (16, 4096, 100), None),
        # copied where threads would load it, had nothing been given
        ({"cluster": (2, 1)}, (203, 375, 1003), None),
        ({"evict_first": ("a",)}, (103, 95, 1543), None),
    ],
)
def test_what_was_taken_is_listed_once_at_its_own_time(fields, shape, epilogue):
    """Whatever way the operands come, and however often an order names it."""
    given = fields | ({"epilogue": epilogue} if epilogue else {})
    made = plan(GemmSpec(**given), problem(*shape, epilogue=epilogue))
    (taken,) = (x for x in made.why.weighed if not x.lost)
    assert taken.us == pytest.approx(predicted_us(made))


def test_it_reads_as_a_table():
    """A line a candidate, the first with the words "taken"; a given tile is the only one."""
    made = plan(GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1)), PROBLEMS["square"])
    assert re.fullmatch(
        r" +predicted  candidate +fate\n +\d+\.\d us  tile \(128, 256, 64\), cluster \(2, 1\)  taken",
        str(made.why),
    )
    assert str(plan(GemmSpec(), problem(0, 1, 1)).why) == "nothing was chosen" == str(Why(()))


def test_both_ways_round_are_listed_where_the_cost_model_chooses():
    """Exactly one is taken; a given `swap` leaves one way."""
    of = problem(216, 248, 2848)
    weighed = plan(GemmSpec(), of).why.weighed
    assert {dict(x.fields)["swap"] for x in weighed} == {False, True}
    assert [not x.lost for x in weighed].count(True) == 1
    for swap in (False, True):
        assert {dict(x.fields)["swap"] for x in plan(GemmSpec(swap=swap), of).why.weighed} == {swap}


def test_a_tile_that_is_legal_only_swapped_is_weighed_only_so():
    """The planner did not weigh the problem as given, so its fate is not listed."""
    made = plan(GemmSpec(tile=Tile(32, 64, 64), input_stages=1), problem(64, 64, 64))
    assert made.swapped and [x.lost for x in made.why.weighed] == [""]


def test_another_order_shows():
    """The order's first config is taken; configs that the model predicts faster say that they were not chosen."""

    def widest(found):
        return sorted(found, key=lambda x: -x.candidate.tile[1])

    made = plan(GemmSpec(), PROBLEMS["few rows"], order=widest)
    assert made.config.tile[1] > plan(GemmSpec(), PROBLEMS["few rows"]).config.tile[1]
    later = [x.lost for x in made.why.weighed if x.lost.startswith("predicted faster by")]
    assert later and all(re.fullmatch(r"predicted faster by \S+ us, but not chosen", x) for x in later)


@pytest.mark.parametrize(
    ("spec", "of", "tile"),
    [
        (GemmSpec(), problem(2, 999, 1001, majors="kk"), (4, 8, 256)),
        (GemmSpec(constant=("b",)), problem(1, 4096, 16384, majors="kk"), (1, 8, 512)),
    ],
    ids=["more rows", "late loads"],
)
def test_a_tuned_tile_that_the_planner_does_not_compare(spec, of, tile):
    """A tuned entry leaves the user's spec in the plan; its tile is in the table, as the one that was taken."""
    made = plan(dataclasses.replace(spec, schedule="simt", tile=Tile(*tile)), of)
    tuned = dataclasses.replace(made, spec=spec)
    tiles = {dict(x.fields)["tile"]: x for x in tuned.why.weighed if "CUDA cores" in x.what}
    assert tuned.why.taken == tiles[tile]
    assert predicted_us(tuned) == tiles[tile].us > 0
    assert tile not in {dict(x.fields)["tile"] for x in plan(spec, of).why.weighed}


def test_a_candidates_fields_ask_for_it():
    """A spec with the fields of a candidate that serves is planned as that candidate."""
    for of in (PROBLEMS["square"], PROBLEMS["few rows"]):
        for x in [x for x in plan(GemmSpec(), of).why.weighed if x.serves][:12]:
            asked = plan(dataclasses.replace(GemmSpec(), **dict(x.fields)), of)
            assert asked.why.taken.what == x.what


@pytest.mark.parametrize("shape", first_plans.SHAPES.values(), ids=first_plans.SHAPES)
def test_a_first_plan_is_little_work(shape):
    """The choice and all that follows enter at most 5,500 functions, about 2 ms (`benchmarks.first_plans`)."""
    m, n, k = shape
    plan(GemmSpec(), problem(*shape))
    assert min(calls(lambda x=x: plan(GemmSpec(), problem(m, n, k + 8 * x))) for x in range(1, 5)) <= 5_500


def test_a_plan_is_remembered():
    """The same arguments give the same object, for 40 function calls; why it is so is no part of it."""
    spec, of = GemmSpec(), problem(4096, 4096, 4096)
    made = plan(spec, of)
    assert plan(GemmSpec(), dataclasses.replace(of)) is made
    assert calls(lambda: plan(spec, of)) <= 40
    assert "why" not in {x.name for x in dataclasses.fields(made)}


def test_the_words_of_a_cuda_core_tile_are_its_fields():
    """A candidate names its splits where it has several, and only there."""
    weighed = plan(GemmSpec(), problem(256, 256, 512, dtype="fp32")).why.weighed
    splits = {dict(x.fields)["split_k"] for x in weighed}
    assert 1 in splits and len(splits) > 1
    for x in weighed:
        tile, split = (dict(x.fields)[name] for name in ("tile", "split_k"))
        assert x.what == f"tile {tile}" + (f", {split} splits of K" if split > 1 else "")


def test_candidates_that_differ_in_the_cluster_alone_are_shown_once():
    """The plan's own beside at most `SHOWN` others, the fastest cluster of each."""
    made = plan(GemmSpec(), PROBLEMS["square"])
    others = [dict(x.fields) for x in made.why.weighed if x.lost]
    kinds = [tuple((k, v) for k, v in x.items() if k != "cluster") for x in others]
    assert len(set(kinds)) == len(kinds) <= SHOWN
