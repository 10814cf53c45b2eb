# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core mainloop for large outputs: tiles come through registers, fragments are read one k ahead.

A thread reads its share of the next k tile into registers (`fetch`), writes it to shared memory as fp32
(`commit`) and reads fragments of four (or two) rows from there (`fragment`). Shared memory holds a tile as lines of
constant k, so that a fragment is one 16-byte load whichever axis has unit stride in global memory, and so that
neighbouring elements of a fragment lie in registers of either bank: a multiply-add whose three operands share a
bank takes twice as long, which fragments of consecutive k (`simt_tile`) cannot always avoid.

Bank conflicts: when the unit-stride axis is k, neighbouring threads write neighbouring k of a row, i.e.
the same bank of different lines. `line_pad` elements after every vector's lines move them apart: with u
vectors along k a warp writes 32 / u rows, so a pad of 32 / u elements fills all banks (4, what 16-byte loads
need, is the least, and leaves a two-way conflict for single elements).

Synchronisation, with two shared-memory stages, for k tile t:
    before the last k step: every thread writes tile t + 1 to the other stage, whose last readers passed
    the barrier of tile t - 1; then the CTA's barrier; then the fragments of tile t + 1 are read.
Global loads of tile t + 1 are issued at the start of tile t, which lasts about as long as DRAM takes to answer where
few warps share an SM; so tile t + `ahead` is brought into L2 at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import SimtConfig
from cutegemm.config.simt import line_pad
from cutegemm.kernels.cuda_cores.simt_operand import OperandTile
from cutegemm.kernels.cuda_cores.simt_tile import GROUP, Owned
from cutegemm.kernels.host.operand_layouts import NUMERIC, batch_at
from cutegemm.kernels.memory_views import prefetch_line
from cutegemm.kernels.schedule.work import Corner

# bytes of an element in shared memory
BYTES = 4


