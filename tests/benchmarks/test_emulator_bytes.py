# SPDX-License-Identifier: Apache-2.0
"""The launches on 8-bit operands that a GPU records: what is planned and compiled now runs on the emulator."""

import itertools
import json

import numpy as np
import pytest
import torch

from benchmarks import emulator_record
from benchmarks.emulator_bytes import CASES, KINDS, Product, moved, outputs
from cutegemm import Gemm
from cutegemm.ops.quantized.made import quantized, twins
from cutegemm.running.numerics.reference import TORCH_DTYPE

pytestmark = pytest.mark.sliced

# cases whose results have every type of D
STORED = (
    "int8", "int8_scaled", "int8_to_uint8", "int8_to_fp16", "int8_blocks", "fp8_unpromoted", "fp8_to_e4m3",
    "fp8_to_e5m2",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_cases_are_right(name):
    """D is near the reference's, integers are equal; values and scales are those of torch's operations."""
    case, inputs = CASES[name], CASES[name].inputs()
    found = case.results(emulated=True)
    if isinstance(case, Product):
        wanted = outputs(Gemm(case.spec).run(inputs.pop("a"), inputs.pop("b"), **inputs))
    else:
        given = torch.tensor(0.037) if case.given else None
        how = case.kind, case.dtype, given, case.exponents
        made = twins(inputs["x"], *how) if case.twin else (quantized(inputs["x"], *how),)
        wanted = [y for pair in made for y in pair]
        wanted = [y if y.dtype.itemsize == 1 else y.nan_to_num(-1.0, torch.inf) for y in wanted]
    for x, y in zip(found, wanted, strict=True):
        assert x.dtype == y.dtype
        if not x.dtype.is_floating_point or name.startswith("quantize"):
            assert np.array_equal(*(emulator_record.patterns(z.contiguous()) for z in (x, y)))
            continue
        most = 0.03 if x.dtype.itemsize == 1 else 0.005
        x, y = x.double(), y.double()
        kept = y.isfinite()
        assert torch.equal(x[~kept].nan_to_num(), y[~kept].nan_to_num())
        # fp32 and the tensor cores' sums may round to neighbours of 8 bits
        assert (x - y)[kept].norm() < most * y[kept].norm()


def test_cases_cover_the_table():
    """Every pair of types, type of D and of a quantized matrix, promotion, and pair of kinds of scales."""
    products = [x for x in CASES.values() if isinstance(x, Product)]
    made = [x for x in CASES.values() if not isinstance(x, Product)]
    for group in ((torch.float8_e4m3fn, torch.float8_e5m2), (torch.int8, torch.uint8)):
        assert {x.types for x in products} >= set(itertools.product(group, repeat=2))
    stored = {result.dtype for name in STORED for result in CASES[name].results(emulated=True)[:1]}
    assert stored == {*TORCH_DTYPE.values()}
    floats = [x for x in products if x.types[0].is_floating_point]
    assert {None, "auto", 32, 512} <= {x.spec.promote for x in floats}
    pairs = {(x.spec.scale_a, x.spec.scale_b) for x in floats}
    assert pairs >= {*itertools.product(KINDS.values(), repeat=2), ("auto", "auto")}
    assert {x.exponents for x in floats} == {True, False}
    for name in ("zero_point_a", "zero_point_b"):
        assert {getattr(x.spec, name) for x in products} == {"auto", "tensor", "row"}
    assert {x.kind for x in made} == set(KINDS.values())
    assert {x.dtype for x in made} == {torch.float8_e4m3fn, torch.float8_e5m2, torch.int8}
    assert {x.source for x in made} == {torch.float16, torch.bfloat16, torch.float32}


@pytest.mark.parametrize("name", ["int8_copied", "int8_transposed", "fp8_exponents", "quantize_transpose"])
def test_a_copy_has_the_same_strides_and_alignment(name):
    """Neither a GPU's allocator nor a copy decides how a kernel loads an operand."""
    for x in (x for name, x in CASES[name].inputs().items() if name in "abx"):
        y = moved(x, "cpu")
        assert y.stride() == x.stride() and y.data_ptr() % 16 == x.data_ptr() % 16 and y is not x
        assert np.array_equal(*(emulator_record.patterns(z) for z in (x, y)))


def on_cpu(monkeypatch):
    """Let what a GPU would run be run by the emulator, and its `quantize` by torch's operations."""
    run = Gemm.run
    monkeypatch.setattr(emulator_record.eight, "moved", lambda x: moved(x, "cpu"))
    monkeypatch.setattr(torch.Tensor, "cuda", lambda x: x)
    monkeypatch.setattr(Gemm, "run", lambda *args, **named: run(*args, **named | {"backend": "emulator"}))


@pytest.mark.parametrize(
    "name",
    [
        "int8_scaled_zero_points", "int8_transposed", "fp8_exponents", "fp8_to_exponents", "quantize_exponents",
        "quantize_given", "quantize_twins", "quantize_twin_rows", "quantize_tensor_int8",
    ],
)  # fmt: skip
def test_a_gpu_is_asked_for_the_same(name, monkeypatch):
    """The calls that record give what the calls that check give."""
    wanted = CASES[name].results(emulated=True)
    on_cpu(monkeypatch)
    for x, y in zip(CASES[name].results(emulated=False), wanted, strict=True):
        assert x.dtype == y.dtype and np.array_equal(*(emulator_record.patterns(z) for z in (x, y)))


def test_a_recording_has_every_result(monkeypatch):
    """Digests of each row of each result and of the inputs, as the calibration test reads them."""
    few = {name: CASES[name] for name in ("int8", "quantize_tensor")}
    monkeypatch.setattr(emulator_record.eight, "CASES", few)
    on_cpu(monkeypatch)
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


def test_the_command_writes_a_file_and_its_environment(monkeypatch, tmp_path):
    """Into a folder that it makes; the environments of other files stay."""
    out = tmp_path / "fixtures"
    monkeypatch.setattr(emulator_record.eight, "CASES", {"uint8": CASES["uint8"]})
    on_cpu(monkeypatch)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, **named: zeros(*args, **named | {"device": "cpu"}))
    monkeypatch.setattr(emulator_record.environment, "sensors", lambda: None)
    monkeypatch.setattr(emulator_record.environment, "record", lambda commit, _: {"commit": commit})
    monkeypatch.setattr(
        "sys.argv", ["emulator_record", "--only", "bytes", "--out", str(out), "--commit", "abc"]
    )
    out.mkdir()
    (out / "environment.json").write_text('{"gemm.npz": {"commit": "old"}}')
    emulator_record.main()
    with np.load(out / "bytes.npz") as found:
        assert set(found) == {"uint8/0", "uint8/inputs"}
    assert json.loads((out / "environment.json").read_text()) == {
        "gemm.npz": {"commit": "old"},
        "bytes.npz": {"commit": "abc"},
    }
