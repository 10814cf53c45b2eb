# SPDX-License-Identifier: Apache-2.0
"""Small rules that several planners share."""

from __future__ import annotations

from cutegemm import hardware as hw
from cutegemm.config import MatrixConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.problem import Operand


def major(operand: Operand | None, row: str, col: str) -> str:
    """The unit-stride axis of an operand, by the names of its row and column axes."""
    if operand is None:
        return "strided"
    return col if operand.unit_col else row if operand.unit_row else "strided"


def direct(operand: Operand | None, row: str, col: str) -> MatrixConfig | None:
    """The config of a matrix that threads read or write element by element; None without one."""
    return None if operand is None else MatrixConfig(dtype=operand.dtype, major=major(operand, row, col))


def check_grid(ctas: int) -> None:
    """Refuse a launch of more CTAs than a grid holds.

    Raises:
        PlanError: `ctas` exceeds `hardware.MAX_GRID`.
    """
    if ctas > hw.MAX_GRID:
        raise field_error(PlanError, "grid", ctas, f"a launch has at most {hw.MAX_GRID} CTAs", hw.MAX_GRID)
