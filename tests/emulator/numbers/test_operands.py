# SPDX-License-Identifier: Apache-2.0
"""Operands that the compiled loops take apart: the same values, exponents and sums as plain NumPy has."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.numbers import split_operands, tensor_core, tensor_core_jit
from cutegemm.emulator.units.wgmma_operands import decode_elements

KINDS = sorted(split_operands.ITEM_BYTES)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}


def patterns(kind: str) -> np.ndarray:
    """Bytes of every pattern of a type; of tf32, of those with the upper 16 bits and some below."""
    bits = BITS[kind]
    if bits == 32:
        return (np.arange(1 << 16, dtype=np.uint32) << 16 | 0xBFFF).view(np.uint8)
    return np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8).view(np.uint8)


def narrow(values: np.ndarray, kind: str) -> np.ndarray:
    """Which values the compiled loop takes: zeros, and those with an exponent within NARROW of 0."""
    exponents = tensor_core.parts(values, kind)[1]
    return (exponents == tensor_core_jit.NO_EXPONENT) | (np.abs(exponents) <= tensor_core_jit.NARROW)


def taken_apart(raw: np.ndarray, kind: str, across: bool, chunks: np.ndarray):
    """`operands.split` of bytes."""
    memory = np.zeros(len(raw) + 16, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + len(raw)] = raw
    return split_operands.split(memory.ctypes.data + start, chunks, kind, across)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pattern(kind):
    """Values and exponents are NumPy's, whichever way the operand is laid; chunks may come in any order."""
    raw = patterns(kind)
    items = raw.reshape(-1, split_operands.ITEM_BYTES[kind])
    raw = np.ascontiguousarray(items[narrow(decode_elements(raw, kind), kind)]).ravel()
    raw = raw[: len(raw) // 64 * 64]
    rows = np.random.default_rng(1).permutation(len(raw) // 64)
    chunks = np.ascontiguousarray(4 * rows[:, None] + np.arange(4))
    want = decode_elements(raw.reshape(-1, 64)[rows], kind)
    for across in (False, True):
        values, exponents = taken_apart(raw, kind, across, chunks)
        assert np.array_equal(values.T if across else values, want)
        assert np.array_equal(exponents.T if across else exponents, tensor_core.parts(want, kind)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_narrow_is_refused(kind):
    """One infinity, NaN or far exponent among zeros, in any place."""
    item = split_operands.ITEM_BYTES[kind]
    items = patterns(kind).reshape(-1, item)
    far = items[~narrow(decode_elements(patterns(kind), kind), kind)]
    assert len(far) >= 2
    for one in far[:: max(len(far) // 50, 1)]:
        raw = np.zeros(64, np.uint8)
        raw[item * 3 : item * 4] = one
        assert taken_apart(raw, kind, False, np.arange(4)[None]) is None


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind, depth", [("f16", 16), ("bf16", 16), ("tf32", 8), ("e4m3", 32)])
def test_sums_of_narrow_operands(kind, depth):
    """Where operands are narrow the short loop gives the long one's bits: great, small and vanishing sums."""
    rng = np.random.default_rng(depth)
    quantum = 2.0 ** {"f16": 10, "bf16": 7, "tf32": 10, "e4m3": 3}[kind]
    most = 5 if kind == "e4m3" else 13 if kind == "f16" else tensor_core_jit.NARROW

    def operand(*shape: int) -> np.ndarray:
        mantissa = 1 + rng.integers(0, int(quantum), shape) / quantum
        out = mantissa * 2.0 ** rng.integers(-most, most + 1, shape) * rng.choice([-1, 0, 1], shape)
        return out.astype(np.float32)

    unit = tensor_core.Unit(kind, "f32", depth)
    a, b = operand(1, 32, 2 * depth), operand(1, 48, 2 * depth)
    a[:, :4] = 0  # nothing but zeros
    b[..., depth:] = -b[..., :depth]
    a[..., depth:] = a[..., :depth]  # the second step takes back what the first one added
    left, right = tensor_core.parts(a, kind), tensor_core.parts(b, kind)
    across = [np.ascontiguousarray(x.swapaxes(-1, -2)) for x in (b, right[1])]
    for c in (
        np.zeros((1, 32, 48), np.float32),
        operand(1, 32, 48),
        operand(1, 32, 48) * np.float32(2.0**70),
    ):
        want = tensor_core_jit.accumulate(left, right, c, depth, unit.fraction)
        got = tensor_core_jit.add((a, left[1]), across, c, depth, unit.fraction, True)
        assert want.tobytes() == got.tobytes()


def test_small_accumulators_are_left_to_the_long_loop():
    """An accumulator below every product's exponent, whose sum may be subnormal, is refused."""
    a, c = np.zeros((1, 1, 16), np.float32), np.full((1, 1, 8), 2.0**-110, np.float32)
    exponents = np.full((1, 1, 16), tensor_core_jit.NO_EXPONENT, np.int32)
    b = [np.zeros((1, 16, 8), np.float32), np.full((1, 16, 8), tensor_core_jit.NO_EXPONENT, np.int32)]
    assert tensor_core_jit.add((a, exponents), b, c, 16, 25, True) is None
    unit = tensor_core.Unit("bf16", "f32", 16)
    assert (tensor_core.accumulate(a, np.zeros((1, 8, 16), np.float32), c, unit) == c).all()
