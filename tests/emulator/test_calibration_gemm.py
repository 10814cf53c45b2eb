# SPDX-License-Identifier: Apache-2.0
"""Whole kernels, as the GPU's machine compiled them, against D recorded on an H200, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.emulator_cases import CASES, kept
from benchmarks.emulator_record import digest, digests, patterns
from cutegemm.emulator import Options
from tests.support.emulator_fixtures import FIXTURES, recorded

RECORDED, STEPS = recorded("gemm.npz"), kept(FIXTURES / "kernels.json.xz")


@pytest.mark.sliced
@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_hardwares_bits(name):
    """D = 1.5 A B + 0.5 C of every family, SIMT and tensor core; late completion gives the same bits."""
    case = CASES[name]
    operands = digest(*(patterns(x) for x in case.operands()))
    assert (operands == RECORDED[name + "/inputs"]).all(), "the operands have changed: record again"
    for options in (Options(), Options(policy="lazy")):
        d, _ = case.emulate(STEPS[name], options)
        rows = np.flatnonzero((digests(patterns(d)) != RECORDED[name]).any(1))
        assert not len(rows), f"rows that differ: {rows.tolist()}"
