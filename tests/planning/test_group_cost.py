# SPDX-License-Identifier: Apache-2.0
"""The cost of groups: a tile that reaches beyond a group loads what lies there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.errors import PlanError
from cutegemm.ops.groups.grouped import planned
from cutegemm.planning import grouped, ranking, ways, why
from cutegemm.planning.candidates import Candidate
from cutegemm.plans import group_tiles
from cutegemm.plans.plan_text import average_of
from cutegemm.request.group_forms import rows_of_average, usual_rows
from cutegemm.request.requirements import Batches, requested
from tests.support.costs import counted


def test_a_tile_of_groups_loads_what_lies_behind_a_group():
    """Rows of the next group, whole boxes of them; nothing is filled with zeros there, on either side."""
    alone, pair = (Candidate((64, 48, 128), x, "cooperative", 1) for x in ((1, 1), (1, 2)))
    few, full = problem(16, 5376, 8192), problem(64, 5376, 8192)
    apart, groups, whole = (
        counted(few, alone, pair),
        counted(few, alone, pair, adjacent_m=True),
        counted(full, alone, pair),
    )
    assert apart.landed[0] < groups.landed[0] == whole.landed[0]
    assert apart.void[1] > 0 and groups.void.tolist() == [0, 0]
    # both ways at once, as columns
    both = counted(few, alone, alone, adjacent_m=np.array([False, True]))
    assert both.landed.tolist() == [apart.landed[0], groups.landed[0]]
    columns = [
        counted(problem(256, 20, 4096, majors="kk"), alone, adjacent_n=x).void[0] for x in (False, True)
    ]
    assert columns[0] > columns[1] == 0


def test_groups_of_few_rows_are_not_planned_as_short_boxes():
    """Their axis reaches the cost, in either orientation, and the plan of groups explains itself by it."""
    of, spec = problem(2, 2880, 2880, batch=64, majors="kk"), GemmSpec()
    asked = {axis: requested(spec, of, DEFAULT, Batches(axis))[0] for axis in ("", "m", "n")}
    for axis, flags in (
        ("", {(False, False)}),
        ("m", {(True, False), (False, True)}),
        ("n", {(False, True), (True, False)}),
    ):
        gemms = [(way.swapped, ranking.gemm_of(way)) for way in ways.ways_of(asked[axis])]
        assert {(x.adjacent_m, x.adjacent_n) for _, x in gemms} == flags
        assert all(x.adjacent_m == (axis == ("n" if swapped else "m")) for swapped, x in gemms)
    tall = Candidate((64, 160, 64), (1, 1), "multistage", 1)
    way = next(x for x in ways.ways_of(asked["m"]) if not x.swapped)
    apart = next(x for x in ways.ways_of(asked[""]) if not x.swapped)
    assert ranking.predicted(way, [tall])[0] > ranking.predicted(apart, [tall])[0]


def test_expected_tiles_are_those_of_sizes_that_scatter():
    """Beside the mean over drawn sizes; at a multiple of a tile half of the groups have one more."""
    draw = np.random.default_rng(1)
    for average in (128.0, 300.0, 512.0, 1024.0):
        sizes = draw.normal(average, np.sqrt(average), 20000)
        for lines in (64.0, 128.0, 192.0, 256.0):
            found = group_tiles.mean_tiles(average, np.array([lines]))[0]
            assert abs(found - np.ceil(sizes / lines).mean()) < 0.06 * found, (average, lines)
    # nearly all groups are empty
    assert np.allclose(group_tiles.mean_tiles(1 / 32, np.array([8.0])), 1 / 32, rtol=0.02)


def test_groups_end_in_part_of_a_tile():
    """Larger tiles lose more; groups whose rows the host does not know are as long as the problem says."""
    large = problem(1024, 2880, 2880, batch=128, majors="kk")
    tiles = [Candidate((m, 192, 64), (1, 1), "cooperative", 2) for m in (128, 256)]
    known = counted(large, *tiles, adjacent_m=True, group_rows=512.0).waves
    unknown = counted(large, *tiles, adjacent_m=True).waves
    assert known[1] / known[0] > 1.05 * unknown[1] / unknown[0]


def test_few_rows_leave_most_groups_empty():
    """Only the weights of groups that have rows are read, and there are few work tiles."""
    few = problem(1, 4096, 7168, batch=32, majors="kk")
    one = Candidate((64, 8, 128), (1, 1), "cooperative", 1)
    alone, every = (counted(few, one, adjacent_m=True, group_rows=x) for x in (1 / 32, 0.0))
    assert alone.memory[0] < every.memory[0] / 30 and alone.waves[0] < every.waves[0] / 10


@pytest.mark.parametrize(
    ("groups", "n", "k", "rows"),
    [
        (32, 4096, 7168, 1),
        (64, 2048, 7168, 3),
        (128, 1536, 4096, 8),
        (60, 1408, 2048, 5),
        (16, 14336, 4096, 7),
    ],
)
def test_a_row_for_some_groups_is_a_column_of_an_instruction(groups, n, k, rows):
    """More groups than rows: WGMMA multiplies at least 64 rows, but as few as 8 columns, so D is transposed. The time
    is that of the weights of groups that have rows."""
    a, b = torch.empty(rows, k, dtype=torch.bfloat16), torch.empty(groups, n, k, dtype=torch.bfloat16).mT
    made = planned(a, b, torch.ones(groups, dtype=torch.int32))
    assert made.swapped and made.config.producers and made.config.tile[1] < 64
    _, found = grouped.average_plan(made)
    assert found.adjacent == "m" and 0 < found.rows < 1
    read = rows * n * k * a.element_size() / DEFAULT.dram_gbs / 1e3
    assert why.predicted_us(made) < 5 + 1.3 * read < groups / rows * read


def test_given_fields_of_a_few_rows_stay():
    """A tile that the caller gives is not transposed, and an error is about the caller's fields."""
    a, b = torch.empty(1, 7168, dtype=torch.bfloat16), torch.empty(32, 4096, 7168, dtype=torch.bfloat16).mT
    given = planned(a, b, torch.ones(32, dtype=torch.int32), GemmSpec(tile=Tile(64, 256, 64)))
    assert not given.swapped
    odd_a, odd_b = torch.empty(3, 512, dtype=torch.bfloat16), torch.empty(8, 512, 7, dtype=torch.bfloat16)
    with pytest.raises(PlanError) as refused:
        planned(odd_a, odd_b, torch.ones(8, dtype=torch.int32), GemmSpec(a_load="tma", b_load="tma"))
    assert refused.value.field == "b_load" and "swapped" not in str(refused.value)


