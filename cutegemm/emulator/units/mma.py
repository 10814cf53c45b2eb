# SPDX-License-Identifier: Apache-2.0
"""Warp-level matrix instructions: ldmatrix, stmatrix, mma.sync, wmma.

Sums are the tensor cores' own (`tensor_core.py`). The layout of a wmma fragment is unspecified by PTX; here it is that
of mma.m16n8k16, as on sm_90, so that loads and stores cost what they cost there.

Source: PTX ISA 9.0, 9.7.15.3 (wmma), 9.7.15.5 (mma.sync and fragments), 9.7.15.5.15 (ldmatrix), .16 (stmatrix).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from cutegemm.emulator.numbers.tensor_core import Unit, accumulate
from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.clusters import WARP
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Touch
from cutegemm.emulator.state.memory import Fault, resolve
from cutegemm.emulator.units.access import load, locate, store
from cutegemm.emulator.units.warp_ops import vector
from cutegemm.emulator.units.wgmma_operands import decode_elements

Wmma: TypeAlias = tuple[str, str, str, str, str]  # fragment, layout, shape, type, state space
NUMPY = {"f32": np.float32, "f16": np.float16}


def _row_addresses(group: WarpSet, a: Value, count: int) -> Vector:
    """Byte offsets of the 8 rows of each matrix: (warps, matrix, row)."""
    a = vector(group, a).reshape(-1, WARP)
    return a[:, : 8 * count].reshape(-1, count, 8)


def _whole_warps(m: Mask, what: str) -> Mask:
    """The warps of which all lanes are active (None: all)."""
    if m is None:
        return None
    warps = np.asarray(m.reshape(-1, WARP).all(1))
    if warps.any() != m.any():
        raise Fault(f"{what} in divergent code")
    return warps


def ldmatrix(group: WarpSet, m: Mask, a: Value, count: int, trans: bool, generic: bool) -> list[Vector]:
    """ldmatrix.x1/x2/x4: lane t gets elements 2 * (t % 4) and the next of row t / 4 (of the columns when `trans`)."""
    warps = _whole_warps(m, "ldmatrix")
    rows = _row_addresses(group, a, count)
    chosen = rows if warps is None else rows[warps]
    flat = chosen.ravel()
    space, flat = resolve(flat) if generic else ("shared", flat)
    region, offset = locate(group, None, flat, 16, space)
    if region is None:
        raise Fault("ldmatrix across CTAs")
    if group.device.watch.listening:
        group.device.watch.access(group, Touch(warps, region, offset, 16, False, "matrix"))
    chunk = region.view(16)[(offset >> offset.dtype.type(4)).astype(np.int64)]
    tiles = np.ascontiguousarray(chunk).view(np.uint16).reshape(-1, count, 8, 8)
    if trans:
        tiles = tiles.transpose(0, 1, 3, 2)
    words = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1, count, WARP)
    if warps is not None:
        full = np.zeros((len(group.warps), count, WARP), np.uint32)
        full[warps] = words
        words = full
    return [np.ascontiguousarray(words[:, i]).reshape(-1) for i in range(count)]


def stmatrix(group: WarpSet, m: Mask, a: Value, values: Sequence[Value], trans: bool, generic: bool) -> None:
    """stmatrix.x1/x2/x4: the inverse of ldmatrix."""
    group.device.events += 1
    warps = _whole_warps(m, "stmatrix")
    count = len(values)
    rows = _row_addresses(group, a, count)
    words = np.stack([vector(group, v).reshape(-1, WARP) for v in values], 1)
    if warps is not None:
        rows, words = rows[warps], words[warps]
    flat = rows.ravel()
    space, flat = resolve(flat) if generic else ("shared", flat)
    region, offset = locate(group, None, flat, 16, space)
    if region is None:
        raise Fault("stmatrix across CTAs")
    if group.device.watch.listening:
        group.device.watch.access(group, Touch(warps, region, offset, 16, True, "matrix"))
    if trans:
        tiles = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
        words = np.ascontiguousarray(tiles).view(np.uint32)
    region.view(16)[(offset >> offset.dtype.type(4)).astype(np.int64)] = (
        np.ascontiguousarray(words).view("V16").ravel()
    )


def _fragment(group: WarpSet, registers: Sequence[Value], kind: str, halves: int) -> np.ndarray:
    """Registers of an A (halves 2) or B (halves 1) fragment as (warps, 8 * halves, K)."""
    warps, columns = len(group.warps), len(registers) // halves
    words = np.zeros((warps, halves, 8, columns, 4), np.uint32)
    for i, r in enumerate(registers):
        words[:, i % halves, :, i // halves] = vector(group, r).reshape(warps, 8, 4)
    raw = words.reshape(warps * halves * 8, columns * 4).view(np.uint8)
    return decode_elements(raw, kind).reshape(warps, 8 * halves, -1)


def _accumulators(group: WarpSet, registers: Sequence[Value], kind: str) -> np.ndarray:
    """Accumulator registers of n8 blocks side by side as (warps, 16, 8 * blocks), fp32 or fp16."""
    warps, blocks = len(group.warps), len(registers) // (4 if kind == "f32" else 2)
    words = np.stack([vector(group, x).reshape(warps, 8, 4) for x in registers], -1)
    if kind == "f32":  # warp, row, lane % 4, block, row half, element
        parts = words.view(np.float32).reshape(warps, 8, 4, blocks, 2, 2).transpose(0, 4, 1, 3, 2, 5)
    else:  # both elements in one word
        parts = words.reshape(warps, 8, 4, blocks, 2).transpose(0, 4, 1, 3, 2)
        parts = np.ascontiguousarray(parts).view(np.float16)
    return parts.reshape(warps, 16, 8 * blocks)


def _to_registers(group: WarpSet, matrix: np.ndarray) -> list[np.ndarray]:
    """The inverse of `_accumulators`."""
    warps, blocks = len(group.warps), matrix.shape[-1] // 8
    words = np.ascontiguousarray(matrix).view(np.uint32).reshape(warps, 2, 8, blocks, 4, -1)
    # Block, row half, element; warp, row, lane.
    parts = words.transpose(3, 1, 5, 0, 2, 4).reshape(-1, group.lanes)
    return list(np.ascontiguousarray(parts))


def mma_sync(
    group: WarpSet,
    shape: str,
    a_type: str,
    d_type: str,
    c_type: str,
    a: Sequence[Value],
    b: Sequence[Value],
    c: Sequence[Value],
) -> list[Vector]:
    """mma.sync.aligned.m16n8kK.row.col with fp32 or fp16 accumulators."""
    named = re.fullmatch(r"m16n8k(\d+)", shape)
    if named is None:
        raise Fault(f"mma.sync {shape} is not emulated")
    k = int(named[1])
    if len(a) * 8 != k * ITEM_BYTES[a_type] or {d_type, c_type} - {"f32", "f16"}:
        raise Fault(f"mma.sync {shape} of {a_type} into {d_type} is not emulated")
    left, right = _fragment(group, a, a_type, 2), _fragment(group, b, a_type, 1)  # (warps, 16 or 8, K)
    old = _accumulators(group, c, c_type).astype(NUMPY[d_type])
    return _to_registers(group, accumulate(left, right, old, Unit(a_type, d_type, k)))


def _wmma_check(shape: str) -> None:
    if shape != "m16n16k16":
        raise Fault(f"wmma shape {shape} is not emulated")


def _wmma_places(
    group: WarpSet, a: Value, stride: Value | None, contiguous: bool, item: int
) -> list[np.ndarray]:
    """Addresses of what each lane holds of a 16 x 16 tile whose rows (or columns, unless `contiguous`) lie in memory.

    Elements come in pairs along a row: pair i has row t / 4 + 8 * (i % 2), columns 8 * (i / 2) + 2 * (t % 4) and the
    next. One address per pair where it lies together, else one per element.
    """
    lane = group.lane.astype(np.int64) % WARP
    step = 16 if stride is None else stride.astype(np.int64) if stride.__class__ is ND else stride
    base = a.astype(np.int64) if a.__class__ is ND else a
    out = []
    for i in range(4):
        row, column = lane // 4 + 8 * (i % 2), 8 * (i // 2) + 2 * (lane % 4)
        if contiguous:
            out.append(base + (row * step + column) * item)
        else:
            out += [base + ((column + j) * step + row) * item for j in range(2)]
    return [x.astype(np.uint64) for x in out]


def _transposed(words: list[np.ndarray]) -> list[np.ndarray]:
    """The fragment of a 16 x 16 tile of 16-bit elements from that of its transpose: movmatrix on each quarter."""
    tiles = [np.ascontiguousarray(w).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1) for w in words]
    moved = [np.ascontiguousarray(t).view(np.uint32).reshape(-1) for t in tiles]
    return [moved[0], moved[2], moved[1], moved[3]]


def _wmma_rows(group: WarpSet, a: Value, stride: Value | None, contiguous: bool) -> np.ndarray:
    """Row addresses for ldmatrix.x4 of a 16 x 16 tile of 16-bit elements."""
    lane = group.lane.astype(np.int64) % WARP
    step = 16 if stride is None else stride.astype(np.int64) if stride.__class__ is ND else stride
    down, across = lane % 8 + 8 * (lane // 8 % 2), 8 * (lane // 16)
    if not contiguous:
        down, across = lane % 8 + 8 * (lane // 16), 8 * (lane // 8 % 2)
    base = a.astype(np.int64) if a.__class__ is ND else a
    return (base + (down * step + across) * 2).astype(np.uint64)


def wmma_load(group: WarpSet, m: Mask, a: Value, stride: Value | None, what: Wmma) -> list[Value]:
    """wmma.load.a/b/c.sync, in the accesses that sm_90 makes: ldmatrix from shared memory, else pairs or elements."""
    fragment, layout, shape, kind, space = what
    _wmma_check(shape)
    if space == "generic":
        space, a = resolve(a)
    contiguous = (layout == "row") != (fragment == "b")  # B is held as its transpose
    if fragment in ("a", "b"):
        words: Sequence[Value]
        if space == "shared":
            words = ldmatrix(group, m, _wmma_rows(group, a, stride, contiguous), 4, not contiguous, False)
        else:
            words = _load_pairs(group, m, _wmma_places(group, a, stride, True, 2), 2, space)
            words = words if contiguous else _transposed([vector(group, w) for w in words])
        # PTX gives fp16 fragments twice the registers they need.
        return [*words, *words] if kind == "f16" else list(words)
    item = 4 if kind == "f32" else 2
    return _load_pairs(group, m, _wmma_places(group, a, stride, contiguous, item), item, space)


def _load_pairs(group: WarpSet, m: Mask, places: list[np.ndarray], item: int, space: str) -> list[Value]:
    """Registers from pairs of elements (4 places) or single ones (8)."""
    together = len(places) == 4
    size, count = (4, 1) if together and item == 2 else (item, 2 if together else 1)
    parts = [x for place in places for x in load(group, m, place, size, count, space, "")]
    if size == 4:
        return parts
    wide = [vector(group, x).astype(np.uint32) for x in parts]
    return [low | high << np.uint32(16) for low, high in zip(wide[::2], wide[1::2], strict=True)]


def wmma_store(
    group: WarpSet, m: Mask, a: Value, stride: Value | None, what: Wmma, values: Sequence[Value]
) -> None:
    """wmma.store.d.sync, in the accesses that sm_90 makes."""
    _, layout, shape, kind, space = what
    _wmma_check(shape)
    if space == "generic":
        space, a = resolve(a)
    item = 4 if kind == "f32" else 2
    places = _wmma_places(group, a, stride, layout == "row", item)
    if item == 2 and layout != "row":
        values = [part for v in values for part in (v & 0xFFFF, v >> 16)]
    each = len(values) // len(places)
    for i, place in enumerate(places):
        store(
            group, m, place, tuple(values[each * i : each * (i + 1)]), 4 if layout == "row" else item, space
        )


def wmma_mma(
    group: WarpSet, shape: str, types: list[str], a: Sequence[Value], b: Sequence[Value], c: Sequence[Value]
) -> list[Vector]:
    """wmma.mma.sync: D = A * B + C."""
    _wmma_check(shape)
    if len(types) == 2:  # d, c: A and B are f16
        d_type, c_type, kind = types[0], types[1], "f16"
    else:
        d_type, kind, c_type = types[0], types[1], types[-1]
    left, right = (_fragment(group, x[:4], kind, 2) for x in (a, b))  # (warps, 16, K), B transposed
    old = _accumulators(group, c, c_type).astype(NUMPY[d_type])
    return _to_registers(group, accumulate(left, right, old, Unit(kind, d_type, 16)))
