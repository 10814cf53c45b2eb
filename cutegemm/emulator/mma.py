# SPDX-License-Identifier: Apache-2.0
"""Warp-level matrix instructions: ldmatrix, stmatrix, mma.sync, wmma.

Sums are the tensor cores' own (`tensor_core.py`). The layout of a wmma fragment is unspecified by PTX; here element
j of lane t is element t * per_lane + j of the row-major tile.

Source: PTX ISA 9.0, 9.7.15.3 (wmma), 9.7.15.5 (mma.sync and fragments), 9.7.15.5.15 (ldmatrix), .16 (stmatrix).
"""

from __future__ import annotations

import re

import numpy as np

from cutegemm.emulator.memory import Fault, load, locate, resolve, store
from cutegemm.emulator.tensor_core import Unit, accumulate
from cutegemm.emulator.values import ND
from cutegemm.emulator.wgmma import ITEM_BYTES, decode_elements

WARP = 32
NUMPY = {"f32": np.float32, "f16": np.float16}


def _vector(group, x):
    return x if x.__class__ is ND else np.full(group.lanes, x, np.uint32)


def _row_addresses(group, a, count):
    """Byte offsets of the 8 rows of each matrix: (warps, matrix, row)."""
    a = _vector(group, a).reshape(-1, WARP)
    return a[:, : 8 * count].reshape(-1, count, 8)


def ldmatrix(group, m, a, count, trans, generic):
    """ldmatrix.x1/x2/x4: lane t gets elements 2 * (t % 4) and the next of row t / 4 (of the columns when `trans`)."""
    warps = None if m is None else m.reshape(-1, WARP).all(1)
    if warps is not None and warps.any() != m.any():
        raise Fault("ldmatrix in divergent code")
    rows = _row_addresses(group, a, count)
    chosen = rows if warps is None else rows[warps]
    flat = chosen.ravel()
    space, flat = resolve(flat) if generic else ("shared", flat)
    region, offset = locate(group, None, flat, 16, space)
    if region is None:
        raise Fault("ldmatrix across CTAs")
    if group.device.observers:
        group.device.observe(group, None, region, offset, 16, False, "shared")
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


def stmatrix(group, m, a, values, trans, generic) -> None:
    """stmatrix.x1/x2/x4: the inverse of ldmatrix."""
    group.device.events += 1
    warps = None if m is None else m.reshape(-1, WARP).all(1)
    if warps is not None and warps.any() != m.any():
        raise Fault("stmatrix in divergent code")
    count = len(values)
    rows = _row_addresses(group, a, count)
    words = np.stack([_vector(group, v).reshape(-1, WARP) for v in values], 1)
    if warps is not None:
        rows, words = rows[warps], words[warps]
    flat = rows.ravel()
    space, flat = resolve(flat) if generic else ("shared", flat)
    region, offset = locate(group, None, flat, 16, space)
    if region is None:
        raise Fault("stmatrix across CTAs")
    if group.device.observers:
        group.device.observe(group, None, region, offset, 16, True, "shared")
    if trans:
        tiles = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
        words = np.ascontiguousarray(tiles).view(np.uint32)
    region.view(16)[(offset >> offset.dtype.type(4)).astype(np.int64)] = (
        np.ascontiguousarray(words).view("V16").ravel()
    )


