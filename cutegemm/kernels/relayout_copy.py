# SPDX-License-Identifier: Apache-2.0
"""Copying matrices that TMA cannot address into ones that it can: unit stride, 16-byte-aligned lines.

One launch makes all copies: each has a range of the grid's CTAs, those of matrices with unit stride first.

A line is the unit-stride axis: a row of a row-major source, a column of a column-major one. Its address is
known to be a multiple of the element size only, but its misalignment is the same all along. A thread makes
one 16-byte chunk of the destination: it reads the two aligned 16-byte words of the source that hold those
bytes and shifts them together in registers. Neighbouring lanes share a word, which the L1 cache serves, so
DRAM sees every sector once or, at a warp's edges, twice; writes are whole aligned sectors. A thread has
`CHUNKS` chunks of different lines in flight, as far apart that all begin at the same byte of a word, whatever
the pitch: how to shift is decided once, mostly by a whole warp. No byte outside the matrix's span (its first
to its last element) is read: where a word reaches over the span's ends the chunk is put together from elements.

The launch begins while the one before ends, and waits for it, since that may write the sources or read the copies.
Until then threads that copy lines compute their addresses and, if all CTAs run at once, prefetch into L2 what they will
read. CTAs of later waves do not wait: they would prefetch right before they read. The next launch may begin its
prologue at once; it waits for the copies before it reads them.

Bytes whose copy is contiguous along the other axis are transposed by tiles (`byte_tile`). Any other source without unit
stride, or whose copy is to have another one, goes through shared memory, a tile at a time:
neighbouring threads read along the axis of smaller stride and write along columns. A copy that splits elements into
parts goes this way too: runs of high parts and of low ones alternate along its columns (`tf32_parts`).

Either way the elements between a line's end and the next multiple of 16 bytes are written as zero; what
lies beyond, up to the destination's leading dimension, is left as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.config import L2_LINE, RelayoutConfig
from cutegemm.kernels.host import launch_arguments as launch
from cutegemm.kernels.load import byte_tile
from cutegemm.kernels.load import unaligned_words as words
from cutegemm.kernels.load.tf32_parts import parts
from cutegemm.kernels.memory_views import BITS, REGISTER, WORD, prefetch_line, word_at

THREADS = 256  # per CTA
CHUNKS = 2  # of 16 bytes in flight per thread; with more, small copies have too few CTAs
AT_ONCE = 512  # CTAs that surely run at once
LINES = 16  # bytes: that many lines are elements of one line's whole words apart, whatever the pitch
TILE = 64  # rows and columns of a shared-memory tile


@dataclass(frozen=True)
class Copy:
    """What a launch passes of one copy.

    Attributes:
        addresses: of source and destination, which is 16-byte aligned.
        shape: (rows, columns, batch), all positive.
        source, target: (row, column, batch) strides, elements, none negative. The destination has unit stride along
            the source's axis (columns for "none") and its other strides are multiples of 16 bytes.
    """

    addresses: tuple[Any, Any]
    shape: tuple[Any, Any, Any]
    source: tuple[Any, Any, Any]
    target: tuple[Any, Any, Any]


class Relayout:
    """The driver of one `RelayoutConfig`."""

    def __init__(self, config: RelayoutConfig) -> None:
        self.config = config
        self.numeric = BITS[config.dtype.bytes]
        self.units = config.units
        # ways to copy in the grid's order, and the copies of each
        ways = (
            (self._shift, self._lined, ("col", "row")),
            (byte_tile.transpose, self._turned, ("transposed",)),
            (self._transfer, self._tiled, ("none",)),
        )
        found = ((*how, [i for i, x in enumerate(config.units) if x in units]) for *how, units in ways)
        self.ways = tuple(x for x in found if x[-1])
        self.bytes = config.dtype.bytes  # of an element
        self.per_chunk = WORD // config.dtype.bytes  # elements
        # of a tile in shared memory: one bank more than a row, so that columns spread over the banks
        self.pitch = TILE + REGISTER // config.dtype.bytes

    @cute.jit
    def __call__(self, addresses, shape, strides, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        copies, first = [], cutlass.Int32(0)
        given = self._copies(addresses, shape, strides)
        for _, described, members in self.ways:
            for i in members:
                arguments, ctas = described(given[i], self.units[i])
                copies.append((*arguments, (first,)))
                first = first + ctas
        self.kernel(tuple(copies)).launch(
            grid=(first, 1, 1), block=(THREADS, 1, 1), stream=stream, use_pdl=True
        )

    def _copies(self, addresses: Any, shape: Any, strides: Any) -> list[Copy]:
        """The copies of a launch, in its order."""
        starts = launch.named(self.config, "addresses", addresses)
        extents = launch.named(self.config, "shape", shape)
        steps = launch.named(self.config, "strides", strides)
        return [
            Copy(
                addresses=(starts[f"source.{i}"], starts[f"target.{i}"]),
                shape=(extents[f"rows.{i}"], extents[f"cols.{i}"], extents[f"batch.{i}"]),
                source=steps[f"source.{i}"],
                target=steps[f"target.{i}"],
            )
            for i in range(len(self.units))
        ]

    def _lined(self, copy: Copy, unit: str) -> tuple[tuple, Any]:
        """The arguments of `_shift` for a matrix of unit stride, and its CTAs."""
        rows, cols, batch = copy.shape
        (lines, length), line = ((rows, cols), 0) if unit == "col" else ((cols, rows), 1)
        chunks = (length + (self.per_chunk - 1)) // self.per_chunk
        # log2 of the threads side by side along a line: no more than it has chunks
        spread = cutlass.Int32(0)
        for bit in range(int(math.log2(THREADS * self.bytes // LINES))):
            spread += cutlass.Int32(chunks > (1 << bit))
        at_once = (THREADS * CHUNKS) >> spread  # lines of one CTA
        blocks = ((chunks + (1 << spread) - 1) >> spread, (lines + at_once - 1) // at_once)
        pitches = tuple(x for strides in (copy.source, copy.target) for x in (strides[line], strides[-1]))
        described = (copy.addresses, (lines, length, batch), pitches, (spread, *blocks))
        return described, blocks[0] * blocks[1] * batch

    def _turned(self, copy: Copy, unit: str) -> tuple[tuple, Any]:
        """The arguments of `byte_tile.transpose` for a matrix of bytes, and its CTAs."""
        (_, *source), (line, _, batch) = copy.source, copy.target
        return (copy.addresses, copy.shape, (*source, line, batch)), _tiles(copy, byte_tile.TILE)

    def _tiled(self, copy: Copy, unit: str) -> tuple[tuple, Any]:
        """The arguments of `_transfer` for a matrix without unit stride, and its CTAs."""
        return (copy.addresses, copy.shape, (*copy.source, *copy.target)), _tiles(copy, TILE)

    @cute.kernel
    def kernel(self, copies):
        """One CTA's part of its copy; `copies` in the grid's order, each with its first CTA at the end.

        Every way to copy waits for earlier launches itself, `_shift` after it has computed its addresses.
        """
        block, _, _ = cute.arch.block_idx()
        cute.arch.griddepcontrol_launch_dependents()
        shared = None
        if cutlass.const_expr(not set(self.units) <= {"col", "row"}):
            smem = cutlass.memory.SmemAllocator()
            size = byte_tile.TILE**2 if "transposed" in self.units else 0
            size = max(size, TILE * self.pitch * self.bytes if "none" in self.units else 0)
            layout = cute.make_layout(size // REGISTER)
            shared = smem.allocate_tensor(cutlass.Uint32, layout, WORD).iterator
        self._route(0, copies, shared, block)

    @cute.jit
    def _route(self, place: cutlass.Constexpr[int], copies: Any, shared: Any, block: Any):
        """The CTA's part of its copy, which is of the ways from one on."""
        copy, _, members = self.ways[place]
        if cutlass.const_expr(place + 1 == len(self.ways)):
            copy(shared, *_own(copies, block))
        elif block < copies[len(members)][-1][0]:
            copy(shared, *_own(copies[: len(members)], block))
        else:
            self._route(place + 1, copies[len(members) :], shared, block)

    @cute.jit
    def _shift(self, shared, addresses, shape, pitches, split, block):
        """Copy `CHUNKS` chunks per thread of unit-stride lines.

        Args:
            shape: (lines, elements of a line, batch).
            pitches: from line to line and from batch to batch, of the source, then of the destination; elements.
            split: (log2 of the threads along a line, CTAs along a line, CTAs across lines).
            block: which of the copy's CTAs this is.
        """
        lines, length, batches = shape
        spread, along, across = split
        thread, _, _ = cute.arch.thread_idx()
        batch = cutlass.Int32(0)
        if batches > 1:
            batch = words.quotient(block, along * across)
            block -= batch * (along * across)
        # so many that lines so far apart are whole words apart
        threads_across = THREADS >> spread
        down = words.quotient(block, along)
        first_line = down * (threads_across * CHUNKS) + (thread >> spread)
        element = ((block - down * along << spread) + (thread & ((1 << spread) - 1))) * self.per_chunk
        last = (
            cutlass.Int64(lines - 1) * pitches[0]
            + cutlass.Int64(batches - 1) * pitches[1]
            + cutlass.Int64(length)
        )
        span = (addresses[0], addresses[0] + last * self.bytes)
        at = (
            cutlass.Int64(batch) * pitches[1]
            + cutlass.Int64(first_line) * pitches[0]
            + cutlass.Int64(element)
        )
        to = (
            cutlass.Int64(batch) * pitches[3]
            + cutlass.Int64(first_line) * pitches[2]
            + cutlass.Int64(element)
        )
        source, target = addresses[0] + at * self.bytes, addresses[1] + to * self.bytes
        # bytes from chunk to chunk
        steps = tuple(cutlass.Int64(threads_across) * (x * self.bytes) for x in (pitches[0], pitches[2]))
        low = source & -WORD
        # the thread whose first chunk begins a line of L2, or a line of the matrix, prefetches
        head = cutlass.Boolean(low & (L2_LINE - 1) == 0) | cutlass.Boolean(thread & ((1 << spread) - 1) == 0)
        head &= cutlass.Boolean(element < length) & cutlass.Boolean(cute.arch.grid_dim()[0] <= AT_ONCE)
        for i in cutlass.range_constexpr(CHUNKS):
            exists = cutlass.Boolean(first_line + i * threads_across < lines)
            prefetch_line(source + i * steps[0], head & exists)
        cute.arch.griddepcontrol_wait()
        within = cutlass.Boolean(low >= span[0])
        within &= cutlass.Boolean(low + (CHUNKS - 1) * steps[0] + 2 * WORD <= span[1])
        within &= cutlass.Boolean(first_line + (CHUNKS - 1) * threads_across < lines)
        within &= cutlass.Boolean(element < length)
        if within:
            self._shift_all((source, target), steps, length - element)
        elif element < length:
            for i in cutlass.range(CHUNKS, unroll=1):
                if first_line + i * threads_across < lines:
                    self._shift_one((source, target), span, length - element)
                source += steps[0]
                target += steps[1]

    @cute.jit
    def _shift_all(self, places: Any, steps: Any, count: Any) -> None:
        """Copy a thread's chunks, all of whose words lie in the source's span.

        Args:
            places: addresses of the first in the source and the destination; steps: from one to the next.
            count: elements from each chunk's first to its line's end.
        """
        source, target = places
        # two words each; all are requested before one is used
        read = [_two_words((source & -WORD) + i * steps[0]) for i in range(CHUNKS)]
        rD = [cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32) for _ in range(CHUNKS)]
        self._shift_from((0, 2 * REGISTER, REGISTER), read, rD, cutlass.Int32(source & (WORD - 1)))
        if count < self.per_chunk:
            for i in cutlass.range_constexpr(CHUNKS):
                words.clear(rD[i], count, self.bytes)
        for i in cutlass.range_constexpr(CHUNKS):
            cute.autovec_copy(rD[i], word_at(target + i * steps[1]))

    @cute.jit
    def _shift_from(self, bits: cutlass.Constexpr, read: Any, found: Any, offset: Any):
        """Shift chunks whose first register is `bits[0]`, plus those that the other bits of `offset` say."""
        first, *left = bits
        if cutlass.const_expr(len(left) == 0):
            for rW, rD in zip(read, found, strict=True):
                words.chunk(rW, first, offset, self.bytes, rD)
        elif (offset & left[0]) != 0:
            self._shift_from((first + left[0] // REGISTER, *left[1:]), read, found, offset)
        else:
            self._shift_from((first, *left[1:]), read, found, offset)

    @cute.jit
    def _shift_one(self, places: Any, span: Any, count: Any) -> None:
        """Copy one chunk, of whose elements `count` are the line's, wherever it lies."""
        source, target = places
        rD = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
        words.anywhere(source, span, count, self.numeric, rD)
        words.clear(rD, count, self.bytes)
        cute.autovec_copy(rD, word_at(target))

    @cute.jit
    def _transfer(self, shared, addresses, shape, strides, block):
        """Copy one TILE x TILE tile, the copy's `block`-th, of a source without unit stride."""
        cute.arch.griddepcontrol_wait()
        layout = cute.make_layout((TILE, TILE), stride=(self.pitch, 1))
        sX = cute.make_tensor(cute.recast_ptr(shared, dtype=self.numeric), layout)  # (ROWS, COLS)
        rows, cols, _ = shape
        thread, _, _ = cute.arch.thread_idx()
        along, across = (cols + (TILE - 1)) // TILE, (rows + (TILE - 1)) // TILE
        batch = block // (along * across)
        block -= batch * (along * across)
        row0, col0 = block // along * TILE, block % along * TILE
        ptr = cute.make_ptr(self.numeric, addresses[0], cute.AddressSpace.gmem, assumed_align=self.bytes)
        mX = cute.make_tensor(ptr, cute.make_layout(shape, stride=strides[0:3]))  # (rows, cols, batch)
        rX = cute.make_rmem_tensor(TILE * TILE // THREADS, self.numeric)
        rX.fill(0)
        by_rows = strides[0] < strides[1]  # neighbouring threads read neighbouring rows
        slow0, fast = thread // TILE, thread % TILE
        for i in cutlass.range_constexpr(TILE * TILE // THREADS):
            slow = slow0 + i * (THREADS // TILE)
            row, col = (
                row0 + cutlass.select_(by_rows, fast, slow),
                col0 + cutlass.select_(by_rows, slow, fast),
            )
            if row < rows and col < cols:
                rX[i] = mX[row, col, batch]
        for i in cutlass.range_constexpr(TILE * TILE // THREADS):
            slow = slow0 + i * (THREADS // TILE)
            sX[cutlass.select_(by_rows, fast, slow), cutlass.select_(by_rows, slow, fast)] = rX[i]
        cute.arch.sync_threads()  # the tile is written
        chunks = TILE // self.per_chunk  # of a tile's row
        for i in cutlass.range_constexpr(TILE * chunks // THREADS):
            row, col = (thread + i * THREADS) // chunks, (thread + i * THREADS) % chunks * self.per_chunk
            rD = cute.make_rmem_tensor(self.per_chunk, self.numeric)
            for x in cutlass.range_constexpr(self.per_chunk):
                rD[x] = sX[row, col + x]
            if cutlass.const_expr(self.config.run > 0):
                if (
                    row0 + row < rows
                    and col0 + col < (cols + (self.config.run - 1)) // self.config.run * self.config.run
                ):
                    line = cutlass.Int64(row0 + row) * strides[3] + cutlass.Int64(batch) * strides[5]
                    self._split(rD, addresses[1] + line * self.bytes, col0 + col)
            elif row0 + row < rows and col0 + col < cols:
                at = cutlass.Int64(row0 + row) * strides[3] + cutlass.Int64(batch) * strides[5] + (col0 + col)
                cute.autovec_copy(rD, word_at(addresses[1] + at * self.bytes, numeric=self.numeric))

    @cute.jit
    def _split(self, rX: cute.Tensor, line: Any, column: Any) -> None:
        """Store a chunk's high parts in their run of a line, and its low parts in the run behind (`tf32_parts`)."""
        run = self.config.run
        rL = cute.make_rmem_tensor(self.per_chunk, self.numeric)
        for x in cutlass.range_constexpr(self.per_chunk):
            high, low = parts(rX[x])
            rX[x], rL[x] = high, low
        place = line + (cutlass.Int64(column // run * (2 * run) + column % run)) * self.bytes
        cute.autovec_copy(rX, word_at(place, numeric=self.numeric))
        cute.autovec_copy(rL, word_at(place + run * self.bytes, numeric=self.numeric))


def _own(copies: Any, block: Any) -> tuple:
    """What describes the copy whose CTA `block` is, and the number of the CTA among that copy's."""
    chosen = copies[0]
    for other in copies[1:]:
        here = block >= other[-1][0]
        chosen = tuple(
            tuple(cutlass.select_(here, y, x) for x, y in zip(mine, its, strict=True))
            for mine, its in zip(chosen, other, strict=True)
        )
    return (*chosen[:-1], block - chosen[-1][0])


def _tiles(copy: Copy, size: int) -> Any:
    """Square tiles of a copy."""
    rows, cols, batch = copy.shape
    return ((rows + (size - 1)) // size) * ((cols + (size - 1)) // size) * batch


def _two_words(low: Any) -> cute.Tensor:
    """The aligned word at `low` and the one after it."""
    rW = cute.make_rmem_tensor(2 * WORD // REGISTER, cutlass.Uint32)
    half = cute.make_layout(WORD // REGISTER)
    for x in range(2):
        place = cute.make_tensor(rW.iterator + x * (WORD // REGISTER), half)
        cute.autovec_copy(word_at(low + x * WORD), place)
    return rW
