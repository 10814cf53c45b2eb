# SPDX-License-Identifier: Apache-2.0
"""Tensor maps decoded from their 128 bytes, and the memory they reach: clipped boxes, read and written.

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
from cutegemm.emulator.state.hooks import Reach
from cutegemm.emulator.state.memo import remember
from cutegemm.emulator.state.memory import Fault, GlobalMemory

# Type code of the packed map -> (name, bytes). Not the numbers of CUtensorMapDataType.
TYPES = {
    0: ("u8", 1),
    1: ("u16", 2),
    2: ("u32", 4),
    4: ("u64", 8),
    6: ("f16", 2),
    7: ("f32", 4),
    9: ("f64", 8),
    10: ("bf16", 2),
}
TF32_BIT = 1 << 16  # of the second word: as the DSL writes maps whose format is TF32_RN
SWIZZLE_BYTES = (0, 32, 64, 128)
_SWIZZLE_MASK = (0, 1, 3, 7)  # 16-byte chunks within the span that take part
# Bytes; base, strides and the box's first byte (the last measured on an H200: else an illegal instruction).
GLOBAL_ALIGN = 16
# strides (bytes) are below, extents (elements) at most that: CUDA driver API, cuTensorMapEncodeTiled
GLOBAL_STRIDE_MOST, GLOBAL_EXTENT_MOST = 1 << 40, 1 << 32
STORE_CHUNK = 16  # bytes: what a tensor store clips its innermost extent to; measured on an H200
SHARED_ALIGN = 128  # bytes; shared address of a tensor copy, PTX ISA 5.5.6

Slices: TypeAlias = tuple[tuple[slice, ...], tuple[slice, ...]]  # of a tensor, and of the box


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map. Innermost dimension first; strides in bytes, of dimensions 1 and up."""

    base: int
    kind: str
    item: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int  # 0 none, 1 32 bytes, 2 64, 3 128
    interleave: int
    nan_fill: bool
    tf32: bool = False  # whether loads round fp32 to tf32

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
        """Bytes one copy moves and adds to the transaction count."""
        return self.inner_bytes * self.rows


def decode(raw: bytes) -> TensorMap:
    """Decode the 128 bytes of a tensor map.

    Raises:
        Fault: a field outside what sm_90 takes.
    """
    w = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(8)]
    rank = (w[1] >> 4 & 7) + 1
    code = w[1] >> 7 & 15
    if code not in TYPES or rank > 5 or w[1] & 15 != 2:
        raise Fault(f"the bytes are no tensor map (first words {w[0]:#x}, {w[1]:#x})")
    kind, item = TYPES[code]
    low = [w[1] >> 32, w[2] & 0xFFFFFFFF, w[2] >> 32, w[3] & 0xFFFFFFFF]
    strides = [(s | (w[3] >> 32 + 4 * i & 15) << 32) * 16 for i, s in enumerate(low)]
    dims = [
        (w[4] & 0xFFFFFFFF) + 1,
        (w[4] >> 32) + 1,
        (w[5] & 0xFFFFFFFF) + 1,
        (w[5] >> 32) + 1,
        (w[6] & 0xFFFFFFFF) + 1,
    ]
    box = [(w[6] >> 56) + 1] + [(w[7] >> 8 * i & 255) + 1 for i in range(4)]
    steps = [(w[6] >> 32 + 3 * i & 7) + 1 for i in range(5)]
    made = TensorMap(
        w[0],
        kind,
        item,
        tuple(dims[:rank]),
        tuple(strides[: rank - 1]),
        tuple(box[:rank]),
        tuple(steps[:rank]),
        w[1] >> 13 & 3,
        w[1] >> 11 & 3,
        bool(w[1] >> 15 & 1),
        kind == "f32" and bool(w[1] & TF32_BIT),
    )
    if made.interleave or any(s != 1 for s in made.element_strides) or w[1] >> 19 & 3:
        raise Fault(
            f"tensor map: interleave, element strides and swizzle atomicity are not emulated ({made})"
        )
    if made.inner_bytes % 16:
        raise Fault(f"tensor map: box row of {made.inner_bytes} bytes is not a multiple of 16 ({made})")
    if made.swizzle and made.inner_bytes > SWIZZLE_BYTES[made.swizzle]:
        raise Fault(
            f"tensor map: box row of {made.inner_bytes} bytes exceeds the {SWIZZLE_BYTES[made.swizzle]}-byte swizzle "
            f"({made})"
        )
    return made


