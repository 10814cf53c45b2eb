# SPDX-License-Identifier: Apache-2.0
"""The launches on 8-bit operands that a GPU records: what is planned and compiled now runs on the emulator."""

import numpy as np
import pytest
import torch

from benchmarks import emulator_record
from benchmarks.emulator_bytes import CASES, Product
from cutegemm import Gemm
from cutegemm.ops.quantized.quantize import quantized

pytestmark = pytest.mark.sliced


@pytest.mark.parametrize("name", CASES)
def test_cases_are_right(name):
    """D is near the reference's, integers are equal; values and scales are those of torch's operations."""
    case, inputs = CASES[name], CASES[name].inputs()
    found = case.results(emulated=True)
    if isinstance(case, Product):
        wanted = (Gemm(case.spec).run(inputs.pop("a"), inputs.pop("b"), **inputs),)
    else:
        values, scale = quantized(inputs["x"], case.kind, case.dtype, None, case.exponents)
        wanted = (values, scale if case.exponents else scale.nan_to_num(-1.0, torch.inf))
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype
        if x.dtype.itemsize == 1 or not x.dtype.is_floating_point or name.startswith("quantize"):
            assert np.array_equal(*(emulator_record.patterns(z.contiguous()) for z in (x, y)))
            continue
        x, y = x.double(), y.double()
        kept = y.isfinite()
        assert torch.equal(x[~kept].nan_to_num(), y[~kept].nan_to_num())
        assert (x - y)[kept].norm() < 0.005 * y[kept].norm()


def test_a_recording_has_every_result(monkeypatch):
    """Digests of each row of each result and of the inputs, as the calibration test reads them."""
    few = {name: CASES[name] for name in ("int8", "quantize_tensor")}
    monkeypatch.setattr(emulator_record.eight, "CASES", few)
    for kind in (type(x) for x in few.values()):
        on_emulator = kind.results
        monkeypatch.setattr(kind, "results", lambda self, emulated, run=on_emulator: run(self, True))
    made = emulator_record.bytes_results()
    assert set(made) == {
        "int8/0",
        "int8/inputs",
        "quantize_tensor/0",
        "quantize_tensor/1",
        "quantize_tensor/inputs",
    }
    assert made["int8/0"].shape == (70, 8) and made["quantize_tensor/1"].shape == (1, 8)
    assert (
        made["int8/0"] == emulator_record.digests(emulator_record.patterns(few["int8"].results(True)[0]))
    ).all()