@dataclass(frozen=True, kw_only=True)
class StagedShape(OperandTile):
    """How the CTA's threads share the loading of an operand's tile. `vector`: elements per global load."""

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
        return int(line_pad(self.depth, self.vector, self.along_k))

    @property
    def elements(self) -> int:
        """fp32 elements of one stage."""
        return self.line(self.depth)

    def line(self, k: Any) -> Any:
        """Where line k starts in a stage. Whole vectors of lines are as far apart everywhere."""
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
    """One operand's loads of a CTA's tiles, one tile after the other, and its fragments."""

    shape: StagedShape
    # (LOADS,) Int64: where this thread's vectors of the tile underway come from, bytes
    rP: cute.Tensor
    # bytes from one k to the next; known at compile time where k has unit stride
    step: Any
    # Int32: where this operand's first stage starts in shared memory, bytes
    start: Any
    # (VECTOR, LOADS), this thread's part of the tile underway
    rX: Any
    # (row, k) of this thread's first vector in the tile
    place: tuple[Any, Any]

    @classmethod
    def create(
        cls, shape: StagedShape, mX: Any, corner: Corner, column: Any, at: tuple[Any, Any]
    ) -> StagedLoad:
        """Loads of rows of the tile that begins at `corner` in mX (rows, k, l), from `column` of k on.

        Rows beyond the matrix repeat its last: what those hold reaches only elements of D that are never stored.

        Args:
            at: (thread, the operand's first stage in shared memory).
        """
        thread, sX = at
        size = shape.matrix.dtype.bytes
        rX = cute.make_rmem_tensor((shape.vector, shape.loads), NUMERIC[shape.matrix.dtype])
        rP = cute.make_rmem_tensor(shape.loads, cutlass.Int64)
        row, k = shape.place(thread)
        last = mX.shape[0] - (1 if shape.along_k else shape.vector)
        for i, (rows, columns) in enumerate(shape.move(i) for i in range(shape.loads)):
            line, gate = shape.source(corner.row, row + rows)
            where = (cutlass.min(line, last), column + (k + columns), batch_at(mX, corner.batch, gate))
            rP[i] = mX.iterator.toint() + cutlass.Int64(cute.crd2idx(where, mX.layout)) * size
        return cls(shape, rP, mX.stride[1] * size, sX.toint(), rX, (row, k))

    @cute.jit
    def fetch_first(self, depth: Any) -> None:
        """Read the first tile, of only `depth` (1 to BLK_K) columns of k; the rest is zero."""
        self.rX.fill(0)
        for i in cutlass.range_constexpr(self.shape.loads):
            if self.place[1] + self.shape.move(i)[1] < depth:
                self._read(i)
        self._advance(cutlass.Int64(depth) * self.step)

    @cute.jit
    def fetch(self, needed: Any) -> None:
        """Read the next tile, of BLK_K columns of k, if `needed`."""
        if needed:
            for i in cutlass.range_constexpr(self.shape.loads):
                self._read(i)
        self._advance(self.shape.depth * self.step)

    def prefetch(self, tiles: int, wanted: Any) -> None:
        """Bring the tile `tiles` after the next one into L2, if `wanted`."""
        distance = cutlass.Int64(tiles * self.shape.depth * self.step)
        for i in range(self.shape.loads):
            prefetch_line(self.rP[i] + distance, wanted)

    def _read(self, i: int) -> None:
        shape = self.shape
        source = cute.make_ptr(
            NUMERIC[shape.matrix.dtype],
            self.rP[i],
            cute.AddressSpace.gmem,
            assumed_align=shape.vector * shape.matrix.dtype.bytes,
        )
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout(shape.vector)), self.rX[None, i])

    def _advance(self, distance: Any) -> None:
        # written out, lest the compiler keep a base and recompute every address in the loop
        for i in range(self.shape.loads):
            self.rP[i] = cute.arch.inline_ptx(
                "add.s64 {$w0}, {$r0}, {$r1};",
                write_only_types=[cutlass.Int64],
                read_only_args=[self.rP[i], cutlass.Int64(distance)],
            )

    def commit(self, stage: Any) -> None:
        """Write what was fetched to the stage that starts `stage` bytes after the first, as fp32."""
        shape = self.shape
        first = self.start + (shape.line(self.place[1]) + self.place[0]) * BYTES + stage
        for i in range(shape.loads):
            rows, k = shape.move(i)
            at = shape.line(k) + rows
            values = self.rX[None, i].load().to(cutlass.Float32)
            if shape.along_k:
                for j in range(shape.vector):
                    write(first, at + j * shape.rows, (values[j],))
            else:
                for j in range(0, shape.vector, GROUP):
                    part = range(j, min(j + GROUP, shape.vector))
                    write(first, at + j, tuple(values[x] for x in part))

    def slice_at(self, slice_: Any, lines: int, row: Any) -> Any:
        """Where row `row` lies in the first of a slice's `lines` lines of the first stage: bytes of shared memory."""
        return self.start + (slice_ * self.shape.line(lines) + row) * BYTES

    def fragment(self, first: Any, k: int, owned: Owned) -> list[Any]:
        """The fp32 elements of a slice's k-th line in the owned rows; `first` is where the first of them lies."""
        return [x for at in owned.offsets for x in _read(first, self.shape.line(k) + at, owned.width)]


