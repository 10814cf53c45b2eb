# SPDX-License-Identifier: Apache-2.0
"""The cost of groups: a tile that reaches beyond a group loads what lies there."""

from __future__ import annotations

import numpy as np

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import DEFAULT
from cutegemm.planning import cost, generator, ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.requirements import Batches, requested
from cutegemm.planning.seen import Seen


def counted(of, *candidates, **adjacent):
    """What candidates do."""
    return cost.counts(Seen.of(of, **adjacent), DEFAULT, generator.rows(candidates))


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
