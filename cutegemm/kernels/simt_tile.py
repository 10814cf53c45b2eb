# SPDX-License-Identifier: Apache-2.0
"""One operand of the CUDA-core kernel on its way from global memory to a thread's registers.

A thread reads its share of the next k tile into registers (`fetch`), writes it to shared memory as fp32
(`commit`) and reads fragments of four rows from there (`fragment`). Shared memory holds a tile as lines of
constant k, so that a fragment is one 16-byte load whichever axis has unit stride in global memory.

Bank conflicts: when the unit-stride axis is k, neighbouring threads write neighbouring k of a row, i.e.
the same bank of different lines. `PAD` elements after every vector's lines move them apart: with u vectors
along k a warp writes 32 / u rows, so a pad of 32 / u elements fills all banks (4, what 16-byte loads need,
is the least, and leaves a two-way conflict for single elements). Fragments are read by 8 x 4 lanes: lane
bits 0, 3, 4 along M and 1, 2 along N, so that within each half of the warp two lanes that differ in one
low bit read the same address and the whole load takes two passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm import hardware as hw
from cutegemm.config import MatrixConfig
from cutegemm.kernels.operands import NUMERIC, batch_at

STAGES = 2  # shared-memory tiles per operand: one is computed on while the next is written
GROUP = 4  # rows that one 16-byte shared load brings to a thread


@dataclass(frozen=True, kw_only=True)
class TileShape:
    """The compiled-in geometry of one operand's tile, and how the CTA's threads share the loading of it."""

    matrix: MatrixConfig
    rows: int  # BLK_M or BLK_N
    depth: int  # BLK_K
    vector: int  # elements per global load
    threads: int
    half: int | None = None  # of a gated B: columns side by side of one half, then as many of the other

    @property
    def along_k(self) -> bool:
        """Vectors lie along k."""
        return self.matrix.major not in ("m", "n")

    @property
    def lanes(self) -> int:
        """Vectors side by side along the unit-stride axis of the tile."""
        return (self.depth if self.along_k else self.rows) // self.vector

    @property
    def loads(self) -> int:
        """Vectors that each thread loads per tile."""
        return self.rows * self.depth // (self.vector * self.threads)

    @property
    def pad(self) -> int:
        """Elements between the lines of one vector and the next."""
        return max(GROUP, hw.WARP // self.lanes) if self.along_k else 0

    @property
    def elements(self) -> int:
        """fp32 elements of one stage."""
        return self.line(self.depth)

    def line(self, k: Any) -> Any:
        """Where line k starts in a stage."""
        return k * self.rows + k // self.vector * self.pad

    def place(self, thread: Any) -> tuple[Any, Any]:
        """(row, k) within the tile of the first element of a thread's first vector."""
        across, along = thread // self.lanes, thread % self.lanes * self.vector
        return (across, along) if self.along_k else (along, across)

    def source(self, tile: Any, row: Any) -> tuple[Any, Any]:
        """(row of the operand, which half of a gated B or None) that row `row` of a tile holds."""
        if self.half is None:
            return tile * self.rows + row, None
        return tile * (self.rows // 2) + row // (2 * self.half) * self.half + row % self.half, row // self.half % 2

    def move(self, i: int) -> tuple[int, int]:
        """(rows, k) from a thread's first vector to its i-th."""
        if self.threads % self.lanes == 0:
            across, along = i * (self.threads // self.lanes), 0
        else:
            repeats = self.lanes // self.threads
            across, along = i // repeats, i % repeats * self.threads * self.vector
        return (across, along) if self.along_k else (along, across)


@dataclass(frozen=True)
class TileLoad:
    """One operand's loads."""

    shape: TileShape
    pX: Any  # global memory: the batch's matrix, aligned to a vector
    offsets: tuple  # of this thread's vectors at k = 0, Int64 elements
    step: Any  # stride along k, elements
    sX: Any  # (elements * STAGES,) fp32 in shared memory
    rX: Any  # (VECTOR, LOADS), this thread's part of the tile underway
    place: tuple[Any, Any]  # (row, k) of this thread's first vector in the tile

    @staticmethod
    def create(shape: TileShape, mX: Any, tile: Any, batch: Any, thread: Any) -> TileLoad:
        """Loads of rows [tile * ROWS, (tile + 1) * ROWS) of mX (rows, k, l); rows beyond the matrix repeat its last.

        What those hold reaches only elements of D that are never stored.
        """
        smem = cutlass.memory.SmemAllocator()
        sX = smem.allocate_array(cutlass.Float32, shape.elements * STAGES)
        rX = cute.make_rmem_tensor((shape.vector, shape.loads), NUMERIC[shape.matrix.dtype])
        row, k = shape.place(thread)
        last = mX.shape[0] - (1 if shape.along_k else shape.vector)
        offsets = []
        for rows, columns in (shape.move(i) for i in range(shape.loads)):
            line, gate = shape.source(tile, row + rows)
            inside = cutlass.min(line, last)
            offsets.append(cute.crd2idx((inside, k + columns, batch_at(mX, batch, gate)), mX.layout))
        return TileLoad(shape, mX.iterator, tuple(offsets), mX.stride[1], sX, rX, (row, k))

    @cute.jit
    def fetch_first(self, depth: Any) -> None:
        """Read the first tile, of only `depth` (1 to BLK_K) columns of k; the rest is zero."""
        self.rX.fill(0)
        for i in cutlass.range_constexpr(self.shape.loads):
            if self.place[1] + self.shape.move(i)[1] < depth:
                self._read(i, self.pX)

    @cute.jit
    def fetch(self, start: Any, needed: Any) -> None:
        """Read the tile of BLK_K columns of k from `start` on, if `needed`."""
        if needed:
            base = self.pX + cute.assume(cutlass.Int64(start) * self.step, divby=self.shape.vector)
            for i in cutlass.range_constexpr(self.shape.loads):
                self._read(i, base)

    def _read(self, i: int, base: Any) -> None:
        source = base + cute.assume(self.offsets[i], divby=self.shape.vector)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(self.shape.vector)), self.rX[None, i])

    def commit(self, stage: Any) -> None:
        """Write what was fetched to shared memory, as fp32."""
        shape = self.shape
        start = stage * shape.elements + shape.line(self.place[1]) + self.place[0]
        for i in range(shape.loads):
            rows, k = shape.move(i)
            at = start + (shape.line(k) + rows)
            values = self.rX[None, i].load().to(cutlass.Float32)
            if shape.along_k:
                for j in range(shape.vector):
                    self._write(at + j * shape.rows, (values[j],))
            else:
                for j in range(0, shape.vector, GROUP):
                    part = range(j, min(j + GROUP, shape.vector))
                    self._write(at + j, tuple(values[x] for x in part))

    def _write(self, at: Any, values: tuple) -> None:
        size = len(values)
        rX = cute.make_rmem_tensor(size, cutlass.Float32)
        for x in range(size):
            rX[x] = values[x]
        cute.autovec_copy(rX, cute.make_tensor(self.sX + cute.assume(at, divby=size), cute.make_layout(size)))

    def fragment(self, stage: Any, k: int, rows: list[Any]) -> list[Any]:
        """The fp32 elements of line k at four rows from each of `rows` on."""
        values = []
        for row in rows:
            at = stage * self.shape.elements + (self.shape.line(k) + row)
            source = cute.make_tensor(self.sX + cute.assume(at, divby=GROUP), cute.make_layout(GROUP))
            rX = cute.make_rmem_tensor(GROUP, cutlass.Float32)
            cute.autovec_copy(source, rX)
            values += [rX[x] for x in range(GROUP)]
        return values
