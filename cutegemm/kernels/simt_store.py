# SPDX-License-Identifier: Apache-2.0
"""The CUDA-core kernel's epilogue: a thread's accumulators through the fusion and straight to D."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import SimtConfig
from cutegemm.kernels.fusion import Fusion
from cutegemm.kernels.simt_tile import GROUP


@cute.jit
def store_tile(
    config: cutlass.Constexpr[SimtConfig],
    fusion: cutlass.Constexpr[Fusion],
    acc: cute.Tensor,
    mD: cute.Tensor,
    owned: cutlass.Constexpr,
    origin: Any,
) -> None:
    """Store what one thread owns, four neighbours along D's unit-stride axis at a time.

    Args:
        config: `config.vector[2]` is 4 where D takes them in one access, else 1.
        fusion: the epilogue.
        acc: (THREAD_M * THREAD_N,) fp32, row by row.
        mD: (m, n, l).
        owned: first rows and first columns, within the tile, of the thread's groups of four.
        origin: (m, n, l) of the tile's first element.
    """
    rows, cols = owned
    along_m = config.d.major == "m"
    for i in cutlass.range_constexpr(len(rows)):
        for j in cutlass.range_constexpr(len(cols)):
            for line in cutlass.range_constexpr(GROUP):
                places = []
                for x in cutlass.range_constexpr(GROUP):
                    places.append((x, line) if along_m else (line, x))
                _store_group(config, fusion, acc, mD, (i, j, rows[i], cols[j]), (origin, places))


@cute.jit
def _store_group(
    config: cutlass.Constexpr,
    fusion: cutlass.Constexpr,
    acc: cute.Tensor,
    mD: cute.Tensor,
    group: Any,
    where: Any,
) -> None:
    """Four elements: `where` is the tile's origin and their (row, column) within the group."""
    i, j, row0, col0 = group
    origin, places = where
    width = config.thread_tile[1]
    row0, col0, batch = origin[0] + row0, origin[1] + col0, origin[2]
    values = cute.make_rmem_tensor(GROUP, cutlass.Float32)
    for x in cutlass.range_constexpr(GROUP):
        row, col = places[x]
        at = (i * GROUP + row) * width + j * GROUP + col
        values[x] = fusion(acc[at], (row0 + row, col0 + col, batch))
    rD = cute.make_rmem_tensor(GROUP, mD.element_type)
    rD.store(values.load().to(mD.element_type))
    if cutlass.const_expr(config.vector[2] == GROUP):
        row, col = row0 + places[0][0], col0 + places[0][1]
        if row < mD.shape[0] and col < mD.shape[1]:
            offset = cute.assume(cute.crd2idx((row, col, batch), mD.layout), divby=GROUP)
            cute.autovec_copy(rD, cute.make_tensor(mD.iterator + offset, cute.make_layout(GROUP)))
    else:
        for x in cutlass.range_constexpr(GROUP):
            row, col = row0 + places[x][0], col0 + places[x][1]
            if row < mD.shape[0] and col < mD.shape[1]:
                mD[row, col, batch] = rD[x]
