# SPDX-License-Identifier: Apache-2.0
"""Zero the out-of-bounds rows of a tile once, if the matrix has fewer rows than the tile.

TMA writes every row of its box into shared memory. Out-of-bounds rows become zeros and cost as much of an SM's TMA
throughput as rows that were read. So a box has only as many rows as the matrix, rounded up to the groups of eight that
swizzles permute. WGMMA still reads 64 rows of A; what it computes from the others are rows of D that do not exist.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config.stage import StageItem
from cutegemm.kernels.load.operand_rows import divided
from cutegemm.kernels.memory_views import WORD, word_at, zero_word
from cutegemm.layouts.hardware import SWIZZLE_SPANS


@cute.jit
def zero_out_of_bounds(
    item: cutlass.Constexpr,
    stages: cutlass.Constexpr,
    sX: cute.Tensor,
    thread: Any,
    threads: cutlass.Constexpr,
):
    """Zero the rows from `box_rows` on of every stage of a K-major operand's pipeline (ROWS, BLK_K, STAGE).

    A stage is a sequence of panels, each one swizzle row wide and all rows high (`operand_layouts.item_layout`), so a
    panel's out-of-bounds rows are contiguous.
    """
    per_column, column, columns = _extents(item, stages)
    start, total = sX.iterator.toint() + (column - per_column * WORD), columns * per_column
    for i in cutlass.range(total // threads, unroll=8):
        _zero(start, divided(thread + i * threads, per_column), column)
    if cutlass.const_expr(total % threads > 0):
        if thread < total % threads:
            _zero(start, divided(thread + total // threads * threads, per_column), column)


def _zero(start: Any, at: tuple[Any, Any], column: int) -> None:
    """Zero one word of a panel's out-of-bounds rows; `at`: (panel, word)."""
    cute.autovec_copy(zero_word(), word_at(start + at[0] * column + at[1] * WORD, shared=True))


def _extents(item: StageItem, stages: int) -> tuple[int, int, int]:
    """(16-byte words of a panel's out-of-bounds rows, bytes of a panel, panels of the pipeline)."""
    (rows, depth), span = item.box, SWIZZLE_SPANS[item.operand.swizzle]
    columns = stages * depth * item.bits // 8 // span
    return (rows - item.part[0]) * span // WORD, rows * span, columns
