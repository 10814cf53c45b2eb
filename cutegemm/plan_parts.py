# SPDX-License-Identifier: Apache-2.0
"""Small rules that several planners share."""

from __future__ import annotations

import dataclasses

from cutegemm import hardware as hw
from cutegemm.config import MatrixConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.problem import Operand, Problem

WORKSPACE_ALIGN = 256  # bytes: alignment of torch's allocations, enough for TMA


def major(operand: Operand, row: str, col: str) -> str:
    """The unit-stride axis of an operand, by the names of its row and column axes."""
    return col if operand.unit_col else row if operand.unit_row else "strided"


def direct(operand: Operand, row: str, col: str) -> MatrixConfig:
    """The config of a matrix that threads read element by element."""
    return MatrixConfig(dtype=operand.dtype, major=major(operand, row, col))


def epilogue_inputs(epilogue: Graph, problem: Problem) -> tuple[MatrixConfig, ...]:
    """The configs of the epilogue's tensors where threads read them element by element.

    What a row or column input's strides are is left to run time.
    """
    operands = dict(problem.inputs)
    return tuple(
        direct(operands[name], "m", "n")
        if kind == "matrix"
        else MatrixConfig(dtype=operands[name].dtype, major="strided")
        for name, kind in epilogue.tensors.items()
    )


def gated_half(b: Operand, epilogue: Graph) -> tuple[Operand, int | None]:
    """B as the kernel sees it: all of it, or the half that makes gates and the elements from there to the other."""
    if epilogue.gated is None:
        return b, None
    row, col, batch = b.strides
    half = b.cols // 2
    step, gate = (col, half * col) if epilogue.gated == "halves" else (2 * col, col)
    align = (
        b.align if gate * b.dtype.bytes % hw.TMA_ALIGN == 0 else b.dtype.bytes
    )  # TMA adds the gate to the base
    return dataclasses.replace(b, cols=half, strides=(row, step, batch), align=align), gate


def check_grid(ctas: int) -> None:
    """Refuse a launch of more CTAs than a grid holds.

    Raises:
        PlanError: `ctas` exceeds `hardware.MAX_GRID`.
    """
    if ctas > hw.MAX_GRID:
        raise field_error(PlanError, "grid", ctas, f"a launch has at most {hw.MAX_GRID} CTAs", hw.MAX_GRID)
