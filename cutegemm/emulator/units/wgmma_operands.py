# SPDX-License-Identifier: Apache-2.0
"""Operands of wgmma: the chunks of shared memory of a matrix descriptor, and values there or in registers.

Source: PTX ISA 9.0, 9.7.16.5.1 (shared memory layouts), 9.7.16.5.1.2.2 (matrix descriptor).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from cutegemm.emulator.numbers.rounding import fp8_values
from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES, Split, split
from cutegemm.emulator.numbers.types import Chunks, Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.clusters import CTA
from cutegemm.emulator.state.memory import Fault
from cutegemm.emulator.state.tensors import SWIZZLE_BYTES, swizzled

# n, k, types of D, A and B, signs of A and B, whether A and B are MN-major. The type of D is "s32.satfinite" if integer
# sums saturate.
Form: TypeAlias = tuple[int, int, str, str, str, tuple[int, int], tuple[bool, bool]]
_MODES = (0, 3, 2, 1)  # field of the descriptor -> swizzle mode (`TensorMap.swizzle`)


def swizzle_mode(descriptor: int) -> int:
    """The swizzle of a descriptor, in the numbers of tensor maps (`TensorMap.swizzle`)."""
    return _MODES[descriptor >> 62]


@functools.lru_cache(8192)
def operand_chunks(descriptor: int, extent: int, k_bytes: int, mn_major: bool, item: int) -> np.ndarray:
    """16-byte chunk numbers of an operand of `extent` rows (M or N) and `k_bytes` / `item` columns.

    K-major: [extent, chunks along K]. MN-major: [K, chunks along M or N].
    The canonical layouts in units of T = 16 / item elements, with LBO and SBO from the descriptor:
    K-major ((8, m), (T, 2k)) : ((pitch, SBO), (1, T or LBO without swizzle)); MN-major ((T, pitch / 16, m), (8, k)) :
    ((1, T, LBO), (pitch, SBO)), and without swizzle ((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO)).
    """
    start = (descriptor & 0x3FFF) << 4
    leading, stride = (descriptor >> 16 & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4
    if descriptor >> 49 & 7:
        raise Fault(f"wgmma descriptor {descriptor:#x}: a matrix base offset is not emulated")
    mode = swizzle_mode(descriptor)
    pitch = SWIZZLE_BYTES[mode] or 16  # bytes between rows
    if not mn_major:
        row = np.arange(extent)
        down = row % 8 * pitch + row // 8 * stride
        chunk = np.arange(k_bytes // 16)
        across = chunk * (leading if mode == 0 else 16)
    else:
        per_atom = pitch // 16  # chunks of M or N in a row
        k = np.arange(k_bytes // item)
        chunk = np.arange(extent * item // 16)
        if mode == 0:
            down = k % 8 * 16 + k // 8 * leading
            across = chunk * stride
        else:
            down = k % 8 * pitch + k // 8 * stride
            across = chunk % per_atom * 16 + chunk // per_atom * leading
    return swizzled(start + down[:, None] + across[None], mode) >> 4


@functools.lru_cache(4096)
def _chunks(
    descriptors: tuple[int, ...], extent: int, k_bytes: int, mn_major: bool, item: int
) -> tuple[Chunks, int]:
    """Chunks of consecutive operands, joined along K, and the greatest chunk number."""
    each = [operand_chunks(d, extent, k_bytes, mn_major, item) for d in descriptors]
    chunks = np.ascontiguousarray(np.concatenate(each, 0 if mn_major else 1), np.int64)
    return chunks, int(chunks.max())


def check_inside(
    cta: CTA, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str
) -> None:
    """Refuse an operand that leaves shared memory."""
    _, last = _chunks(descriptors, extent, k * ITEM_BYTES[kind], mn_major, ITEM_BYTES[kind])
    if last < len(cta.shared.data) // 16:
        return
    first, end = (descriptors[0] & 0x3FFF) << 4, 16 * last + 16
    raise Fault(
        f"wgmma operand of {extent} rows (descriptor {descriptors[0]:#x}) leaves shared memory: it begins at "
        f"shared offset {first:#x}{cta.shared.part(first)} and ends at {end:#x}, of {cta.shared.size:#x}"
    )


def decode_elements(raw: np.ndarray, kind: str) -> np.ndarray:
    """fp32 values of bytes of an operand type; the bytes are contiguous in the last axis."""
    if kind == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    if kind == "f16":
        return raw.view(np.float16).astype(np.float32)
    if kind == "tf32":
        return (raw.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if kind in ("e4m3", "e5m2"):
        return np.asarray(fp8_values(kind)[raw])
    return raw.view(np.int8 if kind == "s8" else np.uint8).astype(np.float32)


def fetch(
    cta: CTA, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str
) -> np.ndarray:
    """An operand in shared memory as an fp32 matrix of `extent` rows."""
    chunks, _ = _chunks(descriptors, extent, k * ITEM_BYTES[kind], mn_major, ITEM_BYTES[kind])
    check_inside(cta, descriptors, extent, k, mn_major, kind)
    values = decode_elements(cta.shared.take(chunks), kind)
    return values.T if mn_major else values


def fetch_split(
    cta: CTA, descriptors: tuple[int, ...], extent: int, k: int, mn_major: bool, kind: str, across: bool
) -> Split | None:
    """An operand in shared memory as significands and exponents (`split`); None if it is not finite."""
    chunks, last = _chunks(descriptors, extent, k * ITEM_BYTES[kind], mn_major, ITEM_BYTES[kind])
    return split(cta.shared.at, chunks, kind, across) if last < len(cta.shared.data) // 16 else None


def fragment(registers: Sequence[Value], warps: int, kind: str, halves: int = 2) -> np.ndarray:
    """A fragment in registers of some warps as a matrix with 8 * `halves` rows per warp: 16 for A, 8 for B.

    Register i of lane t holds row t / 4 + 8 * (i % halves), and 4 bytes from byte 4 * (t % 4) + 16 * (i / halves) on.
    """
    words = np.zeros((warps, halves, 8, len(registers) // halves, 4), np.uint32)
    for i, value in enumerate(registers):
        words[:, i % halves, :, i // halves] = value.reshape(warps, 8, 4) if value.__class__ is ND else value
    return decode_elements(words.view(np.uint8).reshape(8 * halves * warps, -1), kind)
