# SPDX-License-Identifier: Apache-2.0
"""One fp32 operand of the CUDA-core pipeline on its way from global memory to a thread's registers.

Threads copy their shares of a k tile into a stage of a pipeline in shared memory (`issue`: cp.async of 4, 8 or 16
bytes) and read fragments from there (`fragment`). A stage holds a tile in one of two layouts, so that fragments are
always 16-byte loads:

    lines   of constant k, padded by 4 elements where copies lie along k. A load brings four rows of one k.
            For operands with unit stride along M or N, and for any that is copied element by element.
    rows    of consecutive k. A load brings four k of one row. For operands with unit stride along k whose
            alignment allows copies of 8 or 16 bytes: nothing is transposed on the way.

Bank conflicts: within each half of a warp two lanes that differ in one of the low two bits read the same
address, so a half is served at once if its distinct addresses, at most eight, lie in different groups of four
banks. Neighbouring lanes own groups of four rows. In lines these lie side by side. In rows, chunk c (four k)
of row r is stored as chunk c ^ (r / 4 mod chunks), so that lanes with the same c, four rows apart, spread.
Copies along k in lines go to eight k of four rows at once, which the pad spreads over all banks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config.simt import copy_lanes, copy_pitch
from cutegemm.kernels.cuda_cores.simt_operand import OperandTile
from cutegemm.kernels.host.operand_layouts import NUMERIC, batch_at
from cutegemm.kernels.load.unaligned_words import copy_async
from cutegemm.kernels.memory_views import act_if
from cutegemm.kernels.schedule.work import Corner

# Rows (in lines) or k (in rows) that one 16-byte shared load brings to a thread.
GROUP = 4
# k that neighbouring threads copy side by side into lines: 32 bytes, a sector of fp32.
SECTOR = 8
# 16-byte chunks of all banks together.
CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class TileShape(OperandTile):
    """How the CTA's threads share the copying of an operand's tile into a pipeline. `vector`: elements per copy."""

    @property
    def by_rows(self) -> bool:
        """Whether a stage holds rows of consecutive k, not lines of constant k."""
        return self.along_k and self.vector > 1

    @property
    def pitch(self) -> int:
        """Elements from one line, or row, to the next."""
        return int(copy_pitch(self.rows, self.depth, self.vector, self.along_k))

    @property
    def chunks(self) -> int:
        """Chunks of a row that change places."""
        return min(self.depth // GROUP, CHUNKS)

    @property
    def elements(self) -> int:
        """fp32 elements of one stage."""
        return self.pitch * (self.rows if self.by_rows else self.depth)

    @property
    def extents(self) -> tuple[int, int]:
        """Copies of a tile along the axis of unit stride and along the other."""
        if self.along_k:
            return self.depth // self.vector, self.rows
        return self.rows // self.vector, self.depth

    @property
    def lanes(self) -> int:
        """Threads side by side along the axis of unit stride."""
        return int(copy_lanes(self.rows, self.depth, self.threads, self.vector, self.along_k))

    @property
    def copies(self) -> int:
        """Copies that each thread makes per tile; where there are fewer than threads, the first threads make one."""
        fast, slow = self.extents
        return max(1, fast * slow // self.threads)

    def at(self, row: Any, k: Any) -> Any:
        """Where element (row, k) lies in a stage."""
        if not self.by_rows:
            return k * self.pitch + row
        return row * self.pitch + ((k // GROUP) ^ (row // GROUP % self.chunks)) * GROUP + k % GROUP

    def place(self, thread: Any) -> tuple[Any, Any]:
        """(row, k) within the tile of a thread's first copy."""
        along, across = thread % self.lanes * self.vector, thread // self.lanes
        return (across, along) if self.along_k else (along, across)

    def move(self, i: int) -> tuple[int, int]:
        """(rows, k) from a thread's first copy to its i-th."""
        blocks = self.extents[0] // self.lanes
        along, across = i % blocks * self.lanes * self.vector, i // blocks * (self.threads // self.lanes)
        return (across, along) if self.along_k else (along, across)


@dataclass(frozen=True)
class Owned:
    """A thread's rows (or columns) of a tile: `width` from each of `first` + `offsets` on, all multiples of it."""

    first: Any
    offsets: tuple[int, ...]
    # neighbours from each offset on
    width: int = GROUP

    def group(self, i: int) -> Owned:
        """The i-th four alone."""
        return Owned(self.first, self.offsets[i : i + 1], self.width)

    @property
    def groups(self) -> list[Any]:
        """The first row of each four."""
        return [self.first + offset for offset in self.offsets]


