# SPDX-License-Identifier: Apache-2.0
"""Tensor maps, decoded from their 128 bytes, and reads and writes of their boxes in global memory.

Source: PTX ISA 9.0, 5.5 (tensors, swizzle modes). The bit layout of the map is undocumented; it was found by varying
one field at a time of maps packed by the DSL's host code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Bytes
from cutegemm.emulator.numbers.values import signed
from cutegemm.emulator.state.hooks import Reach
from cutegemm.emulator.state.memory import Fault, GlobalMemory

ITEM_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f16": 2, "f32": 4, "f64": 8, "bf16": 2}
# Type codes in the 128 bytes; they differ from CUtensorMapDataType.
_CODES = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "f64": 9, "bf16": 10}
# First bit and number of bits of each field. The last five repeat for each dimension, the innermost first.
_MARK, _RANK, _TYPE, _SWIZZLE, _TF32 = (64, 4), (68, 3), (71, 4), (77, 2), (80, 1)
_UNSUPPORTED = ((75, 2), (79, 1), (83, 2))  # interleave, NaN fill, swizzle atomicity
_STRIDE_LOW, _STRIDE_HIGH = (96, 32), (224, 4)  # of dimensions 1 and up, in units of 16 bytes
_EXTENT, _ELEMENT_STRIDE, _BOX = (256, 32), (416, 3), (440, 8)  # value minus one
_RANK_MOST = 5

SWIZZLE_BYTES = (0, 32, 64, 128)
_SWIZZLE_MASK = (0, 1, 3, 7)  # address bits above the chunk that are xored into it
# bytes: alignment of base, strides and the box's first byte (measured on an H200: else an illegal instruction)
GLOBAL_ALIGN = 16
# bytes that strides stay below, most elements of an extent: CUDA driver API, cuTensorMapEncodeTiled
GLOBAL_STRIDE_MOST, GLOBAL_EXTENT_MOST = 1 << 40, 1 << 32
STORE_CHUNK = (
    16  # bytes: a tensor store clips its innermost extent to a multiple of this; measured on an H200
)
SHARED_ALIGN = 128  # bytes: alignment of the shared address of a tensor copy, PTX ISA 5.5.6

Slices: TypeAlias = tuple[tuple[slice, ...], tuple[slice, ...]]  # of a tensor, and of the box


def swizzle_name(mode: int) -> str:
    """A swizzle in words."""
    return f"{SWIZZLE_BYTES[mode]}B" if mode else "none"


@dataclass(frozen=True)
class TensorMap:
    """A tensor map. The innermost dimension comes first; `strides` are bytes, for dimensions 1 and up."""

    base: int
    kind: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0  # 0 none, 1 32 bytes, 2 64, 3 128
    tf32: bool = False  # whether loads round fp32 to tf32

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.kind]

    @functools.cached_property
    def inner_bytes(self) -> int:
        """Bytes of one row of the box."""
        return self.box[0] * self.item

    @functools.cached_property
    def rows(self) -> int:
        """Rows of the box: the product of its outer extents."""
        return int(np.prod(self.box[1:], dtype=np.int64))

    @functools.cached_property
    def box_bytes(self) -> int:
        """Bytes that a copy adds to the tx-count."""
        return self.inner_bytes * self.rows


def decode(raw: bytes) -> TensorMap:
    """Decode the 128 bytes of a tensor map.

    Raises:
        Fault: sm_90 or the emulator does not support a field.
    """
    number = int.from_bytes(raw[:64], "little")

    def get(field: tuple[int, int], i: int = 0) -> int:
        first, bits = field
        return number >> first + i * bits & (1 << bits) - 1

    rank, code = get(_RANK) + 1, get(_TYPE)
    kind = next((kind for kind, number in _CODES.items() if number == code), None)
    if kind is None or rank > _RANK_MOST or get(_MARK) != 2:
        words = number & (1 << 64) - 1, number >> 64 & (1 << 64) - 1
        raise Fault(f"the bytes are not a tensor map (first words {words[0]:#x}, {words[1]:#x})")
    tensor_map = TensorMap(
        base=number & (1 << 64) - 1,
        kind=kind,
        dims=tuple(get(_EXTENT, i) + 1 for i in range(rank)),
        strides=tuple(16 * (get(_STRIDE_LOW, i) | get(_STRIDE_HIGH, i) << 32) for i in range(rank - 1)),
        box=tuple(get(_BOX, i) + 1 for i in range(rank)),
        swizzle=get(_SWIZZLE),
        tf32=kind == "f32" and bool(get(_TF32)),
    )
    if any(map(get, _UNSUPPORTED)) or any(get(_ELEMENT_STRIDE, i) for i in range(rank)):
        rule = "interleave, element strides, NaN fill and swizzle atomicity are not emulated"
        raise Fault(f"tensor map: {rule} ({tensor_map})")
    if tensor_map.inner_bytes % 16:
        raise Fault(
            f"tensor map: box row of {tensor_map.inner_bytes} bytes is not a multiple of 16 ({tensor_map})"
        )
    span = SWIZZLE_BYTES[tensor_map.swizzle]
    if span and tensor_map.inner_bytes > span:
        rule = f"box row of {tensor_map.inner_bytes} bytes exceeds the {span}-byte swizzle"
        raise Fault(f"tensor map: {rule} ({tensor_map})")
    return tensor_map


def encode(t: TensorMap) -> bytes:
    """Encode a tensor map in 128 bytes, as the driver does; the inverse of `decode`."""
    number = t.base

    def put(field: tuple[int, int], *values: int) -> None:
        nonlocal number
        first, bits = field
        for i, value in enumerate(values):
            number |= (value & (1 << bits) - 1) << first + i * bits

    put(_MARK, 2)
    put(_RANK, len(t.dims) - 1)
    put(_TYPE, _CODES[t.kind])
    put(_SWIZZLE, t.swizzle)
    put(_TF32, int(t.tf32))
    put(_STRIDE_LOW, *(s // 16 for s in t.strides))
    put(_STRIDE_HIGH, *(s // 16 >> 32 for s in t.strides))
    put(_EXTENT, *(n - 1 for n in t.dims))
    put(_BOX, *(n - 1 for n in t.box))
    return number.to_bytes(128, "little")


def _to_tf32(rows: np.ndarray) -> np.ndarray:
    """fp32 numbers rounded to tf32, to nearest even (PTX ISA 9.0, 5.5.1); infinities and NaN do not change."""
    bits = rows.view(np.uint32)
    near = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    return np.where(bits & np.uint32(0x7F800000) == 0x7F800000, bits, near).view(np.uint8)


def swizzled(address: npt.NDArray[np.int64], mode: int) -> npt.NDArray[np.int64]:
    """Swizzled byte addresses in shared memory: bits 4..6 are xored with as many of bits 7..9 as the mode uses."""
    return address ^ ((address >> 7 & _SWIZZLE_MASK[mode]) << 4)


@functools.lru_cache(4096)
def box_chunks(offset: int, rows: int, inner: int, mode: int) -> np.ndarray:
    """16-byte chunk numbers of a box in shared memory, row by row."""
    at = offset + np.arange(rows)[:, None] * inner + np.arange(inner // 16)[None] * 16
    return (swizzled(at, mode) >> 4).ravel()


class Tensor:
    """A tensor in global memory: its map, its region and a strided view."""

    def __init__(self, tensor_map: TensorMap, memory: GlobalMemory) -> None:
        self.map = t = tensor_map
        extent = self._extent(t.dims[0] * t.item)
        # the buffer may begin within the first 16-byte word of the map
        region = memory.word_of(t.base, t.base + extent)
        if region is None:
            where = memory.describe(t.base)
            raise Fault(f"tensor map covers {extent} bytes from {t.base:#x}, {where}: {t}")
        if t.base % GLOBAL_ALIGN:
            raise Fault(f"tensor map base {t.base:#x} is not {GLOBAL_ALIGN}-byte aligned")
        self.region = region
        self.view = self._view(t.dims[0] * t.item)
        # copies access the same boxes many times
        self.clip = functools.lru_cache(4096)(self._clip)
        self.reach = functools.lru_cache(4096)(self._reach)

    def _extent(self, row: int) -> int:
        """Bytes from the first to the last, if rows have `row` bytes."""
        return row + sum((n - 1) * s for n, s in zip(self.map.dims[1:], self.map.strides, strict=True))

    def _view(self, row: int) -> Bytes:
        """The tensor as bytes, the outermost dimension first, with `row` bytes in each row."""
        shape, strides = [row, *self.map.dims[1:]][::-1], [*self.map.strides[::-1], 1]
        memory = self.region.data[self.map.base - self.region.base :]
        return np.lib.stride_tricks.as_strided(memory, shape, strides)

    def _stored(self) -> Bytes:
        """The view for stores, which write whole chunks: rows are rounded up."""
        t = self.map
        if t.base < self.region.base + self.region.first:
            raise Fault(f"tensor store to a map that begins before its buffer: {t}")
        row = -(-t.dims[0] * t.item // STORE_CHUNK) * STORE_CHUNK
        if t.base + self._extent(row) > self.region.base + self.region.size:
            rule = f"tensor store writes whole {STORE_CHUNK}-byte chunks, past the end of its buffer"
            raise Fault(f"{rule}: {t}")
        return self._view(row)

    def _clip(self, at: tuple[int, ...], chunk: int = 1) -> Slices:
        """Slices of the tensor and of the box, for a box at element coordinates `at`.

        The box is clipped to the tensor, whose innermost extent is rounded up to `chunk` bytes.
        """
        source, target = [], []
        for i, (c, size, dim) in enumerate(zip(at, self.map.box, self.map.dims, strict=True)):
            c = signed(c, 32)
            unit = self.map.item if i == 0 else 1
            low, high = max(c, 0), min(c + size, dim)
            first, last = low * unit, max(high, low) * unit
            if i == 0:
                last = min(-(-last // chunk) * chunk, (c + size) * unit) if last > first else last
            source.append(slice(first, last))
            target.append(slice(first - c * unit, last - c * unit))
        return tuple(source[::-1]), tuple(target[::-1])

    def _reach(self, at: tuple[int, ...], chunk: int = 1) -> Reach | None:
        """The clipped box in its region; None if the box is outside the tensor."""
        source, _ = self.clip(at, chunk)
        shape = tuple(s.stop - s.start for s in source)
        if 0 in shape:
            return None
        strides = self.map.strides[::-1]
        first = source[-1].start + sum(s.start * step for s, step in zip(source, strides))
        return self.map.base - self.region.base + first, shape, strides

    def stored_chunks(self, at: tuple[int, ...], chunks: np.ndarray, reduction: str | None) -> np.ndarray:
        """Those of the chunks of a box in shared memory that a store at `at` reads."""
        _, target = self.clip(at, 1 if reduction else STORE_CHUNK)
        box = chunks.reshape([*self.map.box[:0:-1], self.map.inner_bytes // 16])
        inner = target[-1]
        return box[(*target[:-1], slice(inner.start // 16, -(-inner.stop // 16)))].ravel()

    def read(self, at: tuple[int, ...]) -> np.ndarray:
        """The box at `at`, as rows of bytes; zeros outside the tensor."""
        t = self.map
        source, target = self.clip(at)
        box = self.view[source]
        shape = (*t.box[:0:-1], t.inner_bytes)
        if box.shape != shape:
            out = np.zeros(shape, np.uint8)
            out[target] = box
            box = out
        rows = np.ascontiguousarray(box).reshape(-1, t.inner_bytes)
        return _to_tf32(rows) if t.tf32 else rows

    def write(
        self, data: np.ndarray, at: tuple[int, ...], reduce: Callable[[Bytes, Bytes], Bytes] | None
    ) -> None:
        """Write the bytes of a box at `at`, or reduce them into memory.

        A store clips by whole 16-byte chunks where a load clips by elements (measured on an H200: 3 columns of
        bf16 stored into rows of 8 write all 8).
        """
        source, target = self.clip(at, STORE_CHUNK if reduce is None else 1)
        data = data.reshape([*self.map.box[:0:-1], self.map.inner_bytes])[target]
        if reduce is None:
            self._stored()[source] = data
        elif data.size:
            old = np.ascontiguousarray(self.view[source])
            self.view[source] = reduce(old, np.ascontiguousarray(data))
