# SPDX-License-Identifier: Apache-2.0
"""Warp-level matrix instructions: ldmatrix, stmatrix, movmatrix, mma.sync, wmma.

`tensor_core.py` computes the sums. The PTX ISA does not specify the layout of wmma fragments; the emulator uses that of
mma.m16n8k16, as sm_90 does, so loads and stores have the same cost.

Source: PTX ISA 9.0, 9.7.15.3 (wmma), 9.7.15.5 (mma.sync and fragments), 9.7.15.5.15 (ldmatrix), .16 (stmatrix).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers.tensor_core import Unit, accumulate, accumulate_fp8, accumulate_integers
from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.numbers.types import Mask, Value, Vector
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.state.accumulators import Accumulators
from cutegemm.emulator.state.geometry import WARP
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Touch
from cutegemm.emulator.state.memory import Fault, MemoryRegion, resolve
from cutegemm.emulator.units.access import load, locate, store
from cutegemm.emulator.units.warp_ops import vector
from cutegemm.emulator.units.wgmma_operands import fragment

Wmma: TypeAlias = tuple[str, str, str, str, str]  # fragment, layout, shape, type, state space
NUMPY = {"f32": np.float32, "f16": np.float16}


def _matrices(
    group: WarpSet, m: Mask, a: Value, count: int, generic: bool, write: bool
) -> tuple[MemoryRegion, Vector, Mask]:
    """Region and chunks of the matrices' rows for each active warp, and the active warps (None: all)."""
    name, warps = "stmatrix" if write else "ldmatrix", None
    rows = vector(group, a).reshape(-1, WARP)[:, : 8 * count]
    if m is not None:
        warps = np.asarray(m.reshape(-1, WARP).all(1))
        if warps.any() != m.any():
            raise Fault(f"{name} in divergent code")
        rows = rows[warps]
    flat = rows.ravel()
    space, flat = resolve(flat) if generic else ("shared", flat)
    region, offset = locate(group, None, flat, 16, space)
    if region is None:
        raise Fault(f"{name} from several CTAs")
    if group.device.watch.hears("access"):
        group.device.watch.access(group, Touch(warps, region, offset, 16, write, "matrix"))
    return region, (offset >> offset.dtype.type(4)).astype(np.int64), warps


def ldmatrix(group: WarpSet, m: Mask, a: Value, count: int, trans: bool, generic: bool) -> list[Vector]:
    """ldmatrix.x1/x2/x4: lane t gets two elements from 2 * (t % 4) on of row t / 4 (of the column if `trans`)."""
    region, chunks, warps = _matrices(group, m, a, count, generic, False)
    tiles = region.take(chunks).view(np.uint16).reshape(-1, count, 8, 8)
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
    region, chunks, warps = _matrices(group, m, a, len(values), generic, True)
    words = np.stack([vector(group, v).reshape(-1, WARP) for v in values], 1)
    words = words if warps is None else np.ascontiguousarray(words[warps])
    if trans:
        words = np.ascontiguousarray(words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1))
    region.view(16)[chunks] = words.view("V16").ravel()


def movmatrix(group: WarpSet, a: Value) -> Vector:
    """movmatrix.trans: the transpose of an 8x8 matrix of 16-bit elements."""
    return _transposed_tiles(vector(group, a))


def _transposed_tiles(words: Vector) -> Vector:
    tiles = words.view(np.uint16).reshape(-1, 8, 8).transpose(0, 2, 1)
    return np.ascontiguousarray(tiles).view(np.uint32).reshape(-1)


def _accumulators(group: WarpSet, registers: Sequence[Value], kind: str, d_type: str) -> np.ndarray:
    """Accumulator registers as (warps, 16, columns), in D's type."""
    accumulators = Accumulators.of(registers, len(group.warps), kind == "f16")
    return accumulators.matrix.reshape(len(group.warps), 16, -1).astype(NUMPY[d_type])


def _to_registers(matrix: np.ndarray) -> list[Vector]:
    """Registers of D, which is (warps, 16, columns)."""
    return Accumulators(np.ascontiguousarray(matrix).reshape(-1, matrix.shape[-1])).registers()


def mma_sync(
    group: WarpSet,
    types: tuple[str, str, str, str],
    saturates: bool,
    a: Sequence[Value],
    b: Sequence[Value],
    c: Sequence[Value],
) -> list[Vector]:
    """mma.sync.aligned.m16n8kK.row.col; `types` are those of D, A, B and C."""
    d_type, a_type, b_type, c_type = types
    k, warps = len(a) * 8 // ITEM_BYTES[a_type], len(group.warps)
    left = fragment(a, warps, a_type).reshape(warps, 16, k)
    right = fragment(b, warps, b_type, 1).reshape(warps, 8, k)
    if d_type == "s32":
        start = Accumulators.of(c, warps, False).matrix.view(np.int32).reshape(warps, 16, -1)
        return _to_registers(accumulate_integers(left, right, start, k, saturates).view(np.float32))
    old = _accumulators(group, c, c_type, d_type)
    if a_type in ("e4m3", "e5m2"):
        return _to_registers(accumulate_fp8(left, right, old, d_type))
    return _to_registers(accumulate(left, right, old, Unit(a_type, d_type, k)))


