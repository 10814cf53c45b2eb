# SPDX-License-Identifier: Apache-2.0
"""Cells of the race detector's shadows, and which of them an access, a box or an operand reaches.

Loops and rings reach the same cells again and again, so what has been worked out is remembered.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.numbers.types import Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import TYPE_BYTES
from cutegemm.emulator.state.memo import remember
from cutegemm.emulator.units.wgmma_operands import Form, operand_chunks

# Of a wgmma's operand: descriptor, extent, k, MN-major, bytes of an element, rows or None.
Operand: TypeAlias = tuple[int, int, int, bool, int, int | None]


def cell_bytes(program: Translation) -> int:
    """4-byte cells, or smaller ones when the kernel accesses shared or global memory in smaller units."""
    sizes = [4]
    for block in program.blocks:
        for ins in block.code:
            if ins.parts[0] in ("ld", "st") and not {"param", "local"} & set(ins.parts):
                sizes.append(TYPE_BYTES.get(ins.parts[-1], 4))
            elif ins.parts[0] == "wmma":
                sizes.append(2)
    return min(sizes)


class CellSet:
    """A set of cells: runs of `length` cells each from `starts` on, all within [first, last)."""

    __slots__ = ("starts", "length", "first", "last", "shared", "_index", "_words", "_runs")

    def __init__(self, starts: np.ndarray, length: int, first: int, last: int) -> None:
        self.starts, self.length, self.first, self.last = starts, length, first, last
        self.shared = True  # of an access of several lanes: whether two of them may reach the same bytes
        self._index: npt.NDArray[np.int64] | None = None
        self._words: npt.NDArray[np.int64] | None = None
        self._runs = 0

    @classmethod
    def run(cls, first: int, last: int) -> CellSet:
        """The cells from `first` to before `last`."""
        return cls(np.array([first], np.int64), last - first, first, last)

    @classmethod
    def joined(cls, parts: list[CellSet], length: int) -> CellSet:
        """Several sets as one; each is made of runs of `length` cells."""
        starts = np.concatenate([part.index[::length] for part in parts])
        return cls(starts, length, min(part.first for part in parts), max(part.last for part in parts))

    @property
    def runs(self) -> int:
        """Address of the runs as the compiled loops take them."""
        if not self._runs:
            head = np.array([len(self.starts), self.length], np.int64)
            words = self._words = np.concatenate([head, self.starts])
            self._runs = words.ctypes.data
        return self._runs

    @property
    def index(self) -> np.ndarray:
        """All cells, one after another."""
        if self._index is None:
            self._index = (self.starts[:, None] + np.arange(self.length)).ravel()
        return self._index

    def mark(self, cells: int) -> np.ndarray:
        """All cells of a region, true at these."""
        out = np.zeros(cells, bool)
        out[self.index] = True
        return out

    def within(self, cells: int) -> CellSet:
        """What of it lies in a region of so many cells."""
        if self.first >= 0 and self.last <= cells and self.length and len(self.starts):
            return self
        inside = self.index[(self.index >= 0) & (self.index < cells)]
        return CellSet(inside, 1, max(self.first, 0), min(self.last, cells))


class Cells:
    """From bytes to cells of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        # Of wgmma, which reads the same stages over and over, and of vector accesses.
        self.matrices: dict[Operand, CellSet] = {}
        self.together: dict[tuple[int | None, int, Form, int], tuple[CellSet, list[CellSet]]] = {}
        self.wheres: dict[tuple[object, ...], CellSet] = {}
        self.boxes: dict[int, tuple[npt.NDArray[Any], CellSet]] = {}  # of arrays of chunks, by identity

    def where(self, offset: Value, size: int) -> CellSet:
        """Cells of one access per lane: byte offsets, each `size` bytes."""
        if offset.__class__ is not ND:
            return CellSet.run(int(offset) // self.size, (int(offset) + size - 1) // self.size + 1)
        key = (offset.tobytes(), offset.dtype, size)
        made = self.wheres.get(key)
        if made is None:
            wide = offset.astype(np.int64)
            ascending = bool((wide[1:] > wide[:-1]).all())
            unique = wide if ascending else np.unique(wide)
            first = unique // self.size
            count = max(size // self.size, 1)
            made = remember(self.wheres, key, CellSet(first, count, int(first[0]), int(first[-1]) + count))
            made.shared = len(unique) < len(wide)
        return made

    def chunks(self, chunks: np.ndarray) -> CellSet:
        """Cells of 16-byte chunks, remembered with their array: boxes come again and again."""
        made = self.boxes.get(id(chunks))
        if made is None or made[0] is not chunks:
            made = remember(self.boxes, id(chunks), (chunks, self._chunks(chunks)))
        return made[1]

    def _chunks(self, chunks: np.ndarray) -> CellSet:
        per = 16 // self.size
        low, high = int(chunks.min()), int(chunks.max()) + 1
        if high - low == chunks.size:
            return CellSet.run(low * per, high * per)
        return CellSet(chunks.ravel().astype(np.int64) * per, per, low * per, high * per)

    def operand(
        self, descriptor: int, extent: int, k: int, mn_major: bool, item: int, rows: int | None
    ) -> CellSet:
        """Cells of an operand of wgmma, or of the 16 rows of it that warp `rows` of its warpgroup reads."""
        key = (descriptor, extent, k, mn_major, item, rows)
        made = self.matrices.get(key)
        if made is None:
            chunks = operand_chunks(descriptor, extent, k * item, mn_major, item)
            made = self.chunks(chunks if rows is None else chunks[16 * rows : 16 * rows + 16])
            self.matrices[key] = made
        return made

    def box(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> CellSet:
        """Cells of rows of bytes from `offset` on: `shape` ends with a row's bytes, `strides` are of the others."""
        key = (offset, shape, strides)
        made = self.wheres.get(key)
        if made is None:
            row = -(-(offset % self.size + shape[-1]) // self.size)
            starts = np.array([offset // self.size], np.int64)
            for n, stride in zip(shape, strides):
                starts = (starts[:, None] + np.arange(n) * (stride // self.size)).ravel()
            made = remember(self.wheres, key, CellSet(starts, row, int(starts[0]), int(starts[-1]) + row))
        return made

    def operands(self, a: int | None, b: int, form: Form, warp: int) -> tuple[CellSet, list[CellSet]]:
        """What warp `warp` of a warpgroup reads with a wgmma of these descriptors, all together and each operand apart.

        `a` is None for an operand in registers.
        """
        key = (a, b, form, warp)
        made = self.together.get(key)
        if made is None:
            made = self.together[key] = self._operands(a, b, form, warp)
        return made

    def _operands(self, a: int | None, b: int, form: Form, warp: int) -> tuple[CellSet, list[CellSet]]:
        n, k, _, a_type, b_type, _, (trans_a, trans_b) = form
        apart = [self.operand(b, n, k, trans_b, ITEM_BYTES[b_type], None)]
        if a is not None:  # a warp reads its 16 rows, or all when they do not lie apart
            rows = None if trans_a else warp
            apart.insert(0, self.operand(a, 64, k, trans_a, ITEM_BYTES[a_type], rows))
        return CellSet.joined(apart, 16 // self.size), apart
