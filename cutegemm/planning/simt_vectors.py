# SPDX-License-Identifier: Apache-2.0
"""How many elements a CUDA-core kernel moves at once."""

from __future__ import annotations

import functools

from cutegemm.config import SimtTile
from cutegemm.dtypes import DType
from cutegemm.planning.operands import major
from cutegemm.problems import Operand, Problem

# elements that a global access may move, widest first; 16-bit elements go one by one
FP32_WIDTHS = (4, 2)
OUTPUT_WIDTHS = (4,)


def vector_elements(x: Operand, widths: tuple[int, ...], gate: int | None = None) -> int:
    """Elements per global access of a CUDA-core kernel: the first of `widths` that every line allows, or 1."""
    if not (x.unit_row or x.unit_col):
        return 1
    extent, leading = (x.cols, x.strides[0]) if x.unit_col else (x.rows, x.strides[1])
    batch = x.strides[2] if x.batch > 1 else 0
    for width in widths:
        whole = all(v % width == 0 for v in (extent, leading, batch, gate or 0))
        if whole and x.align % (width * x.dtype.bytes) == 0:
            return width
    return 1


def along_k(problem: Problem) -> tuple[bool, bool]:
    """Whether accesses to A and to B lie along k."""
    return major(problem.a, "m", "k") != "m", major(problem.b, "k", "n") != "n"


def loads(tile: SimtTile, problem: Problem, gate: int | None = None) -> tuple[int, int] | None:
    """Elements per load of A and of B: as many as their lines allow. None where the tile's threads cannot share those.

    A gated B is one of its halves, and `gate` the elements between those.
    """
    widths = FP32_WIDTHS if problem.a.dtype is DType.FP32 else ()
    found = []
    for place, (x, beside) in enumerate(((problem.a, None), (problem.b, gate))):
        most, deep = vector_elements(x, widths, beside), along_k(problem)[place]
        if not _brings(tile, tile.tile[place], most, deep):
            return None
        found.append(most)
    return found[0], found[1]


# a plan asks the same of few tiles many times
@functools.lru_cache(1024)
def _brings(tile: SimtTile, rows: int, vector: int, deep: bool) -> bool:
    return bool(tile.brings(rows, vector, deep))