def _tile_place(
    group: WarpSet, a: Value, stride: Value | None, space: str, shape: str
) -> tuple[str, Any, Any, Vector]:
    """Space and address of a 16 x 16 tile, its leading dimension, and the lanes' numbers."""
    if shape != "m16n16k16":
        raise Fault(f"wmma shape {shape} is not emulated")
    if space == "generic":
        space, a = resolve(a)
    base, step = (x.astype(np.int64) if x.__class__ is ND else x for x in (a, stride))
    return space, base, 16 if stride is None else step, group.lane.astype(np.int64)


def _pair_addresses(base: Any, step: Any, lane: Vector, contiguous: bool, item: int) -> list[Vector]:
    """Addresses of each lane's elements of a 16 x 16 tile with contiguous rows (columns unless `contiguous`).

    Elements come in pairs along a row: pair i has row t / 4 + 8 * (i % 2), columns 8 * (i / 2) + 2 * (t % 4) and the
    next. There is one address per pair if its elements are contiguous, else one per element.
    """
    out = []
    for i in range(4):
        row, column = lane // 4 + 8 * (i % 2), 8 * (i // 2) + 2 * (lane % 4)
        if contiguous:
            out.append(base + (row * step + column) * item)
        else:
            out += [base + ((column + j) * step + row) * item for j in range(2)]
    return [x.astype(np.uint64) for x in out]


def _row_addresses_of_tile(base: Any, step: Any, lane: Vector, contiguous: bool) -> Vector:
    """Row addresses for ldmatrix.x4 of a 16 x 16 tile of 16-bit elements."""
    down, across = lane % 8 + 8 * (lane // 8 % 2), 8 * (lane // 16)
    if not contiguous:
        down, across = lane % 8 + 8 * (lane // 16), 8 * (lane // 8 % 2)
    addresses: Vector = base + (down * step + across) * 2
    return addresses.astype(np.uint64)


def _transposed(words: list[Value], group: WarpSet) -> list[Vector]:
    """The fragment of a 16 x 16 tile of 16-bit elements, from that of its transpose."""
    moved = [_transposed_tiles(vector(group, w)) for w in words]
    return [moved[0], moved[2], moved[1], moved[3]]


def wmma_load(group: WarpSet, m: Mask, a: Value, stride: Value | None, what: Wmma) -> list[Value]:
    """wmma.load.a/b/c.sync, with the accesses of sm_90: ldmatrix from shared memory, else pairs or elements."""
    matrix, layout, shape, kind, space = what
    space, base, step, lane = _tile_place(group, a, stride, space, shape)
    contiguous = (layout == "row") != (matrix == "b")  # B is kept as its transpose
    if matrix == "c":
        item = 4 if kind == "f32" else 2
        return _load_pairs(group, m, _pair_addresses(base, step, lane, contiguous, item), item, space)
    words: Sequence[Value]
    if space == "shared":
        words = ldmatrix(
            group, m, _row_addresses_of_tile(base, step, lane, contiguous), 4, not contiguous, False
        )
    else:
        words = _load_pairs(group, m, _pair_addresses(base, step, lane, True, 2), 2, space)
        words = words if contiguous else _transposed(words, group)
    # in PTX fp16 fragments have twice the registers that they need
    return [*words, *words] if kind == "f16" else list(words)


def _load_pairs(group: WarpSet, m: Mask, places: list[np.ndarray], item: int, space: str) -> list[Value]:
    """Registers from the addresses of 4 pairs or 8 elements."""
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
    """wmma.store.d.sync, with the accesses of sm_90."""
    _, layout, shape, kind, space = what
    space, base, step, lane = _tile_place(group, a, stride, space, shape)
    item, rows = 4 if kind == "f32" else 2, layout == "row"
    places = _pair_addresses(base, step, lane, rows, item)
    if item == 2 and not rows:
        values = [half for v in values for half in (v & 0xFFFF, v >> 16)]
    each = len(values) // len(places)
    for i, at in enumerate(places):
        store(group, m, at, tuple(values[each * i : each * (i + 1)]), 4 if rows else item, space)


def wmma_mma(
    group: WarpSet, shape: str, types: list[str], a: Sequence[Value], b: Sequence[Value], c: Sequence[Value]
) -> list[Vector]:
    """wmma.mma.sync: D = A * B + C; `types` are those of D and C, with those of A and B between them unless f16."""
    if shape != "m16n16k16":
        raise Fault(f"wmma shape {shape} is not emulated")
    d_type, *kinds, c_type = types
    kind = kinds[0] if kinds else "f16"
    warps = len(group.warps)
    left, right = (fragment(x[:4], warps, kind).reshape(warps, 16, 16) for x in (a, b))  # B transposed
    old = _accumulators(group, c, c_type, d_type)
    return _to_registers(accumulate(left, right, old, Unit(kind, d_type, 16)))
