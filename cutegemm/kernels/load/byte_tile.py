# SPDX-License-Identifier: Apache-2.0
"""Transposes a tile of bytes between two matrices, through shared memory.

Columns of the source are contiguous and may begin at any address; rows of the destination begin at multiples of 16
bytes. A thread reads 16 bytes of each of four adjacent columns, as aligned words that it shifts; at the edges of the
source it reads byte by byte. It transposes blocks of 4 x 4 bytes in registers, with 8 prmt for 16 bytes, and writes
4-byte words into shared memory. Then it reads 16 bytes of a destination row at a time.

    global read    lane = (column / 4 % 4, chunk of the column): a load of a warp covers 128 bytes of four columns
    shared write   word w of row r goes to chunk (w / 4) ^ (r / 16 % 8) of the row: no bank conflicts in a warp
    shared read    lane = (row, chunk): eight lanes read a row, which covers all banks
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.load import unaligned_words as words
from cutegemm.kernels.memory_views import REGISTER, WORD, word_at

TILE = 128  # bytes: rows and columns
SHIFT = 7  # the tile's logarithm
LINES = 4  # columns of the source that a thread reads: one byte of each fills a register
QUAD = WORD // REGISTER  # registers that hold 16 bytes
ROW = TILE // REGISTER  # 4-byte words of a row in shared memory
CHUNKS = TILE // WORD  # chunks of 16 bytes in a row
GROUPS = TILE // LINES  # groups of four columns; a CTA has CHUNKS x GROUPS threads
# prmt selectors for two registers: interleave their lower or upper bytes; join their lower or upper halves
BYTES, HALVES = (0x5140, 0x7362), (0x5410, 0x7632)


@cute.jit
def transpose(sT: Any, addresses: Any, shape: Any, pitches: Any, block: Any):
    """Copy one tile, the copy's `block`-th, after all earlier launches.

    Args:
        sT: a pointer to TILE * TILE bytes of shared memory, Uint32.
        addresses: of source and destination.
        shape: (rows, columns, batch). Rows are adjacent in the source, columns in the destination.
        pitches: from column to column and from batch to batch of the source, from row to row and from batch to batch of
            the destination; bytes.
        block: consecutive tiles lie along the columns of the source.
    """
    cute.arch.griddepcontrol_wait()
    rows, cols, batches = shape
    thread, _, _ = cute.arch.thread_idx()
    # nothing is negative, so shifts and unsigned division suffice, which are cheaper
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
                cute.autovec_copy(sD, word_at(target + i * GROUPS * pitches[2]))


@cute.jit
def _read(source: Any, pitch: Any, rX: cute.Tensor):
    """Read 16 bytes of each column; all loads are issued before the first is used."""
    places = [source + i * pitch for i in range(LINES)]
    read = [words.around(x) for x in places]
    for i in cutlass.range_constexpr(LINES):
        words.align(read[i], places[i], 1, rX[None, i])


def _turned(lines: list[Any]) -> list[Any]:
    """Transpose 4 x 4 bytes: a register of each column becomes a register of each row."""
    first, second = ([_select(*lines[x : x + 2], how) for how in BYTES] for x in (0, 2))
    return [_select(x, y, how) for x, y in zip(first, second, strict=True) for how in HALVES]


def _select(low: Any, high: Any, how: int) -> Any:
    """The bytes of two registers that a selector names (PTX ISA, prmt)."""
    return cutlass.Uint32(cute.arch.prmt(low, high, how))
