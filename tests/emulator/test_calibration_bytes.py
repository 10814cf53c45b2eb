# SPDX-License-Identifier: Apache-2.0
"""GEMMs of 8-bit operands and `quantize`, as compiled now, against what was recorded on an H200, bit for bit.

One command on the GPU records the fixture:

    python -m benchmarks.emulator_record --only bytes --out tests/emulator/fixtures --commit "$(git rev-parse HEAD)"
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.emulator_bytes import CASES
from benchmarks.emulator_record import digest, digests, patterns
from tests.support.emulator_fixtures import recorded

RECORDED = recorded("bytes.npz")


@pytest.mark.sliced
@pytest.mark.parametrize("name", CASES)
def test_8_bits_have_the_hardwares_bits(name):
    """Promoted and whole sums, scales of every kind, zero points, copies of operands, values and scales of quantize."""
    case = CASES[name]
    inputs = digest(*(patterns(x) for x in case.inputs().values()))
    assert (inputs == RECORDED[name + "/inputs"]).all(), "the inputs have changed: record again"
    for i, found in enumerate(case.results(emulated=True)):
        rows = np.flatnonzero((digests(np.atleast_1d(patterns(found))) != RECORDED[f"{name}/{i}"]).any(1))
        assert not len(rows), f"rows of result {i} that differ: {rows.tolist()}"
