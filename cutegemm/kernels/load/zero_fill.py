# SPDX-License-Identifier: Apache-2.0
"""The rest of a tile whose matrix has fewer rows than it: TMA's box ends with the matrix, and these are zeroed once.

TMA writes every row of its box into shared memory, those beyond the matrix as zeros, and they cost its throughput
into an SM as much as rows that were read. So a box has only as many rows as the matrix can have, in whole groups of
eight, which the swizzles permute among themselves. WGMMA still reads 64 rows of A: what it computes of the rest are
rows of D that do not exist.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config.stage import StageItem
from cutegemm.kernels.load.operand_rows import divided
from cutegemm.kernels.load.unaligned_words import REGISTER, WORD
from cutegemm.layouts.hardware import SWIZZLE_SPANS


@cute.jit
def zero_rest(
    item: cutlass.Constexpr,
    stages: cutlass.Constexpr,
    sX: cute.Tensor,
    thread: Any,
    threads: cutlass.Constexpr,
):
    """Zero the rows from `box_rows` on of every stage of a K-major operand's pipeline (ROWS, BLK_K, STAGE).

    A stage is columns one swizzle row wide, of all rows each (`operands.item_layout`), so that the rest of a column
    is contiguous.
    """
    per_column, column, columns = _extents(item, stages)
    start, total = sX.iterator.toint() + (column - per_column * WORD), columns * per_column
    for i in cutlass.range(total // threads, unroll=8):
        _zero(start, divided(thread + i * threads, per_column), column)
    if cutlass.const_expr(total % threads > 0):
        if thread < total % threads:
            _zero(start, divided(thread + total // threads * threads, per_column), column)


def _zero(start: Any, at: tuple[Any, Any], column: int) -> None:
    """Zero one word of the rest of a column; `at`: (column, word)."""
    zeros = cute.make_rmem_tensor(WORD // REGISTER, cutlass.Uint32)
    zeros.fill(cutlass.Uint32(0))
    place = start + at[0] * column + at[1] * WORD
    target = cute.make_ptr(cutlass.Uint32, place, cute.AddressSpace.smem, assumed_align=WORD)
    cute.autovec_copy(zeros, cute.make_tensor(target, cute.make_layout(WORD // REGISTER)))


def _extents(item: StageItem, stages: int) -> tuple[int, int, int]:
    """(16-byte words of the rest of a column, bytes of a column, columns of the pipeline)."""
    (rows, depth), span = item.box, SWIZZLE_SPANS[item.operand.swizzle]
    columns = stages * depth * item.bits // 8 // span
    return (rows - item.part[0]) * span // WORD, rows * span, columns
