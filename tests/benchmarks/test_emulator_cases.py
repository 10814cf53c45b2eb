# SPDX-License-Identifier: Apache-2.0
"""Whole kernels as they are kept for the emulator: what is compiled and planned now runs, and is right."""

import pytest
import torch

from benchmarks import emulator_cases
from benchmarks.emulator_cases import ALPHA, BETA, CASES


@pytest.mark.sliced
@pytest.mark.parametrize("name", ["01_naive", "simt_fp32", "multistage"])
def test_steps_of_today_run(name):
    """A stage's and a spec's launches, as they are made now, compute alpha A B + beta C on the emulator."""
    case = CASES[name]
    d, reports = case.emulate()
    a, b, c = (x.double() for x in case.operands())
    expected = ALPHA * (a @ b) + BETA * c
    assert len(reports) == len(case.steps()) and not torch.isnan(d).any()
    assert (d.double() - expected).norm() / expected.norm() < 2**-8


def test_parameters_name_no_address_of_this_machine():
    """Kept parameters hold the numbers that stand for operands, so that another machine can put its own there."""
    (step,) = CASES["simt_fp32"].steps()
    kept = bytes.fromhex("".join(step.params))
    for name in "abcd":
        assert emulator_cases.STANDS_FOR[name].to_bytes(8, "little") in kept, name