@dataclass(frozen=True)
class StagedLoop:
    """The k loop over such loads."""

    config: SimtConfig
    # of A and B
    loads: tuple[StagedLoad, StagedLoad]
    # the thread's rows and columns
    owned: tuple[Owned, Owned]
    # which of the CTA's slices of every tile's K is this warp's
    slice_: Any

    @property
    def _steps(self) -> int:
        """Columns of k of a slice."""
        return self.config.tile[2] // self.config.slices

    @property
    def _stage(self) -> int:
        """Bytes from one stage to the next: A's part, then B's."""
        return sum(load.shape.elements for load in self.loads) * BYTES

    @cute.jit
    def multiply(self, acc: cute.Tensor, part: cutlass.Constexpr) -> None:
        """acc += A tile @ B tile over the slice of `part`, (columns of the first tile, tiles), of K."""
        first, k_tiles = part
        ahead = self.config.ahead
        if k_tiles > 0:
            for load in self.loads:
                load.fetch_first(first)
            for t in cutlass.range_constexpr(1, ahead):
                for load in self.loads:
                    load.prefetch(t - 1, t < k_tiles)
            for load in self.loads:
                load.commit(cutlass.Int32(0))
            cute.arch.sync_threads()  # the first tile is written
            # bytes of shared memory: where the thread reads A and B, and how far on the stage written next is
            places = cute.make_rmem_tensor(3, cutlass.Int32)
            places[2] = cutlass.Int32(self._stage)
            fragments = tuple(cute.make_rmem_tensor(own, cutlass.Float32) for own in self.config.thread_tile)
            for i in cutlass.range_constexpr(2):
                load, owned = self.loads[i], self.owned[i]
                places[i] = load.slice_at(self.slice_, self._steps, owned.first)
                _copy(load.fragment(places[i], 0, owned), fragments[i])
            for t in cutlass.range(k_tiles, unroll=1):
                self._tile(acc, fragments, places, (t + 1 < k_tiles, t + ahead < k_tiles))

    def _tile(self, acc: cute.Tensor, fragments: tuple, places: cute.Tensor, more: tuple) -> None:
        """One k tile. On entry and exit `fragments` hold the next k step's numbers.

        Args:
            acc: (THREAD_M * THREAD_N,), row by row.
            places: (3,) Int32, as above.
            more: whether there is a next tile, and one `ahead` tiles on.
        """
        sums = [acc[x] for x in range(cute.size(acc))]
        a, b = ([r[x] for x in range(cute.size(r))] for r in fragments)
        for load in self.loads:
            load.fetch(more[0])
            if self.config.ahead:
                load.prefetch(self.config.ahead - 2, more[1])
        for step in range(self._steps):
            line = step + 1
            if line == self._steps:
                line, written = 0, places[2]
                for load in self.loads:
                    load.commit(written)
                cute.arch.sync_threads()  # tile t + 1 is written, and every thread has read all of tile t
                for i in range(2):
                    places[i] = places[i] + (2 * written - self._stage)
                places[2] = self._stage - written
            next_a, next_b = (
                load.fragment(places[i], line, self.owned[i]) for i, load in enumerate(self.loads)
            )
            for at, x, y in _in_turns(len(a), len(b)):
                sums[at] = cute.math.fma(a[x], b[y], sums[at])
            a, b = next_a, next_b
        _copy(sums, acc)
        _copy(a, fragments[0])
        _copy(b, fragments[1])


def _in_turns(rows: int, columns: int) -> list[tuple[int, int, int]]:
    """(accumulator, row, column) of an outer product, every second row backwards.

    Neighbours share a row or a column, which the operand collector keeps: no multiply-add then reads three registers
    of one bank.
    """
    order = []
    for x in range(rows):
        for y in range(columns) if x % 2 == 0 else reversed(range(columns)):
            order.append((x * columns + y, x, y))
    return order


def _shared(start: Any, at: int, size: int) -> cute.Tensor:
    """The `size` fp32 of shared memory `at` elements after byte `start`, aligned to their size."""
    ptr = cute.make_ptr(cutlass.Float32, start, cute.AddressSpace.smem, assumed_align=size * BYTES)
    return cute.make_tensor(ptr + cute.assume(at, divby=size), cute.make_layout(size))


def write(start: Any, at: int, values: tuple) -> None:
    """Store up to four fp32 `at` elements after byte `start` of shared memory."""
    rX = cute.make_rmem_tensor(len(values), cutlass.Float32)
    _copy(list(values), rX)
    cute.autovec_copy(rX, _shared(start, at, len(values)))


def _read(start: Any, at: int, size: int) -> list[Any]:
    rX = cute.make_rmem_tensor(size, cutlass.Float32)
    cute.autovec_copy(_shared(start, at, size), rX)
    return [rX[x] for x in range(size)]


def _copy(values: list[Any], target: cute.Tensor) -> None:
    for x, value in enumerate(values):
        target[x] = value
