# SPDX-License-Identifier: Apache-2.0
"""A tile of bytes that is transposed on its way from one matrix to another.

Lines of the source are contiguous and begin at any address, those of the destination at multiples of 16 bytes. A
thread reads 16 bytes of each of four neighbouring lines, from the aligned words that hold them. Where these do not all
lie in the source, it reads byte by byte. It transposes 4 x 4 bytes at a time in registers, 8 prmt for 16 bytes, and
writes words of four lines into shared memory; 16 bytes of a line of the destination are read back at once.

    read    lane = (line / 4 % 4, chunk of the line): four lines, 128 bytes of each
    write   word w of row r lies in chunk (w / 4) ^ (r / 16 % 8) of the row: a warp's words have a bank each
    read    lane = (row, chunk): eight lanes read a row, which is all banks
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.load import unaligned_words as words
from cutegemm.kernels.load.unaligned_words import REGISTER, WORD

TILE = 128  # bytes: rows and columns
SHIFT = 7  # the tile's logarithm
LINES = 4  # of the source that a thread reads: the bytes of a register
QUAD = WORD // REGISTER  # registers of 16 bytes
ROW = TILE // REGISTER  # registers of a row in shared memory
CHUNKS = TILE // WORD  # of 16 bytes, of a row
GROUPS = TILE // LINES  # of four lines; threads are CHUNKS x GROUPS
# what prmt selects of two registers: their lower and upper bytes in turn, then their lower and upper halves
BYTES, HALVES = (0x5140, 0x7362), (0x5410, 0x7632)


@cute.jit
def transpose(sT: Any, addresses: Any, shape: Any, pitches: Any, block: Any):
    """Copy one tile, the copy's `block`-th.

    Args:
        sT: a pointer to TILE * TILE bytes of shared memory, Uint32.
        addresses: of source and destination.
        shape: (rows, columns, batch). Rows are adjacent in the source, columns in the destination.
        pitches: from column to column and from batch to batch of the source, from row to row and from batch to batch of
            the destination; bytes.
        block: the tiles of a line of the source follow one another.
    """
    rows, cols, batches = shape
    thread, _, _ = cute.arch.thread_idx()
    # numbers that are not negative: shifts, and quotients of unsigned ones, take less
    down, along = (rows + (TILE - 1)) >> SHIFT, (cols + (TILE - 1)) >> SHIFT
    batch = cutlass.Int32(0)
    if batches > 1:
        batch = words.quotient(block, down * along)
        block -= batch * (down * along)
    tile = words.quotient(block, down)
    row0, col0 = block - tile * down << SHIFT, tile << SHIFT
    chunk, group = thread & (CHUNKS - 1), thread >> CHUNKS.bit_length() - 1
    row, col = row0 + chunk * WORD, col0 + group * LINES
    rX = cute.make_rmem_tensor((QUAD, LINES), cutlass.Uint32)  # (REGISTER, LINE)
    rX.fill(0)
    if row < rows and col < cols:
        last = cutlass.Int64(cols - 1) * pitches[0] + cutlass.Int64(batches - 1) * pitches[1] + rows
        span = (addresses[0], addresses[0] + last)
        source = addresses[0] + cutlass.Int64(batch) * pitches[1] + cutlass.Int64(col) * pitches[0] + row
        end = source + (LINES - 1) * pitches[0] + (WORD - 1) & -WORD
        if col + LINES <= cols and (source & -WORD) >= span[0] and end + WORD <= span[1]:
            _read(source, pitches[0], rX)
        else:
            for i in cutlass.range_constexpr(LINES):
                if col + i < cols:
                    words.anywhere(source + i * pitches[0], span, rows - row, cutlass.Uint8, rX[None, i])
    place = chunk * (WORD * ROW) + ((group >> 2) ^ chunk) * QUAD + (group & 3)
    for x in cutlass.range_constexpr(QUAD):
        turned = _turned([rX[x, i] for i in range(LINES)])
        for i in cutlass.range_constexpr(REGISTER):
            (sT + place + (x * REGISTER + i) * ROW).store(turned[i])
    cute.arch.sync_threads()  # the tile is written
    row, col = row0 + group, col0 + chunk * WORD
    target = addresses[1] + cutlass.Int64(batch) * pitches[3] + cutlass.Int64(row) * pitches[2] + col
    if col < cols:
        for i in cutlass.range_constexpr(TILE // GROUPS):
            at = (group + i * GROUPS) * ROW + (chunk ^ (group >> 4) + i * (GROUPS // WORD)) * QUAD
            if row + i * GROUPS < rows:
                sD = cute.make_tensor((sT + at).align(WORD), QUAD)
                cute.autovec_copy(sD, words.word(cutlass.Uint32, target + i * GROUPS * pitches[2]))


@cute.jit
def _read(source: Any, pitch: Any, rX: cute.Tensor):
    """Read 16 bytes of each line; all are requested before one is used."""
    places = [source + i * pitch for i in range(LINES)]
    read = [words.around(x) for x in places]
    for i in cutlass.range_constexpr(LINES):
        words.align(read[i], places[i], 1, rX[None, i])


def _turned(lines: list[Any]) -> list[Any]:
    """Four registers of four lines as four registers of the same bytes of all lines."""
    first, second = ([_select(*lines[x : x + 2], how) for how in BYTES] for x in (0, 2))
    return [_select(x, y, how) for x, y in zip(first, second, strict=True) for how in HALVES]


def _select(low: Any, high: Any, how: int) -> Any:
    """prmt: the bytes of two registers that a selector names (PTX ISA, prmt)."""
    return cutlass.Uint32(cute.arch.prmt(low, high, how))
