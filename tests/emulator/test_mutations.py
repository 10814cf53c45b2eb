# SPDX-License-Identifier: Apache-2.0
"""Deleting any fence, wait, arrive or barrier of a correct kernel is noticed.

`pipeline.cu` has no survivors: each of its synchronisation instructions matters on the problem run here.
"""

from __future__ import annotations

import pytest
from pipeline_kernel import compiled, run_pipeline, without

SYNCHRONISATION = ("fence", "mbarrier", "bar.", "barrier", "wgmma.fence", "wgmma.commit", "wgmma.wait",
                   "cp.async.bulk.commit", "cp.async.bulk.wait")  # fmt: skip
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


def test_the_kernel_has_enough_to_delete():
    """The list of candidates is not empty by accident: 19 instructions, of every kind."""
    kinds = {compiled().code[p.values[0]].op.split(".")[0] for p in candidates()}
    assert kinds == {"fence", "mbarrier", "bar", "wgmma", "cp"}
    assert len(candidates()) >= 19
