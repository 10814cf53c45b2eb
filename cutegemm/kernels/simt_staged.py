# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core mainloop for large outputs: tiles come through registers, fragments are read one k ahead.

A thread reads its share of the next k tile into registers (`fetch`), writes it to shared memory as fp32
(`commit`) and reads fragments of four rows from there (`fragment`). Shared memory holds a tile as lines of
constant k, so that a fragment is one 16-byte load whichever axis has unit stride in global memory, and so that
neighbouring elements of a fragment lie in registers of either bank: a multiply-add whose three operands share a
bank takes twice as long, which fragments of consecutive k (`simt_tile`) cannot always avoid.

Bank conflicts: when the unit-stride axis is k, neighbouring threads write neighbouring k of a row, i.e.
the same bank of different lines. `PAD` elements after every vector's lines move them apart: with u vectors
along k a warp writes 32 / u rows, so a pad of 32 / u elements fills all banks (4, what 16-byte loads need,
is the least, and leaves a two-way conflict for single elements).

Synchronisation, with two shared-memory stages, for k tile t:
    before the last k step: every thread writes tile t + 1 to the other stage, whose last readers passed
    the barrier of tile t - 1; then the CTA's barrier; then the fragments of tile t + 1 are read.
Global loads of tile t + 1 are issued at the start of tile t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import SimtConfig
from cutegemm.kernels.operands import NUMERIC, batch_at
from cutegemm.kernels.simt_operand import OperandTile
from cutegemm.kernels.simt_tile import GROUP, Owned

# shared-memory tiles per operand: one is computed on while the next is written
STAGES = 2


@dataclass(frozen=True, kw_only=True)
class StagedShape(OperandTile):
    """How the CTA's threads share the loading of an operand's tile. `vector`: elements per global load."""

    @property
    def fits(self) -> bool:
        """Whether the threads can share the loads evenly."""
        whole = self.rows * self.depth % (self.vector * self.threads) == 0
        return whole and max(self.lanes, self.threads) % min(self.lanes, self.threads) == 0

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

    def move(self, i: int) -> tuple[int, int]:
        """(rows, k) from a thread's first vector to its i-th."""
        if self.threads % self.lanes == 0:
            across, along = i * (self.threads // self.lanes), 0
        else:
            repeats = self.lanes // self.threads
            across, along = i // repeats, i % repeats * self.threads * self.vector
        return (across, along) if self.along_k else (along, across)


@dataclass(frozen=True)
class StagedLoad:
    """One operand's loads."""

    shape: StagedShape
    # global memory: the batch's matrix at the CTA's first column of k, aligned to a vector
    pX: Any
    # of this thread's vectors, Int64 elements
    offsets: tuple
    # stride along k, elements
    step: Any
    # (elements * STAGES,) fp32 in shared memory
    sX: Any
    # (VECTOR, LOADS), this thread's part of the tile underway
    rX: Any
    # (row, k) of this thread's first vector in the tile
    place: tuple[Any, Any]

    @staticmethod
    def create(
        shape: StagedShape, mX: Any, tile: tuple[Any, Any], column: Any, at: tuple[Any, Any]
    ) -> StagedLoad:
        """Loads of rows [tile * ROWS, (tile + 1) * ROWS) of mX (rows, k, l) from `column` of k on.

        Rows beyond the matrix repeat its last: what those hold reaches only elements of D that are never stored.

        Args:
            tile: (number of the tile, batch).
            at: (thread, the stages in shared memory).
        """
        thread, sX = at
        rX = cute.make_rmem_tensor((shape.vector, shape.loads), NUMERIC[shape.matrix.dtype])
        row, k = shape.place(thread)
        last = mX.shape[0] - (1 if shape.along_k else shape.vector)
        offsets = []
        for rows, columns in (shape.move(i) for i in range(shape.loads)):
            line, gate = shape.source(tile[0], row + rows)
            inside = cutlass.min(line, last)
            offsets.append(cute.crd2idx((inside, k + columns, batch_at(mX, tile[1], gate)), mX.layout))
        base = mX.iterator + cute.assume(cutlass.Int64(column) * mX.stride[1], divby=shape.vector)
        return StagedLoad(shape, base, tuple(offsets), mX.stride[1], sX, rX, (row, k))

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

    def fragment(self, stage: Any, k: int, owned: Owned) -> list[Any]:
        """The fp32 elements of line k at the owned rows."""
        values = []
        for row in owned.groups:
            at = stage * self.shape.elements + (self.shape.line(k) + row)
            source = cute.make_tensor(self.sX + cute.assume(at, divby=GROUP), cute.make_layout(GROUP))
            rX = cute.make_rmem_tensor(GROUP, cutlass.Float32)
            cute.autovec_copy(source, rX)
            values += [rX[x] for x in range(GROUP)]
        return values


@dataclass(frozen=True)
class StagedLoop:
    """The k loop over such loads."""

    config: SimtConfig
    # of A and B
    loads: tuple[StagedLoad, StagedLoad]
    # the thread's rows and columns
    owned: tuple[Owned, Owned]

    @cute.jit
    def multiply(self, acc: cute.Tensor, part: cutlass.Constexpr) -> None:
        """acc += A tile @ B tile over `part`, (columns of the first tile, tiles), of K (none without tiles)."""
        first, k_tiles = part
        depth = self.config.tile[2]
        if k_tiles > 0:
            for load in self.loads:
                load.fetch_first(first)
                load.commit(cutlass.Int32(0))
            cute.arch.sync_threads()  # the first tile is written
            fragments = tuple(cute.make_rmem_tensor(own, cutlass.Float32) for own in self.config.thread_tile)
            for load, owned, fragment in zip(self.loads, self.owned, fragments):
                _copy(load.fragment(cutlass.Int32(0), 0, owned), fragment)
            for t in cutlass.range(k_tiles, unroll=1):
                self._tile(acc, fragments, (t % 2, first + t * depth, t + 1 < k_tiles))

    def _tile(self, acc: cute.Tensor, fragments: tuple, position: tuple) -> None:
        """One k tile. On entry and exit `fragments` hold the next k step's numbers.

        Args:
            acc: (THREAD_M * THREAD_N,), row by row.
            position: (stage, first k of the next tile, whether there is a next tile).
        """
        stage, next_k, more = position
        depth = self.config.tile[2]
        sums = [acc[x] for x in range(cute.size(acc))]
        a, b = ([r[x] for x in range(cute.size(r))] for r in fragments)
        for load in self.loads:
            load.fetch(next_k, more)
        for step in range(depth):
            reading, line = stage, step + 1
            if step == depth - 1:
                reading, line = 1 - stage, 0
                for load in self.loads:
                    load.commit(reading)
                cute.arch.sync_threads()  # tile t + 1 is written, and every thread has read all of tile t
            next_a, next_b = (
                load.fragment(reading, line, owned)
                for load, owned in zip(self.loads, self.owned, strict=True)
            )
            for i, x in enumerate(a):
                for j, y in enumerate(b):
                    at = i * len(b) + j
                    sums[at] = cute.math.fma(x, y, sums[at])
            a, b = next_a, next_b
        _copy(sums, acc)
        _copy(a, fragments[0])
        _copy(b, fragments[1])


def _copy(values: list[Any], target: cute.Tensor) -> None:
    for x, value in enumerate(values):
        target[x] = value
