# SPDX-License-Identifier: Apache-2.0
"""Rules about operands that several modules share."""

from __future__ import annotations

import dataclasses
import functools

from cutegemm.arch.device import Device
from cutegemm.arch.instructions import Instruction
from cutegemm.arch.limits import Limits
from cutegemm.config import L2_LINE, MatrixConfig, OutputConfig
from cutegemm.config.draft import MOST_BYTES, MOST_COLUMNS
from cutegemm.config.numbers import Number, least, round_up
from cutegemm.epilogue.graph import Graph
from cutegemm.problems import Operand, Problem, alignment

# axes of (rows, columns) of the operands; matrices of the epilogue have M rows and N columns
AXES = {"a": ("m", "k"), "b": ("k", "n")}


def subtile(columns: Number, element_bytes: int) -> Number:
    """Columns of an epilogue subtile: the largest power of two that divides the tile's and fits a row of its buffer."""
    return least(columns & -columns, min(MOST_COLUMNS, MOST_BYTES // element_bytes))


def major(operand: Operand, row: str, col: str) -> str:
    """The unit-stride axis of an operand, by the names of its row and column axes."""
    return col if operand.unit_col else row if operand.unit_row else "strided"


def access_bytes(x: Operand, widths: tuple[int, ...], gate: int | None = None, *, whole: bool = False) -> int:
    """Bytes of the widest access at whose multiples all contiguous lines of a matrix begin; 0 if there is none.

    Args:
        widths: in bytes, widest first.
        gate: elements between the first elements of a gated pair's halves.
        whole: whether lines must also end at them.
    """
    if not (x.unit_row or x.unit_col):
        return 0
    extent, leading = (x.cols, x.strides[0]) if x.unit_col else (x.rows, x.strides[1])
    steps = leading, x.strides[2] if x.batch > 1 else 0, gate or 0, extent if whole else 0
    ends = x.align, *(step * x.dtype.bytes for step in steps)
    return next((width for width in widths if all(end % width == 0 for end in ends)), 0)


def displaces(problem: Problem, role: str, device: Device, *, weights: bool) -> bool:
    """Whether L2 should evict an operand first that a product reads once. One that a batch shares is read again.

    A model reads a weight again only after its other weights, which together exceed L2, so keeping it gains nothing;
    activations and small kernels' code would stay. Another operand may be an activation that is soon read again. It
    goes first only if L2 could not hold another one like it.
    """
    x: Operand = getattr(problem, role)
    share = device.thresholds.displaced if weights else 0.5
    return x.batch == problem.batch and x.bytes > share * device.l2_bytes


def epilogue_inputs(epilogue: Graph, problem: Problem) -> tuple[MatrixConfig, ...]:
    """The configs of the epilogue's tensors if threads read them element by element."""
    # strides of row and column inputs are run-time arguments
    given = [(dict(problem.inputs)[name], kind == "matrix") for name, kind in epilogue.tensors.items()]
    return tuple(
        MatrixConfig(dtype=x.dtype, major=major(x, "m", "n") if matrix else "strided") for x, matrix in given
    )


def epilogue_outputs(epilogue: Graph, problem: Problem) -> tuple[OutputConfig, ...]:
    """The configs of the matrices that the epilogue stores, with the default store."""
    given = (dict(problem.outputs)[x.name] for x in epilogue.stores)
    return tuple(OutputConfig(dtype=x.dtype, major=major(x, "m", "n")) for x in given)


def gated_half(problem: Problem, epilogue: Graph) -> tuple[Problem, int | None]:
    """The problem with a gated pair's operand as the half that makes gates, as the kernel sees it.

    Also the elements between the halves' first elements; None if the epilogue is not gated.
    """
    if epilogue.gated_axis is None:
        return problem, None
    along_m = epilogue.gated_axis == "m"
    # a matrix whose columns hold the pair
    b = problem.a.transposed if along_m else problem.b
    row, col, batch = b.strides
    cols = b.cols // 2
    step, gate = (col, cols * col) if epilogue.gated == "halves" else (2 * col, col)
    # loads add the gate to the base
    align = min(b.align, alignment(gate * b.dtype.bytes))
    half = dataclasses.replace(b, cols=cols, strides=(row, step, batch), align=align)
    if along_m:
        return dataclasses.replace(problem, a=half.transposed), gate
    return dataclasses.replace(problem, b=half), gate


# asked for with every load of the other operand
@functools.lru_cache(64)
def aligned_copy(
    source: Operand, limits: Limits, by_rows: bool | None = None, how: Instruction | None = None
) -> tuple[Operand, int]:
    """A matrix like `source` that TMA can address, contiguous along the same axis (or columns), and its bytes.

    Contiguous rows begin at L2 cache lines: a box row of 128 bytes that straddles two costs L2 two accesses.

    Args:
        by_rows: whether consecutive rows are adjacent instead.
        how: of an instruction that multiplies parts of elements: these lie side by side, in runs.
    """
    if by_rows is None:
        by_rows = source.unit_row and not source.unit_col
    length, lines = (source.rows, source.cols) if by_rows else (source.cols, source.rows)
    leading = round_up(how.stored(length) if how else length, L2_LINE // source.dtype.bytes)
    size = leading * lines
    strides = (1, leading, size) if by_rows else (leading, 1, size)
    target = dataclasses.replace(source, strides=strides, align=limits.tma_align)
    return target, size * source.batch * source.dtype.bytes
