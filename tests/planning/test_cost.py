# SPDX-License-Identifier: Apache-2.0
"""The generator's table and the cost model: legal configs, units, and laws that every prediction follows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import DEFAULT, H100, H200
from cutegemm.planning import cost, generator, ranking
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.planner import plan
from cutegemm.planning.request import requested

LARGE = Candidate((128, 256, 64), (2, 1), "cooperative", 2)
KIND = generator.Kind(limits=DEFAULT.limits, plain=True, a_k=True, b_k=True, d_row=True)


def ns(of, *candidates, device=DEFAULT):
    """Predicted nanoseconds of candidates."""
    return cost.nanoseconds(cost.counts(of, device, generator.rows(candidates)), device.cost)


@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_more_work_never_costs_less(axis):
    """Along each extent, in whole tiles."""
    extents = {"m": 1024, "n": 1024, "k": 1024}
    times = [float(ns(problem(**extents | {axis: x}), LARGE)[0]) for x in (1024, 2048, 4096, 8192, 16384)]
    assert times == sorted(times)


def test_padding_costs_what_its_tiles_do():
    """A row more than whole tiles have costs a further row of tiles: as many operations as a full one."""
    whole, more, full = (
        cost.counts(problem(x, 2048, 4096), DEFAULT, generator.rows([LARGE])) for x in (2048, 2049, 2304)
    )
    assert more.flops == full.flops > whole.flops and more.traffic == full.traffic


def test_a_gpu_twice_as_fast_takes_half_the_time():
    """Every rate doubled and every time halved: the units agree."""
    rates = ("port", "l2", "store", "sum_rate", "part_store", "add_rate", "part_rate", "first_rate", "watts")
    same = ("dram", "straddle", "thin", "mma_turn", "mma_three", "turn_lone", "bare_mma", "in_use", "fill",
            "fill_beneath", "asked", "asked_bare", "flop", "l2_energy", "dram_energy", "slows")  # fmt: skip
    old = dataclasses.asdict(DEFAULT.cost)
    new = {x: v * (2 if x in rates else 1 if x in same else 0.5) for x, v in old.items()}
    device = dataclasses.replace(DEFAULT, cost=type(DEFAULT.cost)(**new), dram_gbs=2 * DEFAULT.dram_gbs)
    split = Candidate((64, 64, 64), (1, 1), "cooperative", 1, 4, 1, "launch")
    for of in (problem(4096, 4096, 4096), problem(128, 256, 16384), problem(8, 4096, 4096)):
        before, after = ns(of, LARGE, split), ns(of, LARGE, split, device=device)
        assert after == pytest.approx(before / 2)


def test_every_row_of_a_table_is_a_kernel():
    """Whatever the generator lists for a plain problem the planner can build, but for a few that want more room."""
    asked, _ = requested(GemmSpec(), problem(4096, 4096, 4096), DEFAULT)
    shown = plan(GemmSpec(), asked.problem).why.weighed
    assert sum(x.serves for x in shown) > 0.95 * len(shown)


def test_tables_are_small_and_made_once():
    """Six thousand rows at most, none twice, and the same object for the same facts."""
    table = generator.table(KIND)
    rows = np.array(table)
    assert rows.shape[1] <= 6000 and len(set(map(tuple, rows.T))) == rows.shape[1]
    assert generator.table(KIND) is table


def test_splits_are_for_few_tiles():
    """None where tiles fill the SMs; never more than K has steps for; a cluster adds up all of them or none."""
    table = generator.table(KIND)
    assert generator.split(problem(8192, 8192, 8192), DEFAULT, table) is table
    found = generator.split(problem(128, 256, 8192), DEFAULT, table)
    split = found.splits > 1
    assert split.any() and (found.splits * found.k <= 8192).all()
    assert ((found.held == found.splits) | (found.held == 1)).all()
    assert (found.schedule[split] == cost.COOPERATIVE).all()


def test_candidates_and_rows_are_the_same():
    """A row made of a candidate gives it back."""
    for one in (LARGE, Candidate((64, 24, 128), (1, 2), "cooperative", 1, 8, 8, "cluster"),
                Candidate((128, 200, 64), (1, 1), "pingpong", 2)):  # fmt: skip
        assert generator.candidate(generator.rows([one]), 0) == one


def test_options_come_by_time_and_keep_to_what_is_given():
    """Both ways round in one order; a given schedule, team, cluster or way leaves the others out."""
    of = problem(1200, 8192, 4096)
    asked, _ = requested(GemmSpec(), of, DEFAULT)
    found = list(ranking.options(asked))
    assert [x.ns for x in found] == sorted(x.ns for x in found) and {x.swapped for x in found} == {
        False,
        True,
    }
    spec = GemmSpec(schedule="cooperative", consumers=2, cluster=(2, 1), swap=True)
    for x in ranking.options(dataclasses.replace(asked, spec=spec)):
        assert x.swapped and (x.candidate.schedule, x.candidate.consumers) == ("cooperative", 2)
        assert x.candidate.cluster == (1, 2)


@pytest.mark.parametrize(
    "fields",
    [{"sms": 64}, {"split_k": 2}, {"scheduler": "stream_k"}, {"stages": 3}],
)
def test_fields_that_the_table_does_not_know_are_for_the_orders(fields):
    """So are operands that TMA cannot address."""
    asked, _ = requested(GemmSpec(**fields), problem(256, 4096, 4096), DEFAULT)
    assert not ranking.open_to(asked)
    odd, _ = requested(GemmSpec(), problem(255, 4095, 4095), DEFAULT)
    assert not ranking.open_to(odd)


def test_rows_of_the_same_bits_have_no_splits():
    """How many pay depends on M, on which `batch_invariant` lets no sum depend."""
    asked, _ = requested(GemmSpec(batch_invariant=True), problem(128, 256, 8192), DEFAULT)
    assert all(x.candidate.splits == 1 for x in ranking.options(asked))


def test_waves_decide_which_way_a_tile_lies():
    """Rows that fill tiles of 200 columns and not of 128 or 256 rows are laid along columns, on either GPU."""
    for device in (H200, H100):
        made = plan(GemmSpec(), problem(1200, 21504, 5376), device)
        assert made.swapped and 1200 % made.config.tile[1] == 0
