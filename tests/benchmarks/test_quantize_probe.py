# SPDX-License-Identifier: Apache-2.0
"""The probe of quantization: every kind is checked, timed beside a copy and written."""

import argparse

import pytest
import torch

from benchmarks import probe_tables, results, timing
from benchmarks.probes import quantize
from tests.support.fake_gpu import FakeGpu

REGIME = timing.Regime(name="quantize", preheat=0.0, rest=0.0, sample=1e-3, rounds=2)


def bench():
    """A bench on the CPU."""
    return quantize.Bench(None, regime=REGIME, device=FakeGpu(), memory="cpu")


@pytest.mark.parametrize("work", list(quantize.works([(256, 384)])), ids=str)
def test_every_kind_is_timed_beside_a_copy(work, monkeypatch):
    """The fake clock gives both the same time, so the rates are those of the bytes."""
    monkeypatch.setattr(
        quantize.timing,
        "measure",
        lambda contenders, *_, **__: {
            x.name: results.Measurement(us=2.0, us_min=2.0, us_max=2.0, rounds=2, samples=(2.0, 2.0))
            for x in contenders
        },
    )
    rows, failures = bench().measure(work)
    assert not failures and [x["contender"] for x in rows] == [quantize.OURS, quantize.COPY]
    for row, key in zip(rows, bench().keys(work), strict=True):
        assert tuple(row) == results.QUANTIZE_FIELDS and results.key(row) == results.key(key)
    ours, copy = rows
    outputs = 2 if work.transposed else 1
    reads = 2 if str(work) in ("tensor", "tensor and transposed", "row and transposed") else 1
    least = (2 * reads + outputs) / 4
    assert copy["of_copy"] == 1 and least <= ours["of_copy"] < least * 1.05


@pytest.mark.parametrize("name", ["values", "scale"])
def test_a_wrong_result_is_not_timed(name, monkeypatch):
    """One element of either output that differs from the CPU's."""
    plain, calls = quantize.cutegemm.quantize, []

    def wrong(x, *args, **options):
        found = plain(x, *args, **options)
        calls.append(x)
        if len(calls) == 1:  # the second call is the CPU's
            getattr(found, name).view(torch.uint8).view(-1)[7] ^= 1
        return found

    monkeypatch.setattr(quantize.cutegemm, "quantize", wrong)
    rows, failures = bench().measure(quantize.Work(64, 256, "row", False))
    assert not rows and failures == [("cutegemm", "the values or scales differ from the CPU's")]


def test_a_large_input_is_compared_in_part(monkeypatch):
    """Where every output depends on all rows: a call on the first rows, which is not taken for right unseen."""
    plain = quantize.cutegemm.quantize

    def wrong(x, *args, **options):
        found = plain(x, *args, **options)
        if x.data_ptr() == first[0].data_ptr():
            found.scale.mul_(2)
        return found

    monkeypatch.setattr(quantize, "WHOLE", 64)
    monkeypatch.setattr(quantize, "CHECKED", 8)
    first = [torch.randn(16, 256).bfloat16()]
    work = quantize.Work(16, 256, "tensor", False)
    assert quantize._right(work, first[0], work(first[0]))
    made = work(first[0])
    monkeypatch.setattr(quantize.cutegemm, "quantize", wrong)
    monkeypatch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)
    assert not quantize._right(work, first[0], made)


def test_shapes_are_parsed_or_refused():
    """M x K, each a number."""
    assert quantize.shapes_of("8192x4096,64x512") == [(8192, 4096), (64, 512)]
    with pytest.raises(argparse.ArgumentTypeError, match="8192: must be M x K"):
        quantize.shapes_of("8192")


def test_the_table_has_a_line_a_kind_and_a_column_a_shape():
    """Missing cells stay empty."""
    fixed = {"contender": "cutegemm", "us": 32.14, "of_copy": 0.786}
    rows = [
        fixed | {"what": "row", "m": 64, "k": 128},
        fixed | {"what": "1 x 128", "m": 64, "k": 256},
        fixed | {"what": "row", "m": 64, "k": 128, "contender": "copy", "us": 1.0},
    ]
    head, lines = probe_tables.quantize_lines(rows)
    assert [x.partition(":")[0] for x in head] == ["scales", "64 × 128", "64 × 256"]
    assert lines == [["row", "32.1, **0.79**", ""], ["1 × 128", "", "32.1, **0.79**"]]
