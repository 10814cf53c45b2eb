# SPDX-License-Identifier: Apache-2.0
"""How many stages a pipeline has by default, and what the cost model and kernels' factors make of many."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cutegemm import GemmSpec, Tile, problem
from cutegemm.arch.records import DEFAULT, H200
from cutegemm.config.smem_budget import smem_bytes
from cutegemm.planning import generator, ranking, ways
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.grouped import plan_groups
from cutegemm.planning.known_kernels import DEEP, KINDS, factor_of, name
from cutegemm.planning.planner import plan
from cutegemm.planning.seen import FEW_STAGES
from cutegemm.plans.steps import Ends
from cutegemm.request.requirements import requested
from cutegemm.spec import MAX_STAGES

SMALL = GemmSpec(tile=Tile(64, 64, 64), swap=False, schedule="cooperative")
# twice as many k tiles as few stages
LONG = 2 * FEW_STAGES * 64


def stages(spec, of):
    """The stages of the kernel that is planned."""
    return plan(spec, of).config.stages


def test_small_tiles_have_as_many_stages_as_fit():
    """Where K fills few of them more than once; no kernel of a shorter K has more."""
    assert FEW_STAGES < stages(SMALL, problem(512, 512, LONG)) <= MAX_STAGES
    assert stages(SMALL, problem(512, 512, FEW_STAGES * 64)) == FEW_STAGES
    assert stages(dataclasses.replace(SMALL, split_k=2), problem(512, 512, LONG)) == FEW_STAGES


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"constant": ("b",)}, {}),
        ({"tile": Tile(64, 64, 128)}, {"dtype": "fp8_e4m3", "majors": "kk"}),
        ({"math": "tf32", "tile": Tile(64, 64, 32)}, {"dtype": "fp32", "majors": "kk"}),
    ],
    ids=["constant", "fp8", "tf32"],
)
def test_others_have_few(fields, kinds):
    """The next launch's early loads need room, and more were not measured for other types."""
    spec = dataclasses.replace(SMALL, **fields)
    assert stages(spec, problem(512, 512, 4 * LONG, **kinds)) <= FEW_STAGES
    given = dataclasses.replace(spec, stages=FEW_STAGES + 1)
    assert stages(given, problem(512, 512, 4 * LONG, **kinds)) == FEW_STAGES + 1


@pytest.mark.parametrize("kind", ["rows", "masked"])
def test_groups_have_few_and_no_tiles_in_turn(kind):
    """In every size of group that a bucket stands for."""
    for m in (8, 64, 512, 4096):
        made = plan_groups(GemmSpec(), problem(m, 512, 4 * LONG, batch=8), kind, Ends(), DEFAULT)
        assert made.config.stages <= FEW_STAGES and not any(x.in_turn for x in made.config.stage)


def in_turn(rows):
    """Which rows of a table have tiles that CTAs load in turn; operands are K-major."""
    return (rows.n % (8 * rows.across) != 0) | (rows.m % (8 * rows.along) != 0)


def test_tables_have_tiles_in_turn_where_these_were_measured():
    """Those of 16-bit GEMMs do; of fp8 none, and of constant operands none."""
    counts = []
    for spec, dtype in ((GemmSpec(), "bf16"), (GemmSpec(constant=("b",)), "bf16"), (GemmSpec(), "fp8_e4m3")):
        asked, _ = requested(spec, problem(128, 4096, 4096, dtype=dtype, majors="kk"), H200)
        way = next(ways.ways_of(asked))
        counts.append(int(in_turn(generator.table(ways.Kind.of(way))).sum()))
    assert counts[0] > 100 and counts[1:] == [0, 0]


def test_a_kernel_with_many_stages_has_its_own_factor_or_that_of_few():
    """By the name of its kind; a given number of stages decides, too."""
    one = Candidate((64, 64, 64), (1, 1), "cooperative", 1)
    few, many = name(one), name(one, KINDS[DEEP])
    assert factor_of(many, {few: 1.5}) == 1.5 and factor_of(many, {few: 1.5, many: 1.25}) == 1.25

    def ratio(kernels, **fields):
        found = []
        for known in (kernels, {}):
            device = dataclasses.replace(H200, name=f"H200 of {sorted(known)}", kernels=known)
            asked = requested(GemmSpec(swap=False, **fields), problem(512, 512, LONG), device)[0]
            found.append(ranking.predicted(next(ways.ways_of(asked)), [one])[0])
        return found[0] / found[1]

    assert ratio({few: 1.5}) == pytest.approx(1.5)
    assert ratio({few: 1.5, many: 1.25}) == pytest.approx(1.25)
    assert ratio({few: 1.5, many: 1.25}, stages=4) == pytest.approx(1.5)


def test_more_stages_hide_more_latency():
    """The same config is predicted faster with many stages than with few, and slowest with four."""
    one = Candidate((64, 64, 64), (2, 2), "cooperative", 1)
    times = []
    for count in (4, FEW_STAGES, 12):
        asked = requested(GemmSpec(swap=False, stages=count), problem(512, 512, 8 * LONG), H200)[0]
        times.append(ranking.predicted(next(ways.ways_of(asked)), [one])[0])
    assert np.all(np.diff(times) < 0)


@pytest.mark.parametrize("k", [LONG + 2, LONG + 4], ids=["4 bytes", "8 bytes"])
def test_short_copies_leave_l1_its_share(k):
    """Kernels that load by cp.async of 4 or 8 bytes have at most 196 KiB, unless two stages would remain."""
    spec = dataclasses.replace(SMALL, a_load="cp_async", b_load="cp_async")
    l1, reserved = H200.limits.smem_l1_bytes, H200.limits.smem_reserved
    for tile in (Tile(64, 64, 64), Tile(128, 24, 128), Tile(128, 160, 64), Tile(128, 128, 128)):
        of = problem(512, 512, k, majors="kk")
        config = plan(dataclasses.replace(spec, tile=tile), of).config
        few = smem_bytes(config) + reserved <= l1
        assert few != (tile.n == tile.k == 128), tile
        if few and config.stages < MAX_STAGES:
            assert smem_bytes(config, config.stages + 1) + reserved > l1
        given = plan(dataclasses.replace(spec, tile=tile, stages=config.stages + few), of).config
        assert smem_bytes(given) + reserved > l1


def test_words_that_bypass_l1_have_the_stages_that_fit():
    """Unaligned operands come in copies of 16 bytes."""
    spec = dataclasses.replace(SMALL, a_load="shift", b_load="shift", tile=Tile(128, 32, 64))
    config = plan(spec, problem(512, 512, LONG + 1, majors="kk")).config
    assert smem_bytes(config, config.stages + 1) > config.smem_limit
