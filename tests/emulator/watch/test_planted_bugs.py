# SPDX-License-Identifier: Apache-2.0
"""Planted defects are found, and the correct twin stays silent: the pipeline with one BUG_ macro at a time."""

from __future__ import annotations

import pytest

from tests.support.emulator_pipeline import compiled, run_pipeline

PROTOCOLS = [{"policy": "lazy", "races": True}, {"policy": "random", "seed": 1, "races": True}]


@pytest.mark.parametrize(
    "options", [{}, {"policy": "lazy"}, {"policy": "random", "seed": 5}, {"warps_per_group": 1}, *PROTOCOLS]
)
@pytest.mark.parametrize("shape", [(64, 64, 64), (192, 128, 200), (100, 72, 8), (130, 200, 136)])
def test_the_correct_kernel_is_right_and_silent(shape, options):
    """The kernel without a defect gives the right D under every policy and draws no finding."""
    outcome = run_pipeline(compiled(), shape, **options)
    assert outcome.silent, outcome


BUGS = {  # defect -> what must be said of it, in findings or the error
    "NO_FULL_WAIT": "write-read race",
    "PARITY": "race",
    "NO_EMPTY_WAIT": "more arrivals",
    "LOST_ARRIVE": "deadlock",
    "TX_SHORT": "wrong expect_tx",
    "NO_EXPECT": "deadlock",
    "NO_PROXY_FENCE": "missing proxy fence",
    "NO_BARRIER": "race",
    "BARRIER_COUNT": "96 of 128 threads",
    "NO_STORE_WAIT": "read-write race",
    "NO_FINAL_WAIT": "leftover",
    "SWIZZLE": "swizzle mismatch (128B written, 64B read)",
    "STRIDE": "leftover",
    "FAR": "leaves shared memory: it begins at shared offset 0x",
    "NO_WGMMA_FENCE": "missing wgmma.fence",
    "NO_COMMIT": "leftover",
    "NO_WGMMA_WAIT": "race",
    "LENIENT_WAIT": "race",
    "INIT_COUNT": "arrivals",
    "NO_INIT_FENCE": "without a fence",
    "NO_INIT_BARRIER": "mbarrier",
    "OUT_OF_BOUNDS": "past the end of 'D'",
}


@pytest.mark.parametrize("bug", list(BUGS))
def test_a_planted_defect_is_found(bug):
    """Each defect is reported, by name where one applies, with the race detector on."""
    outcomes = [run_pipeline(compiled(bug), **options) for options in PROTOCOLS]
    assert not any(o.silent for o in outcomes), outcomes
    said = " | ".join(text for o in outcomes for text in (o.error, *o.findings))
    assert BUGS[bug] in said, said
