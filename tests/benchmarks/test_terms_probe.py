# SPDX-License-Identifier: Apache-2.0
"""Pairs of kernels for the terms of the cost model: each differs in its term alone, and is checked and timed."""

from __future__ import annotations

import dataclasses
import json

import pytest

from benchmarks import timing
from benchmarks.probes import terms
from benchmarks.probes.terms import Bench, Pair, Side
from cutegemm import Tile
from cutegemm.arch.records import DEFAULT, RECORDS
from cutegemm.compiling import kernel_cache
from cutegemm.config.spills import spills
from cutegemm.errors import GemmError
from tests.support.fake_gpu import ENVIRONMENT, FakeGpu

REGIME = timing.Regime(name="terms", preheat=0.0, rest=0.0, sample=1e-3, rounds=2)
NAMES = [x.name for x in terms.pairs(DEFAULT)]
SMALL = {"tile": Tile(64, 64, 64), "cluster": (1, 1)}
PAIR = Pair(
    "inputs", "it reads C", ("inputs",), Side(SMALL, (64, 72, 64)), Side(SMALL, (64, 72, 64), reads_c=True)
)


@pytest.mark.parametrize("device", RECORDS, ids=lambda x: x.name)
@pytest.mark.parametrize("place", range(len(NAMES)), ids=NAMES)
def test_a_pair_differs_in_its_term_alone(place, device):
    """Every named count differs, and with all others as in the first kernel the predicted difference is the same."""
    pair = terms.pairs(device)[place]
    first, second = (x.counts(device) for x in pair.sides)
    same = [x for x in pair.counts if getattr(first, x) == getattr(second, x)]
    before, after = pair.predicted(device)
    assert not same and after > 1.01 * before
    assert pair.alone(device) == pytest.approx(after - before, rel=0.1)


@pytest.mark.parametrize("device", RECORDS, ids=lambda x: x.name)
def test_kernels_have_what_the_pair_gives(device):
    """Each pair gives tile, cluster and splits of both kernels; neither spills, and names differ."""
    assert len(set(NAMES)) == len(NAMES) >= 10
    for x in (side for pair in terms.pairs(device) for side in pair.sides):
        made = x.plan(device)
        assert not made.swapped and not spills(made.config)
        assert made.config.tile == tuple(x.spec.tile) and made.config.cluster == x.spec.plane
        assert made.config.splits == (x.spec.split_k if isinstance(x.spec.split_k, int) else 1)


def test_a_copy_of_a_pair_with_another_difference_is_noticed():
    """Wave quantization in twice as many rows: more than its term changes."""
    pair = terms.pairs(DEFAULT)[0]
    m, n, k = pair.second.extents
    other = dataclasses.replace(pair, second=dataclasses.replace(pair.second, extents=(2 * m, n, 2 * k)))
    before, after = other.predicted(DEFAULT)
    assert other.alone(DEFAULT) < 0.7 * (after - before)


@pytest.fixture
def clock(monkeypatch):
    """The second kernel of a pair takes two milliseconds, the first takes one."""
    gpu, plain = FakeGpu(), terms.checked

    def costing(side, one):
        call, ms = plain(side, one), 1 + side.reads_c
        cost = gpu.costing(timing.Contender(str(ms), lambda x: None), ms * 1e-3)
        return lambda x: (cost.call(x), call(x))

    monkeypatch.setattr(terms, "checked", costing)
    monkeypatch.setattr(terms.inputs, "ROTATION_BYTES", 1)
    return Bench(DEFAULT, device=gpu, memory="cpu", regime=REGIME)


def test_both_kernels_are_timed_and_written(clock, tmp_path, capsys):
    """The difference that was measured stands beside the predicted one; what is refused has a reason."""
    refused = dataclasses.replace(PAIR, name="refused", second=Side({**SMALL, "stages": 99}, (64, 72, 64)))
    out = tmp_path / "terms.json"
    assert terms.measured([PAIR, refused], clock, ENVIRONMENT, out) == 1
    found = json.loads(out.read_text())
    (row,) = found["pairs"]
    assert row["measured_us"] == [1000, 2000] and found["environment"] == ENVIRONMENT
    assert row["predicted_us"] == [round(x / 1e3, 3) for x in PAIR.predicted(DEFAULT)]
    assert "stages" in found["failed"]["refused"] and row["kernels"][0]["size"] == [64, 72, 64]
    text = capsys.readouterr().out
    assert "measured +1000.00 us, predicted" in text and "refused: NOT TIMED" in text


def test_a_wrong_kernel_is_not_timed(monkeypatch, tmp_path):
    """D of the first rows is compared with torch's, C included."""
    monkeypatch.setattr(terms.inputs, "ROTATION_BYTES", 1)
    for side in PAIR.sides:
        one = side.sets("cpu")[0]
        terms.checked(side, one)
    monkeypatch.setattr(terms.Gemm, "run", lambda self, a, b, out, c=None: out.copy_(a @ b))
    terms.checked(PAIR.first, one={x: y for x, y in one.items() if x != "c"})
    with pytest.raises(RuntimeError, match="of the norm"):
        terms.checked(PAIR.second, one)


def test_kernels_are_compiled_without_a_gpu(monkeypatch, capsys):
    """All of them, each once; without a file nothing is measured."""
    found = []
    monkeypatch.setattr(kernel_cache, "ensure", found.extend)
    assert terms.main(["--compile-only"]) == 0
    plans = [x.plan(DEFAULT) for pair in terms.pairs(DEFAULT) for x in pair.sides]
    assert set(found) == {step.config for x in plans for step in x.steps} and len(found) == len(set(found))
    with pytest.raises(SystemExit):
        terms.main(["--commit", "abc"])
    assert "--out and --commit must be given" in capsys.readouterr().err


def test_fp8_operands_are_drawn_in_fp8():
    """Those of a pair of 8-bit kernels."""
    pair = next(x for x in terms.pairs(DEFAULT) if x.first.dtype == "fp8")
    small = dataclasses.replace(pair.first, extents=(128, 128, 256))
    one = small.sets("cpu")[0]
    assert one["a"].element_size() == 1 and one["b"].stride() == (1, 256)
    terms.checked(small, one)
    with pytest.raises(GemmError):
        terms.checked(Side({**small.fields, "stages": 99}, small.extents, "fp8"), one)
