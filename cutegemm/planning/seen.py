# SPDX-License-Identifier: Apache-2.0
"""The GEMM that a kernel sees, in the numbers that its cost is counted from (`cost`).

It is D's transpose if operands are swapped, and one half of a gated pair where a kernel multiplies halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutegemm.config.numbers import Number
from cutegemm.planning.operand_rules import L2_LINE
from cutegemm.problems import Operand, Problem


class Side(NamedTuple):
    """An operand of the GEMM that a kernel sees.

    Attributes:
        bytes: of both halves of a gated pair.
        k_major: whether it is contiguous along K; astride: whether TMA loads rows that straddle L2 cache lines.
        shifted: whether threads shift its rows; ns: per element that threads load.
    """

    bytes: Number
    k_major: Number
    astride: Number
    shifted: Number = False
    ns: Number = 0.0

    @classmethod
    def of(cls, operand: Operand, k_major: bool, halves: int = 1) -> Side:
        """The side of a matrix that TMA loads, or of one half of a gated pair."""
        # rows of a copy begin at whole cache lines
        whole = operand.strides[0 if operand.unit_col else 1] * operand.dtype.bytes % L2_LINE == 0
        return cls(float(operand.bytes * halves), k_major, not whole and operand.tma_reason() is None)


class Seen(NamedTuple):
    """The GEMM that a kernel sees; fields that differ between ways are columns.

    Attributes:
        m, n, k, batch: extents; a, b: operands; size: bytes of an element of either.
        bytes: of all matrices; inputs: matrices of D's shape, which the epilogue reads.
        out_bytes: of an element of D; row_major: whether D is; words: whether threads store it.
        gates, halves: accumulator columns and rows per output; products: of an element of `size`.
        loaded: nanoseconds per stage that threads load, besides its elements; once: nanoseconds of copies before the
            launch and of the threads' first stage; constant: whether operands may be loaded early.
        scaled: whether each stage's products are scaled; read: scales that a thread reads for a column of B.
        promoted: elements of K after which unscaled partial sums are promoted; 0 is never.
        adjacent_m, adjacent_n: whether a tile that reaches beyond M or N loads what lies there (`Request.adjacent`).
    """

    m: Number
    n: Number
    k: Number
    batch: Number
    a: Side
    b: Side
    size: Number
    bytes: Number
    inputs: Number
    out_bytes: Number
    row_major: Number
    words: Number
    gates: Number = 1
    halves: Number = 1
    loaded: Number = 0.0
    once: Number = 0.0
    constant: Number = False
    scaled: Number = False
    read: Number = 0.0
    promoted: Number = 0
    products: Number = 1
    adjacent_m: Number = False
    adjacent_n: Number = False

    @classmethod
    def of(cls, problem: Problem, sides: Sequence[Side] = (), **more: Number) -> Seen:
        """The GEMM of a problem; by default TMA loads its operands."""
        inputs, outputs = ([x for _, x in pairs] for pairs in (problem.inputs, problem.outputs))
        a, b = sides or (Side.of(problem.a, problem.a.unit_col), Side.of(problem.b, problem.b.unit_row))
        return cls(
            *(problem.m, problem.n, problem.k, problem.batch, a, b, problem.a.dtype.bytes),
            bytes=float(a.bytes + b.bytes + sum(x.bytes for x in (*inputs, *outputs))),
            inputs=sum(
                min(x.rows, x.cols) > 1 and x.rows * x.cols * 2 >= problem.m * problem.n for x in inputs
            ),
            out_bytes=max((x.dtype.bytes for x in outputs), default=2),
            row_major=any(x.unit_col for x in outputs),
            words=any(x.tma_reason() is not None for x in outputs),
            **more,
        )


def by_way(found: Sequence[Any], way: NDArray[np.intp]) -> Any:
    """The GEMMs of several ways as columns, one row per config; a field that all share stays one number."""
    if isinstance(found[0], tuple):
        return type(found[0])(*(by_way(x, way) for x in zip(*found, strict=True)))
    return found[0] if len(set(found)) == 1 else np.array(found)[way]
