# SPDX-License-Identifier: Apache-2.0
"""Copying matrices that TMA cannot address into ones that it can: unit stride, 16-byte-aligned lines.

One launch makes all copies: each has a range of the grid's CTAs, those of matrices with unit stride first.

A line is the unit-stride axis: a row of a row-major source, a column of a column-major one. Its address is
known to be a multiple of the element size only, but its misalignment is the same all along. A thread makes
one 16-byte chunk of the destination: it reads the two aligned 16-byte words of the source that hold those
bytes and shifts them together in registers. Neighbouring lanes share a word, which the L1 cache serves, so
DRAM sees every sector once or, at a warp's edges, twice; writes are whole aligned sectors. A thread has
`CHUNKS` chunks of different lines in flight. No byte outside the matrix's span (its first to its last
element) is read: where a word reaches over the span's ends the chunk is put together from elements.

A source without unit stride goes through shared memory, a tile at a time: neighbouring threads read along
the axis of smaller stride and write along columns.

Either way the elements between a line's end and the next multiple of 16 bytes are written as zero; what
lies beyond, up to the destination's leading dimension, is left as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute

from cutegemm.config import RelayoutConfig
from cutegemm.kernels import launch, words
from cutegemm.kernels.words import REGISTER, WORD

THREADS = 256  # per CTA
CHUNKS = 4  # of 16 bytes in flight per thread: 32 KiB per SM at half occupancy, twice what DRAM latency hides
MAX_SPREAD = 5  # log2 of a warp's lanes
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
        self.numeric = {2: cutlass.Uint16, 4: cutlass.Uint32}[config.dtype.bytes]
        self.units = config.units
        # copies in the grid's order: those of unit stride, then the others
        self.shifted = tuple(i for i, unit in enumerate(config.units) if unit != "none")
        self.order = (*self.shifted, *(i for i, unit in enumerate(config.units) if unit == "none"))
        self.bytes = config.dtype.bytes  # of an element
        self.per_chunk = WORD // config.dtype.bytes  # elements

    @cute.jit
    def __call__(self, addresses, shape, strides, stream: cuda.CUstream):
        """Launch; the arguments are those of `launch_layout`."""
        copies, first = [], cutlass.Int32(0)
        given = self._copies(addresses, shape, strides)
        for i in self.order:
            unit = self.units[i]
            described, ctas = self._tiled(given[i]) if unit == "none" else self._lined(given[i], unit)
            copies.append((*described, (first,)))
            first = first + ctas
        self.kernel(tuple(copies)).launch(grid=(first, 1, 1), block=(THREADS, 1, 1), stream=stream)

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
        for bit in range(MAX_SPREAD):
            spread += cutlass.Int32(chunks > (1 << bit))
        at_once = (THREADS * CHUNKS) >> spread  # lines of one CTA
        blocks = ((chunks + (1 << spread) - 1) >> spread, (lines + at_once - 1) // at_once)
        pitches = tuple(x for strides in (copy.source, copy.target) for x in (strides[line], strides[-1]))
        described = (copy.addresses, (lines, length, batch), pitches, (spread, *blocks))
        return described, blocks[0] * blocks[1] * batch

    def _tiled(self, copy: Copy) -> tuple[tuple, Any]:
        """The arguments of `_transfer` for a matrix without unit stride, and its CTAs."""
        rows, cols, batch = copy.shape
        tiles = ((rows + (TILE - 1)) // TILE) * ((cols + (TILE - 1)) // TILE) * batch
        return (copy.addresses, copy.shape, (*copy.source, *copy.target)), tiles

    @cute.kernel
    def kernel(self, copies):
        """One CTA's part of its copy; `copies` in the grid's order, each with its first CTA at the end."""
        block, _, _ = cute.arch.block_idx()
        count = len(self.shifted)
        if cutlass.const_expr(count == len(self.units)):
            self._shift(*_own(copies, block))
        else:
            smem = cutlass.memory.SmemAllocator()
            # one bank more than a row, so that columns spread over the banks
            pitch = TILE + REGISTER // self.bytes
            # (ROWS, COLS)
            sX = smem.allocate_tensor(self.numeric, cute.make_layout((TILE, TILE), stride=(pitch, 1)), WORD)
            if cutlass.const_expr(count == 0):
                self._transfer(sX, *_own(copies, block))
            elif block < copies[count][-1][0]:
                self._shift(*_own(copies[:count], block))
            else:
                self._transfer(sX, *_own(copies[count:], block))

    @cute.jit
    def _shift(self, addresses, shape, pitches, split, block):
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
        batch = block // (along * across)
        block -= batch * (along * across)
        threads_across = THREADS >> spread
        first_line = block // along * (threads_across * CHUNKS) + (thread >> spread)
        element = ((block % along << spread) + (thread & ((1 << spread) - 1))) * self.per_chunk
        last = (
            cutlass.Int64(lines - 1) * pitches[0]
            + cutlass.Int64(batches - 1) * pitches[1]
            + cutlass.Int64(length)
        )
        span = (addresses[0], addresses[0] + last * self.bytes)
        source = addresses[0] + (cutlass.Int64(batch) * pitches[1] + cutlass.Int64(element)) * self.bytes
        target = addresses[1] + (cutlass.Int64(batch) * pitches[3] + cutlass.Int64(element)) * self.bytes
        # (8, CHUNKS), two words each
        rW = cute.make_rmem_tensor((2 * WORD // REGISTER, CHUNKS), cutlass.Uint32)
        for i in cutlass.range_constexpr(CHUNKS):
            line = first_line + i * threads_across
            low, high = _words(source + cutlass.Int64(line) * pitches[0] * self.bytes)
            if line < lines and element < length and low >= span[0] and high + WORD <= span[1]:
                cute.autovec_copy(_global(cutlass.Uint32, low), cute.make_tensor(rW[None, i].iterator, 4))
                cute.autovec_copy(
                    _global(cutlass.Uint32, high), cute.make_tensor(rW[None, i].iterator + 4, 4)
                )
        for i in cutlass.range_constexpr(CHUNKS):
            line = first_line + i * threads_across
            if line < lines and element < length:
                address = source + cutlass.Int64(line) * pitches[0] * self.bytes
                low, high = _words(address)
                rD = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
                if low >= span[0] and high + WORD <= span[1]:
                    words.align([rW[x, i] for x in range(2 * WORD // REGISTER)], address, self.bytes, rD)
                else:
                    self._gather(address, length - element, rD)
                if element + self.per_chunk > length:
                    words.clear(rD, length - element, self.bytes)
                out = target + cutlass.Int64(line) * pitches[2] * self.bytes
                cute.autovec_copy(rD, _global(cutlass.Uint32, out))

    @cute.jit
    def _gather(self, address: Any, count: Any, rD: cute.Tensor) -> None:
        """rD = the `count` elements from `address` on, as far as they fit, read one by one."""
        rX = cute.make_rmem_tensor(self.per_chunk, self.numeric)
        rX.fill(0)
        ptr = cute.make_ptr(self.numeric, address, cute.AddressSpace.gmem, assumed_align=self.bytes)
        gX = cute.make_tensor(ptr, self.per_chunk)
        for x in cutlass.range_constexpr(self.per_chunk):
            if x < count:
                rX[x] = gX[x]
        rD.store(cute.recast_tensor(rX, cutlass.Uint32).load())

    @cute.jit
    def _transfer(self, sX, addresses, shape, strides, block):
        """Copy one TILE x TILE tile, the copy's `block`-th, of a source without unit stride."""
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
            if row0 + row < rows and col0 + col < cols:
                at = cutlass.Int64(row0 + row) * strides[3] + cutlass.Int64(batch) * strides[5] + (col0 + col)
                cute.autovec_copy(rD, _global(self.numeric, addresses[1] + at * self.bytes))


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


def _words(address: Any) -> tuple[Any, Any]:
    """The aligned words that hold the first and the last of the 16 bytes from `address` on."""
    return address & -WORD, (address + (WORD - 1)) & -WORD


def _global(numeric: Any, address: Any) -> cute.Tensor:
    """The aligned 16 bytes of global memory at `address`."""
    ptr = cute.make_ptr(numeric, address, cute.AddressSpace.gmem, assumed_align=WORD)
    return cute.make_tensor(ptr, WORD * 8 // numeric.width)
