# SPDX-License-Identifier: Apache-2.0
"""The GEMM that a kernel sees, in the numbers that its cost is counted from (`cost`).

It is D's transpose if operands are swapped, and one half of a gated pair where a kernel multiplies halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cutegemm.config import L2_LINE, SECTOR
from cutegemm.config.numbers import Number
from cutegemm.problems import Operand, Problem
from cutegemm.spec import MAX_STAGES

# most stages by default where more gain nothing or were not measured (`ways.Way.most_stages`)
FEW_STAGES = 8


class Side(NamedTuple):
    """An operand of the GEMM that a kernel sees."""

    bytes: Number  # of both halves of a gated pair
    k_major: Number  # whether it is contiguous along K
    astride: Number  # whether TMA loads rows that straddle L2 cache lines
    within: Number  # whether TMA loads rows that begin within L2 sectors
    shifted: Number = False  # whether threads shift its rows
    ns: Number = 0.0  # per element that threads load

    @classmethod
    def of(cls, operand: Operand, k_major: bool, halves: int = 1) -> Side:
        """The side of a matrix that TMA loads, or of one half of a gated pair."""
        # rows of a copy begin at whole cache lines; a single row has no pitch
        pitch = operand.strides[0 if operand.unit_col else 1] * operand.dtype.bytes
        several = (operand.rows if operand.unit_col else operand.cols) > 1 and operand.tma_reason() is None
        astride, within = several and pitch % L2_LINE != 0, several and pitch % SECTOR != 0
        return cls(float(operand.bytes * halves), k_major, astride, within)


class Seen(NamedTuple):
    """The GEMM that a kernel sees; fields that differ between ways are columns."""

    m: Number
    n: Number
    k: Number
    batch: Number
    a: Side
    b: Side
    size: Number  # bytes of an element of A or B
    bytes: Number  # of all matrices
    inputs: Number  # matrices of D's shape, which the epilogue reads
    out_bytes: Number  # of an element of D
    row_major: Number  # whether D is
    words: Number  # whether threads store D
    gates: Number = 1  # accumulator columns per output
    halves: Number = 1  # accumulator rows per output
    loaded: Number = 0.0  # nanoseconds per stage that threads load, besides its elements
    once: Number = 0.0  # nanoseconds of copies before the launch and of the threads' first stage
    constant: Number = False  # whether operands may be loaded early
    scaled: Number = False  # whether each stage's products are scaled
    read: Number = 0.0  # scales that a thread reads for a column of B
    vectors: Number = False  # whether the epilogue reads a number for each row or column of D
    promoted: Number = 0  # elements of K after which unscaled partial sums are promoted; 0 is never
    products: Number = 1  # of an element of `size`
    adjacent_m: Number = False  # whether a tile that reaches beyond M loads what lies there
    adjacent_n: Number = False  # the same of N
    # average rows of a group along that axis; 0 if all are as long as the problem says
    group_rows: Number = 0.0
    stages: Number = MAX_STAGES  # of the pipeline at most

    @classmethod
    def of(cls, problem: Problem, sides: Sequence[Side] = (), **more: Number) -> Seen:
        """The GEMM of a problem; by default TMA loads its operands."""
        # lists rather than generators: a plan makes one for each way, and a generator is entered once an element
        inputs, outputs = [x for _, x in problem.inputs], [x for _, x in problem.outputs]
        a, b = sides or (Side.of(problem.a, problem.a.unit_col), Side.of(problem.b, problem.b.unit_row))
        whole = problem.m * problem.n
        return cls(
            *(problem.m, problem.n, problem.k, problem.batch, a, b, problem.a.dtype.bytes),
            bytes=float(a.bytes + b.bytes + sum([x.bytes for x in (*inputs, *outputs)])),
            inputs=sum([min(x.rows, x.cols) > 1 and 2 * x.rows * x.cols >= whole for x in inputs]),
            out_bytes=max([x.dtype.bytes for x in outputs], default=2),
            row_major=any([x.unit_col for x in outputs]),
            words=any([x.tma_reason() is not None for x in outputs]),
            **more,
        )


def by_way(found: Sequence[Any], way: NDArray[np.intp]) -> Any:
    """The GEMMs of several ways as columns, one row per config; a field that all share stays one number."""
    if isinstance(found[0], tuple):
        return type(found[0])(*(by_way(x, way) for x in zip(*found, strict=True)))
    return found[0] if len(set(found)) == 1 else np.array(found)[way]
