# SPDX-License-Identifier: Apache-2.0
"""Coverage of synchronisation: what a run did not exercise is said, with the shape that would."""

from __future__ import annotations

import re

import pytest

from tests.support.emulator_pipeline import compiled, run_pipeline


def covered(shape, ctas: int, **options):
    """Coverage of a run of the pipeline."""
    outcome = run_pipeline(compiled(), shape, ctas=ctas, races=True, **options)
    assert outcome.silent, outcome
    return outcome.report.coverage


@pytest.mark.parametrize("options", [{}, {"policy": "lazy"}])
def test_a_problem_of_several_tiles_and_turns_exercises_everything(options):
    """Two CTAs, three tiles each, four steps of K in two slots: nothing is left to say."""
    coverage = covered((192, 128, 200), 2, **options)
    assert not coverage.gaps and not coverage.hints
    assert str(coverage) == "all synchronisation was exercised"
    assert set(coverage.tiles.values()) == {3} and all(slot.phases > 2 for slot in coverage.slots)


def test_one_tile_and_one_step_of_k_leave_gaps():
    """A single step: the ring is not used up, no wait for a free slot had to wait, the CTA had one tile."""
    coverage = covered((64, 64, 64), 1)
    assert [slot.phases for slot in coverage.slots] == [1, 0, 1, 0]
    assert coverage.single_tiles == [(0, 0, 0)]
    assert any(wait.op.startswith("mbarrier.try_wait") for wait in coverage.idle_waits)
    text = str(coverage)
    assert (
        "mbarriers never used twice, by offset (phases completed)" in text
        and "1 of 1 CTAs had one tile" in text
    )


def test_the_hint_names_a_shape_that_closes_the_gap():
    """The extent named for K, taken as K, uses every slot twice; tiles for each CTA likewise."""
    coverage = covered((64, 64, 64), 1)
    least = int(re.search(r"each of 2 slots twice: extent 0 .* at least (\d+)$", coverage.hints[0])[1])
    assert least == 200  # three boxes of 64 and one more, in steps of 16 bytes
    assert not covered((64, 64, least), 1).single_slots
    assert covered((64, 64, least - 8), 1).single_slots
    tiles = int(re.search(r"at least (\d+) tiles for 1 CTAs \(now 1\)", coverage.hints[-1])[1])
    assert not covered((64 * tiles, 64, least), 1).single_tiles


def test_only_runs_with_the_detector_have_coverage():
    """A plain run keeps its speed and says nothing."""
    assert run_pipeline(compiled(), (64, 64, 64)).report.coverage is None


def test_synchronisation_that_never_ran_is_listed():
    """With no tile at all for a CTA of the grid nothing is hidden: the lines of the pipeline that no warp reached."""
    outcome = run_pipeline(compiled(), (64, 64, 64), ctas=1, races=True)
    never = {op.split(".")[0] for _, op in outcome.report.coverage.never}
    reached = {wait.line for wait in outcome.report.coverage.waits if wait.reached}
    assert not never or not reached & {line for line, _ in outcome.report.coverage.never}