def test_usual_rows_are_of_their_bucket():
    """One number for all averages of a bucket, a power of two where it holds one; none for few rows."""
    found: dict[int, set[float]] = {}
    for average in np.arange(137.0, 4000.0, 0.5).tolist():
        found.setdefault(rows_of_average(average), set()).add(usual_rows(average))
    assert all(len(x) == 1 for x in found.values()) and len(found) > 6
    assert all(rows_of_average(x) == bucket for bucket, (x,) in found.items())
    assert [usual_rows(x) for x in (0.0, 0.3, 1.0, 100.0, 128.0, 512.0, 700.0)] == [
        0,
        0.25,
        0,
        0,
        128,
        512,
        512,
    ]


@pytest.mark.parametrize(
    ("average", "times"), [(8, 1), (16, 1), (16.5, 2), (24, 2), (32, 2), (32.5, 1), (64, 1)]
)
def test_tiles_have_room_for_uneven_groups(average, times):
    """Of 17 to 32 rows on average, in 16 bits and loaded by TMA, groups of twice the rows fit one tile."""
    groups, n, k = 64, 2048, 1024
    rows = int(average * groups)
    a, b = (torch.empty(x, dtype=torch.bfloat16, device="meta") for x in ((rows, k), (groups, n, k)))
    ends = torch.empty(groups, dtype=torch.int32, device="meta")
    made = planned(a, b.mT, ends)
    assert average_of(made).m == rows_of_average(times * average)
    assert made.config.group_rows >= times * average
    named = planned(a, b.mT, ends, None, torch.empty(rows, dtype=torch.int32, device="meta"))
    eight = planned(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).mT, ends)
    assert average_of(named).m == average_of(eight).m == rows_of_average(average)
