# SPDX-License-Identifier: Apache-2.0
"""Operands that the compiled loop takes apart: the same significands and exponents as plain NumPy has."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.numbers import tensor_core, tensor_core_jit
from cutegemm.emulator.units.wgmma_operands import decode_elements

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8}


def patterns(kind: str) -> np.ndarray:
    """Bytes of every pattern of a type; of tf32, of those with the upper 16 bits and some below."""
    bits = BITS[kind]
    if bits == 32:
        return (np.arange(1 << 16, dtype=np.uint32) << 16 | 0xBFFF).view(np.uint8)
    return np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8).view(np.uint8)


def split(raw: np.ndarray, kind: str, across: bool, chunks: np.ndarray):
    """`tensor_core_jit.split` of bytes."""
    memory = np.zeros(len(raw) + 16, np.uint8)
    start = -memory.ctypes.data % 16
    memory[start : start + len(raw)] = raw
    return tensor_core_jit.split(memory.ctypes.data + start, chunks, kind, across)


@pytest.mark.parametrize("kind", BITS)
def test_every_finite_pattern(kind):
    """Significands and exponents are NumPy's, also transposed; chunks may come in any order."""
    raw = patterns(kind)
    items = raw.reshape(-1, BITS[kind] // 8)
    raw = np.ascontiguousarray(items[np.isfinite(decode_elements(raw, kind))]).ravel()
    raw = raw[: len(raw) // 64 * 64]
    rows = np.random.default_rng(1).permutation(len(raw) // 64)
    chunks = np.ascontiguousarray(4 * rows[:, None] + np.arange(4))
    want = tensor_core.split(decode_elements(raw.reshape(-1, 64)[rows], kind), kind)
    for across in (False, True):
        made = split(raw, kind, across, chunks)
        for x, y in zip(made, want, strict=True):
            assert np.array_equal(x.T if across else x, y)


@pytest.mark.parametrize("kind", BITS)
def test_infinities_and_nan_are_refused(kind):
    """One infinity or NaN among zeros, in any place."""
    item = BITS[kind] // 8
    items = patterns(kind).reshape(-1, item)
    special = items[~np.isfinite(decode_elements(patterns(kind), kind))]
    assert len(special) >= 2
    for one in special[:: max(len(special) // 50, 1)]:
        raw = np.zeros(64, np.uint8)
        raw[item * 3 : item * 4] = one
        assert split(raw, kind, False, np.arange(4)[None]) is None