def _to_tf32(rows: np.ndarray) -> np.ndarray:
    """Bytes of fp32 numbers rounded to tf32, to nearest even (PTX ISA 9.0, 5.5.1); infinities and NaN as they are."""
    bits = rows.view(np.uint32)
    near = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    return np.where(bits & np.uint32(0x7F800000) == 0x7F800000, bits, near).view(np.uint8)


def encode(t: TensorMap) -> bytes:
    """Pack a tensor map into its 128 bytes: the inverse of `decode`, for launches made without the driver."""
    code = next(c for c, (kind, _) in TYPES.items() if kind == t.kind)

    def pad(values: tuple[int, ...], n: int, fill: int) -> tuple[int, ...]:
        return (*values, *[fill] * (n - len(values)))

    strides = [s // 16 for s in pad(t.strides, 4, 0)]
    dims = [d - 1 for d in pad(t.dims, 5, 1)]
    box = [b - 1 for b in pad(t.box, 5, 1)]
    w = [
        t.base,
        2
        | (len(t.dims) - 1) << 4
        | code << 7
        | t.swizzle << 13
        | int(t.nan_fill) << 15
        | t.tf32 * TF32_BIT
        | (strides[0] & 0xFFFFFFFF) << 32,
    ]
    w.append((strides[1] & 0xFFFFFFFF) | (strides[2] & 0xFFFFFFFF) << 32)
    w.append((strides[3] & 0xFFFFFFFF) | sum((s >> 32 & 15) << 32 + 4 * i for i, s in enumerate(strides)))
    w.append(dims[0] | dims[1] << 32)
    w.append(dims[2] | dims[3] << 32)
    w.append(dims[4] | box[0] << 56)
    w.append(sum(b << 8 * i for i, b in enumerate(box[1:])))
    return b"".join(x.to_bytes(8, "little") for x in w).ljust(128, b"\0")


def swizzled(address: npt.NDArray[np.int64], mode: int) -> npt.NDArray[np.int64]:
    """Shared byte address under a swizzle mode: bits 4..6 are xored with bits 7..9 as far as the mode reaches."""
    return address ^ ((address >> 7 & _SWIZZLE_MASK[mode]) << 4)


@functools.lru_cache(4096)
def box_chunks(offset: int, rows: int, inner: int, mode: int) -> np.ndarray:
    """16-byte chunk numbers of a box in shared memory, row by row."""
    at = offset + np.arange(rows)[:, None] * inner + np.arange(inner // 16)[None] * 16
    return (swizzled(at, mode) >> 4).ravel()


class Tensor:
    """A tensor map together with the buffer it reaches, as one strided view."""

    def __init__(self, tensor_map: TensorMap, memory: GlobalMemory) -> None:
        self.map = t = tensor_map
        extent = t.dims[0] * t.item + sum((d - 1) * s for d, s in zip(t.dims[1:], t.strides, strict=True))
        # a matrix may begin anywhere in its first word
        region = memory.word_of(t.base, t.base + extent)
        if region is None:
            where = memory.describe(t.base)
            raise Fault(f"tensor map reaches {extent} bytes from {t.base:#x}, {where}: {t}")
        if t.base % GLOBAL_ALIGN:
            raise Fault(f"tensor map base {t.base:#x} is not {GLOBAL_ALIGN}-byte aligned")
        self.region = region
        self.clipped: dict[tuple[tuple[int, ...], int], Slices] = {}
        self.reached: dict[tuple[tuple[int, ...], int], Reach | None] = {}
        shape = [t.dims[0] * t.item, *t.dims[1:]][::-1]
        self.view = np.lib.stride_tricks.as_strided(
            region.data[t.base - region.base :], shape, [*t.strides[::-1], 1]
        )

    def _stored(self) -> Bytes:
        """The view that stores reach: rows rounded up to whole chunks."""
        t = self.map
        if t.base < self.region.base + self.region.first:
            raise Fault(f"tensor store to a map that begins before its buffer: {t}")
        row = -(-t.dims[0] * t.item // STORE_CHUNK) * STORE_CHUNK
        extent = row + sum((d - 1) * s for d, s in zip(t.dims[1:], t.strides, strict=True))
        if t.base + extent > self.region.base + self.region.size:
            raise Fault(
                f"tensor store writes whole {STORE_CHUNK}-byte chunks, past the end of its buffer: {t}"
            )
        shape = [row, *t.dims[1:]][::-1]
        memory = self.region.data[t.base - self.region.base :]
        return np.lib.stride_tricks.as_strided(memory, shape, [*t.strides[::-1], 1])

    def clip(self, at: tuple[int, ...], chunk: int = 1) -> Slices:
        """Slices of the tensor and of the box for a box at element coordinates `at`.

        The innermost extent is clipped to the tensor rounded up to `chunk` bytes.
        """
        made = self.clipped.get((at, chunk))
        if made is None:
            made = remember(self.clipped, (at, chunk), self._clip(at, chunk))
        return made

    def _clip(self, at: tuple[int, ...], chunk: int) -> Slices:
        source, target = [], []
        for i, (c, size, dim) in enumerate(zip(at, self.map.box, self.map.dims, strict=True)):
            c = (c ^ 0x80000000) - 0x80000000
            unit = self.map.item if i == 0 else 1
            low, high = max(c, 0), min(c + size, dim)
            first, last = low * unit, max(high, low) * unit
            if i == 0:
                last = min(-(-last // chunk) * chunk, (c + size) * unit) if last > first else last
            source.append(slice(first, last))
            target.append(slice(first - c * unit, last - c * unit))
        return tuple(source[::-1]), tuple(target[::-1])

    def reach(self, at: tuple[int, ...], chunk: int = 1) -> Reach | None:
        """Where a clipped box lies in its region: first byte, shape (the last extent in bytes), strides of the others.

        None when nothing of the box is inside the tensor.
        """
        key = (at, chunk)
        if key not in self.reached:
            return remember(self.reached, key, self._reach(at, chunk))
        return self.reached[key]

    def _reach(self, at: tuple[int, ...], chunk: int) -> Reach | None:
        source, _ = self.clip(at, chunk)
        shape = tuple(s.stop - s.start for s in source)
        if 0 in shape:
            return None
        strides = self.map.strides[::-1]
        first = source[-1].start + sum(s.start * step for s, step in zip(source, strides))
        return self.map.base - self.region.base + first, shape, strides

    def stored_chunks(self, at: tuple[int, ...], chunks: np.ndarray, reduction: str | None) -> np.ndarray:
        """Of a box's 16-byte chunks in shared memory, row by row, those whose bytes a store at `at` uses."""
        _, target = self.clip(at, 1 if reduction else STORE_CHUNK)
        box = chunks.reshape([*self.map.box[:0:-1], self.map.inner_bytes // 16])
        inner = target[-1]
        return box[(*target[:-1], slice(inner.start // 16, -(-inner.stop // 16)))].ravel()

    def read(self, at: tuple[int, ...]) -> np.ndarray:
        """The box at `at`, as rows of bytes."""
        t = self.map
        source, target = self.clip(at)
        shape = [*t.box[:0:-1], t.inner_bytes]
        part = self.view[source]
        if part.shape == tuple(shape):
            rows = np.ascontiguousarray(part).reshape(-1, t.inner_bytes)
        else:
            out = np.zeros(shape, np.uint8)
            out[target] = part
            rows = out.reshape(-1, t.inner_bytes)
        return _to_tf32(rows) if t.tf32 else rows

    def write(
        self, data: np.ndarray, at: tuple[int, ...], reduce: Callable[[Bytes, Bytes], Bytes] | None
    ) -> None:
        """Write a box of byte rows at `at`, or reduce it into what is there.

        A store clips by whole 16-byte chunks where a load clips by elements (measured on an H200: 3 columns of
        bf16 stored into rows of 8 write all 8).
        """
        source, target = self.clip(at, STORE_CHUNK if reduce is None else 1)
        data = data.reshape([*self.map.box[:0:-1], data.shape[-1]])[target]
        if reduce is None:
            self._stored()[source] = data
        elif data.size:
            old = np.ascontiguousarray(self.view[source])
            self.view[source] = reduce(old, np.ascontiguousarray(data))