def _fragment(group, registers, kind: str, halves: int) -> np.ndarray:
    """Registers of an A (halves 2) or B (halves 1) fragment as (warps, 8 * halves, K)."""
    warps, columns = len(group.warps), len(registers) // halves
    words = np.zeros((warps, halves, 8, columns, 4), np.uint32)
    for i, r in enumerate(registers):
        words[:, i % halves, :, i // halves] = _vector(group, r).reshape(warps, 8, 4)
    raw = words.reshape(warps * halves * 8, columns * 4).view(np.uint8)
    return decode_elements(raw, kind).reshape(warps, 8 * halves, -1)


def mma_sync(group, shape, a_type, d_type, c_type, a, b, c):
    """mma.sync.aligned.m16n8kK.row.col with fp32 or fp16 accumulators."""
    k = int(re.fullmatch(r"m16n8k(\d+)", shape)[1])
    if len(a) * 8 != k * ITEM_BYTES[a_type] or {d_type, c_type} - {"f32", "f16"}:
        raise Fault(f"mma.sync {shape} of {a_type} into {d_type} is not emulated")
    warps = len(group.warps)
    left, right = _fragment(group, a, a_type, 2), _fragment(group, b, a_type, 1)  # (warps, 16 or 8, K)
    if c_type == "f32":
        old = np.stack([_vector(group, x).view(np.float32).reshape(warps, 8, 4) for x in c], -1)
        old = old.reshape(warps, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(warps, 16, 8)
    else:
        words = np.stack([_vector(group, x).reshape(warps, 8, 4) for x in c], 1)
        old = words.view(np.float16).reshape(warps, 16, 8)
    out = accumulate(left, right, old.astype(NUMPY[d_type]), Unit(a_type, d_type, k))
    if d_type == "f32":
        parts = out.reshape(warps, 2, 8, 4, 2)
        return [
            np.ascontiguousarray(parts[:, i >> 1, :, :, i & 1]).reshape(-1).view(np.uint32) for i in range(4)
        ]
    halves = np.ascontiguousarray(out).view(np.uint32).reshape(warps, 2, WARP)
    return [np.ascontiguousarray(halves[:, i]).reshape(-1) for i in range(2)]


_TILES = {
    "a": lambda m, n, k: (m, k),
    "b": lambda m, n, k: (k, n),
    "c": lambda m, n, k: (m, n),
    "d": lambda m, n, k: (m, n),
}
_REGISTERS = {("f16", "a"): 8, ("f16", "b"): 8, ("bf16", "a"): 4, ("bf16", "b"): 4, ("f32", "c"): 8, ("f32", "d"): 8,
              ("f16", "c"): 4, ("f16", "d"): 4}  # fmt: skip


def _wmma_shape(shape: str) -> tuple[int, int, int]:
    m, n, k = (int(x) for x in re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape).groups())
    if (m, n, k) != (16, 16, 16):
        raise Fault(f"wmma shape {shape} is not emulated")
    return m, n, k


def _wmma_addresses(group, a, stride, fragment, layout, shape, kind):
    """Byte addresses of the elements each lane holds: (elements, lanes)."""
    rows, columns = _TILES[fragment](*_wmma_shape(shape))
    item = 4 if kind == "f32" else 2
    per_lane = _REGISTERS[kind, fragment] * 4 // item
    lane = group.lane.astype(np.int64)
    e = (lane * per_lane + np.arange(per_lane)[:, None]) % (rows * columns)
    r, c = e // columns, e % columns
    step = stride if stride is not None else (columns if layout == "row" else rows)
    step = step.astype(np.int64) if step.__class__ is ND else step
    offset = (r * step + c if layout == "row" else c * step + r) * item
    base = a if a.__class__ is ND else np.full(group.lanes, a, np.uint64)
    return base.astype(np.uint64) + offset.astype(np.uint64), item, per_lane


def wmma_load(group, m, a, stride, fragment, layout, shape, kind, space):
    """wmma.load.a/b/c.sync."""
    addresses, item, per_lane = _wmma_addresses(group, a, stride, fragment, layout, shape, kind)
    elements = [load(group, m, addresses[j], item, 1, space, False)[0] for j in range(per_lane)]
    if item == 4:
        return elements
    e = [_vector(group, x).astype(np.uint32) for x in elements]
    return [e[2 * i] | e[2 * i + 1] << np.uint32(16) for i in range(per_lane // 2)]


def wmma_store(group, m, a, stride, fragment, layout, shape, kind, space, values) -> None:
    """wmma.store.d.sync."""
    addresses, item, per_lane = _wmma_addresses(group, a, stride, fragment, layout, shape, kind)
    for j in range(per_lane):
        v = values[j] if item == 4 else values[j // 2] >> 16 * (j % 2)
        store(group, m, addresses[j], (v if item == 4 else v & 0xFFFF,), item, space)


def _tile(group, registers, kind: str, fragment: str) -> np.ndarray:
    """A wmma fragment as (warps, rows, columns) fp32."""
    rows, columns = _TILES[fragment](16, 16, 16)
    words = np.stack([_vector(group, r) for r in registers], 1).reshape(len(group.warps), -1)
    flat = words.view(np.float32) if kind == "f32" else decode_elements(words.view(np.uint8), kind)
    return flat[:, : rows * columns].reshape(-1, rows, columns)


def wmma_mma(group, shape, types, a, b, c):
    """wmma.mma.sync: D = A * B + C on tiles held in row-major order whatever the memory layout was."""
    _wmma_shape(shape)
    if len(types) == 2:  # d, c: A and B are f16
        d_type, c_type, kind = types[0], types[1], "f16"
    else:
        d_type, kind, c_type = types[0], types[1], types[-1]
    columns = _tile(group, b, kind, "b").swapaxes(-1, -2)
    old = _tile(group, c, c_type, "c").astype(NUMPY[d_type])
    out = np.ascontiguousarray(accumulate(_tile(group, a, kind, "a"), columns, old, Unit(kind, d_type, 16)))
    words = out.reshape(len(group.warps), -1).view(np.uint32).reshape(group.lanes, -1)
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])]
