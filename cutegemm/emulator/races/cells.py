# SPDX-License-Identifier: Apache-2.0
"""Cells of the race detector's shadow memory, and which of them an access, a box or an operand reaches.

Loops and pipelines reach the same cells many times, so results are cached.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.numbers.types import Value
from cutegemm.emulator.numbers.values import ND
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.kernel import TYPE_BYTES
from cutegemm.emulator.state.hooks import row_starts
from cutegemm.emulator.units.wgmma_operands import Form, operand_chunks

CACHED = 4096  # entries of each cache


def cell_bytes(program: Translation) -> int:
    """Bytes of a cell: 4, or fewer if the kernel accesses shared or global memory in smaller units."""
    sizes = [4]
    for block in program.blocks:
        for ins in block.code:
            if ins.parts[0] in ("ld", "st") and not {"param", "local"} & set(ins.parts):
                sizes.append(TYPE_BYTES.get(ins.parts[-1], 4))
            elif ins.parts[0] == "wmma":
                sizes.append(2)
    return min(sizes)


class CellSet:
    """A set of cells: a run of `length` cells begins at each of `starts`; all lie within [first, last)."""

    def __init__(self, starts: np.ndarray, length: int, first: int, last: int) -> None:
        self.starts, self.length, self.first, self.last = starts, length, first, last
        self.shared = True  # whether two lanes of the access may reach the same bytes

    @classmethod
    def run(cls, first: int, last: int) -> CellSet:
        """The cells from `first` to before `last`."""
        return cls(np.array([first], np.int64), last - first, first, last)

    @functools.cached_property
    def _words(self) -> npt.NDArray[np.int64]:
        return np.concatenate([np.array([len(self.starts), self.length], np.int64), self.starts])

    @functools.cached_property
    def runs(self) -> int:
        """Address of the runs in the format of the compiled loops (`scan`)."""
        return self._words.ctypes.data

    @functools.cached_property
    def index(self) -> np.ndarray:
        """All cells, one after another."""
        return (self.starts[:, None] + np.arange(self.length)).ravel()

    def overlaps(self, other: Any) -> bool:
        """Whether its bounds and those of another set, or of a row, overlap."""
        return bool(self.first < other.last and other.first < self.last)

    def within(self, cells: int) -> CellSet:
        """The cells of this set that lie in a region of `cells` cells."""
        if self.first >= 0 and self.last <= cells and self.length and len(self.starts):
            return self
        inside = self.index[(self.index >= 0) & (self.index < cells)]
        return CellSet(inside, 1, max(self.first, 0), min(self.last, cells))


class Cells:
    """Converts bytes to cells of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.of_lanes = functools.lru_cache(CACHED)(self._of_lanes)
        self.box = functools.lru_cache(CACHED)(self._box)
        self.operands = functools.lru_cache(CACHED)(self._operands)
        self.operand = functools.lru_cache(CACHED)(self._operand)
        self.by_array: dict[int, tuple[npt.NDArray[Any], CellSet]] = {}  # of arrays of chunks, by identity

    def where(self, offset: Value, size: int) -> CellSet:
        """Cells of one access per lane: byte offsets, each `size` bytes."""
        if offset.__class__ is not ND:
            return CellSet.run(int(offset) // self.size, (int(offset) + size - 1) // self.size + 1)
        return self.of_lanes(offset.tobytes(), offset.dtype.char, size)

    def _of_lanes(self, offsets: bytes, dtype: str, size: int) -> CellSet:
        wide = np.frombuffer(offsets, dtype).astype(np.int64)
        unique = np.unique(wide)
        first = unique // self.size
        count = max(size // self.size, 1)
        cells = CellSet(first, count, int(first[0]), int(first[-1]) + count)
        cells.shared = len(unique) < len(wide)
        return cells

    def chunks(self, chunks: np.ndarray) -> CellSet:
        """Cells of 16-byte chunks. The cache uses the array's identity: most arrays come from a cache themselves."""
        cached = self.by_array.get(id(chunks))
        if cached is None or cached[0] is not chunks:
            if len(self.by_array) >= CACHED:
                self.by_array.clear()
            cached = self.by_array[id(chunks)] = (chunks, self._chunks(chunks))
        return cached[1]

    def _chunks(self, chunks: np.ndarray) -> CellSet:
        per = 16 // self.size
        low, high = int(chunks.min()), int(chunks.max()) + 1
        if high - low == chunks.size:
            return CellSet.run(low * per, high * per)
        return CellSet(chunks.ravel().astype(np.int64) * per, per, low * per, high * per)

    def _box(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> CellSet:
        """Cells of a box (`Reach`)."""
        row = -(-(offset % self.size + shape[-1]) // self.size)
        starts = row_starts(offset // self.size, shape, tuple(stride // self.size for stride in strides))
        return CellSet(starts, row, int(starts[0]), int(starts[-1]) + row)

    def _operand(self, descriptor: int, is_a: bool, form: Form) -> CellSet:
        """Cells of A or B of a wgmma."""
        n, k, _, *kinds, _, trans = form
        size = ITEM_BYTES[kinds[not is_a]]
        return self._chunks(
            np.unique(operand_chunks(descriptor, 64 if is_a else n, k * size, trans[not is_a], size))
        )

    def _operands(self, a: int | None, b: int, form: Form, warp: int) -> CellSet:
        """Cells that a warp of a warpgroup reads for a wgmma with these descriptors; `a` is None for A in registers."""
        n, k, _, a_type, b_type, _, (trans_a, trans_b) = form
        chunks = [operand_chunks(b, n, k * ITEM_BYTES[b_type], trans_b, ITEM_BYTES[b_type]).ravel()]
        if (
            a is not None
        ):  # a warp reads its 16 rows of A, or all of A if its chunks hold elements of several rows
            left = operand_chunks(a, 64, k * ITEM_BYTES[a_type], trans_a, ITEM_BYTES[a_type])
            chunks.append((left if trans_a else left[16 * warp : 16 * warp + 16]).ravel())
        return self._chunks(np.unique(np.concatenate(chunks)))
