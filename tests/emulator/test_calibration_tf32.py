# SPDX-License-Identifier: Apache-2.0
"""`math="tf32"` and "tf32x3", as compiled now, against D recorded on an H200, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.emulator_record import digest, digests, patterns
from benchmarks.emulator_tf32 import CASES
from cutegemm import Gemm, emulator
from tests.support.emulator_fixtures import recorded

RECORDED = recorded("tf32.npz")


@pytest.mark.sliced
@pytest.mark.parametrize("name", CASES)
def test_fp32_on_the_tensor_cores_has_the_hardwares_bits(name):
    """Long sums, exponents that differ widely, infinities and NaN, promoted partial sums, parts of elements."""
    a, b = CASES[name].operands()
    assert (digest(patterns(a), patterns(b)) == RECORDED[name + "/inputs"]).all(), "the operands have changed"
    if CASES[name].spec.math == "tf32":
        # what was recorded let the instruction cut elements, which now are rounded before
        a, b = ((x.contiguous().view(torch.int32) & -(1 << 13)).view(x.dtype) for x in (a, b))
    d = emulator.run(Gemm(CASES[name].spec), a, b, options=emulator.Options(progress=False)).d
    rows = np.flatnonzero((digests(patterns(d)) != RECORDED[name]).any(1))
    assert not len(rows), f"rows that differ: {rows.tolist()}"