@dataclass(frozen=True)
class TileLoad:
    """One operand's copies of a CTA's tiles, one tile after the other, and its fragments."""

    shape: TileShape
    # (COPIES,) Int64: where this thread's copies of the next tile come from, bytes
    rP: cute.Tensor
    # bytes from one k to the next
    step: Any
    # (elements * STAGE,) fp32 in shared memory
    sX: Any
    # (row, k) of this thread's first copy in the tile
    first: tuple[Any, Any]
    # whether the thread copies at all, or None where all do
    active: Any

    @staticmethod
    def create(shape: TileShape, mX: Any, corner: Corner, k: Any, at: tuple[Any, Any]) -> TileLoad:
        """Copies of rows of the tile that begins at `corner` in mX (rows, k, l), from column `k` on.

        Rows beyond the matrix repeat its last: what those hold reaches only elements of D that are never stored.

        Args:
            at: (thread, the pipeline in shared memory).
        """
        thread, sX = at
        row, column = shape.place(thread)
        size = shape.matrix.dtype.bytes
        last = mX.shape[0] - (1 if shape.along_k else shape.vector)
        rP = cute.make_rmem_tensor(shape.copies, cutlass.Int64)
        for i in range(shape.copies):
            rows, columns = shape.move(i)
            line, gate = shape.source(corner.row, row + rows)
            where = (cutlass.min(line, last), k + (column + columns), batch_at(mX, corner.batch, gate))
            rP[i] = mX.iterator.toint() + cute.crd2idx(where, mX.layout) * size
        count = shape.extents[0] * shape.extents[1]
        active = thread < count if count < shape.threads else None
        step = cutlass.Int64(mX.stride[1]) * size
        return TileLoad(shape, rP, step, sX, (row, column), active)

    def issue(self, stage: Any, depth: Any = None) -> None:
        """Copy the next tile of BLK_K columns of k into `stage`.

        Args:
            depth: columns that the tile really has, 1 to BLK_K; the rest is zero. None is BLK_K.
        """
        act_if(self.active, functools.partial(self._issue, stage, depth))

    def _issue(self, stage: Any, depth: Any) -> None:
        shape = self.shape
        size = shape.vector * shape.matrix.dtype.bytes
        advance = (shape.depth if depth is None else cutlass.Int64(depth)) * self.step
        for i in range(shape.copies):
            rows, k = shape.move(i)
            source = cute.make_ptr(
                NUMERIC[shape.matrix.dtype], self.rP[i], cute.AddressSpace.gmem, assumed_align=size
            )
            used = None
            if depth is not None:
                wanted = self.first[1] + k < depth
                used = cutlass.select_(wanted, cutlass.Int32(size), cutlass.Int32(0))
            place = stage * shape.elements + shape.at(self.first[0] + rows, self.first[1] + k)
            copy_async(source, self.sX + place, size, used)
            self.rP[i] = self.rP[i] + advance

    def fragment(self, stage: Any, k: Any, owned: Owned) -> list[list[Any]]:
        """The fp32 elements of the owned rows at each of k to k + 3, k a multiple of four.

        `stage` is where the stage starts.
        """
        shape, load = self.shape, lambda at: read(four(self.sX, at))
        if not shape.by_rows:
            first = stage + owned.first + k * shape.pitch
            return [
                [x for offset in owned.offsets for x in load(first + (line * shape.pitch + offset))]
                for line in range(GROUP)
            ]
        # The chunk depends on the row only through its number of fours, so most rows share one address.
        found = []
        first = stage + owned.first * shape.pitch
        places: dict[int, Any] = {}
        for offset in owned.offsets:
            turn = offset // GROUP % shape.chunks
            if turn not in places:
                places[turn] = first + ((k // GROUP) ^ ((owned.first // GROUP + turn) % shape.chunks)) * GROUP
            found += [load(places[turn] + (offset + x) * shape.pitch) for x in range(GROUP)]
        return [list(line) for line in zip(*found, strict=True)]


def four(start: Any, at: Any) -> cute.Tensor:
    """Four neighbours from the at-th element on; `at` is a multiple of four."""
    return cute.make_tensor(start + cute.assume(at, divby=GROUP), cute.make_layout(GROUP))


def read(source: cute.Tensor) -> list[Any]:
    """The fp32 elements of a vector, read by one access."""
    rX = cute.make_rmem_tensor(cute.size(source), cutlass.Float32)
    cute.autovec_copy(source, rX)
    return [rX[x] for x in range(cute.size(source))]
