# SPDX-License-Identifier: Apache-2.0
"""Deleting any fence, wait, arrive or barrier of a correct kernel is noticed.

`emulator_pipeline.cu` has no survivors: each of its synchronisation instructions matters on the problem run here.
"""

from __future__ import annotations

import pytest

from cutegemm.emulator.watch.warp_roles import ISSUE, wait_kind
from tests.support.emulator_pipeline import SYNCHRONISATION, compiled, run_pipeline, without

SURVIVORS: dict[str, str] = {}  # instruction -> why nothing is lost without it


def candidates() -> list:
    """Every synchronisation instruction of the kernel, by index."""
    code = compiled().code
    return [
        pytest.param(i, id=f"{i}-{ins.op.split('.')[0]}")
        for i, ins in enumerate(code)
        if ins.op.startswith(SYNCHRONISATION)
    ]


@pytest.mark.parametrize("index", candidates())
def test_a_deleted_synchronisation_is_noticed(index):
    """The detector, a fault, a deadlock or a wrong result tells of the deletion, unless it is listed as harmless."""
    kernel = compiled()
    mutant = without(kernel, index)
    outcomes = [run_pipeline(mutant, policy=policy, seed=1, races=True) for policy in ("lazy", "random")]
    survives = all(o.silent for o in outcomes)
    assert survives == (str(kernel.code[index]) in SURVIVORS), kernel.code[index]


def test_what_survives_is_reported_as_not_exercised():
    """One tile and one step of K: deletions go unnoticed, and coverage says so; a wait that survives is named in it."""
    kernel, small = compiled(), {"shape": (64, 64, 64), "ctas": 1, "races": True, "policy": "lazy"}
    coverage = run_pipeline(kernel, **small).report.coverage
    idle = {wait.line for wait in coverage.idle_waits}
    survivors = [
        kernel.code[p.values[0]]
        for p in candidates()
        if run_pipeline(without(kernel, p.values[0]), **small).silent
    ]
    assert survivors and coverage.single_slots and coverage.single_tiles
    # A barrier always waits; the one that survives frees memory for a second tile, whose lack is reported.
    waits = [i for i in survivors if wait_kind(i.op) not in (None, ISSUE) and not i.op.startswith("bar.")]
    assert waits and {ins.line for ins in waits} <= idle


def test_the_kernel_has_enough_to_delete():
    """The list of candidates is not empty by accident: 19 instructions, of every kind."""
    kinds = {compiled().code[p.values[0]].op.split(".")[0] for p in candidates()}
    assert kinds == {"fence", "mbarrier", "bar", "wgmma", "cp"}
    assert len(candidates()) >= 19
