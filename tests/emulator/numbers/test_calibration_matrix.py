# SPDX-License-Identifier: Apache-2.0
"""wgmma, mma.sync and wmma against D recorded on an H200, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import emulator_probes as probes
from benchmarks.emulator_record import SEED, digest
from cutegemm.emulator.numbers import tensor_core
from tests.support.emulator_fixtures import recorded, run_probe

RECORDED = recorded("matrix.npz")


@pytest.mark.parametrize("form", probes.FORMS.values(), ids=lambda form: form.name)
def test_products_are_the_hardwares(form):
    """Every element of D, for plain, cancelling, misaligned, subnormal, overflowing and special operands."""
    names, a, b, c = probes.problems(form, SEED)
    assert (digest(a, b, c) == RECORDED[form.name + "/inputs"]).all(), (
        "the probes' inputs have changed: record again"
    )
    d = run_probe(form.ptx, form.name, len(names), form.threads, [np.empty_like(c), a, b, c])
    wrong = {name: int((x != y).sum()) for name, x, y in zip(names, d, RECORDED[form.name], strict=True)}
    assert not any(wrong.values()), wrong


def test_the_recording_tells_fraction_bits_apart(monkeypatch):
    """One fraction bit more or less, and the recording is not met: the fixture pins the model down."""
    form = probes.FORMS["mma_m16n8k16_f32_bf16_bf16"]
    names, a, b, c = probes.problems(form, SEED)
    for bits in (24, 26):
        monkeypatch.setattr(tensor_core.Unit, "fraction", bits)
        d = run_probe(form.ptx, form.name, len(names), form.threads, [np.empty_like(c), a, b, c])
        assert (d != RECORDED[form.name]).any()


@pytest.mark.parametrize("kind, depth", [("bf16", 16), ("f16", 16), ("tf32", 8), ("e4m3", 32)])
def test_the_compiled_loop_follows_the_definition(kind, depth, monkeypatch):
    """The compiled loop and plain NumPy give the same bits over several steps of K, 8 and 16 columns wide."""
    rng = np.random.default_rng(depth)
    quantum = 2.0 ** (probes.MANTISSA[kind] + 1)
    values = lambda *s: (np.rint(rng.standard_normal(s) * quantum) / quantum).astype(np.float32)
    unit = tensor_core.Unit(kind, "f32", depth)
    for columns in (8, 48):
        a, b = values(3, 20, 2 * depth), values(3, columns, 2 * depth)
        c = rng.standard_normal((3, 20, columns)).astype(np.float32)
        fast = tensor_core.accumulate(a, b, c, unit)
        with monkeypatch.context() as patch:
            patch.setattr(tensor_core, "add", lambda *_: None)  # it refuses: the definition
            assert (tensor_core.accumulate(a, b, c, unit).view(np.uint32) == fast.view(np.uint32)).all()


def test_a_small_case_by_hand():
    """1 + 2**-25 - 2**-26: the last term falls below the 25 fraction bits, the sum is truncated to fp32's 23."""
    unit = tensor_core.Unit("f16", "f32", 4)
    a = np.array([[[1, 2.0**-12, -(2.0**-13), 0]]], np.float32)
    b = np.array([[[1, 2.0**-13, 2.0**-13, 5]]] * 8, np.float32).reshape(1, 8, 4)
    zero = np.zeros((1, 1, 8), np.float32)
    assert (tensor_core.accumulate(a, b, zero, unit) == 1.0).all()
    minus_one = np.full((1, 1, 8), -1.0, np.float32)
    assert (tensor_core.accumulate(a, b, minus_one, unit) == 2.0**-25).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("start, signs", [(np.inf, (-1, 0)), (3e38, (1, -1))])
def test_an_infinite_sum_stays_infinite(start, signs):
    """An infinite accumulator, or one that overflows in the first step, is not brought back by large products."""
    unit = tensor_core.Unit("bf16", "f32", 16)
    a = np.full((1, 1, 32), 2.0**60, np.float32)
    b = np.tile(np.repeat(np.float32(signs), 16) * np.float32(2.0**62), (1, 8, 1))
    d = tensor_core.accumulate(a, b, np.full((1, 1, 8), start, np.float32), unit)
    assert (d == np.inf).all()
