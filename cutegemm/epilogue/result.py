# SPDX-License-Identifier: Apache-2.0
"""An output of an epilogue as data: the kinds of outputs, and the fields that each kind has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cutegemm import checks
from cutegemm.dtypes import LARGEST, DType
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.errors import SpecError, field_error

STORE, SCALE = "store", "scale"
CASTS = tuple(x.value for x in DType)  # what a value may be rounded to
INFINITY = float("inf")
# The identity of each reduction, which a partial result without elements holds: one fp32 number; for logsumexp the
# maximum and the sum of exp(x - maximum).
NEUTRAL = {"sum": (0.0,), "max": (-INFINITY,), "logsumexp": (-INFINITY, 0.0)}
REDUCTIONS = tuple(NEUTRAL)


@dataclass(frozen=True)
class Result:
    """One output: a node stored as an M x N matrix, or reduced over rows, columns or everything; scales of blocks.

    Attributes:
        name: of the output for the caller; "d" is the GEMM's D.
        node: index of the node.
        kind: "store", "sum", "max", "logsumexp" or "scale".
        dtype: of a stored matrix; None means the spec's d_dtype for d, else A's type. Reductions are fp32. Scales have
            the type of their values here.
        major: of a stored matrix, "n" or "m"; None means that of the tensor passed, row-major if none is.
        axis: of a reduction: 0 reduces rows (N results), 1 columns (M results), None both (one result).
        partial: the tiles' partial results are the result; nothing finishes them.
        block: rows of a block of 128 columns that shares a scale, 1 or 128, for quantised values and for their scales;
            0 for other outputs.
        exponents: whether those scales are powers of two, and stored as exponents (ue8m0).
    """

    name: str
    node: int
    kind: str = STORE
    dtype: str | None = None
    major: str | None = None
    axis: int | None = None
    partial: bool = False
    block: int = 0
    exponents: bool = False

    def to_data(self) -> dict[str, Any]:
        """The fields as JSON data; `block` and `exponents` only where they are set."""
        return {name: x for name, x in asdict(self).items() if x or name not in ("block", "exponents")}

    def by_axis(self, rows: Any, columns: Any, both: Any) -> Any:
        """One of three values by the axis: if rows, columns, or both are reduced."""
        return {0: rows, 1: columns, None: both}[self.axis]

    def shape(self, batch: int, rows: int, columns: int, parts: tuple[int, int, int]) -> tuple[int, ...]:
        """A reduction's fp32 results in memory: (batch, results); a partial one's (states, parts, batch, results).

        Scales are (blocks of columns, batch, blocks of rows).

        Args:
            batch, rows, columns: of D.
            parts: partial results per result over rows, columns and all. All of D has (states, batch, parts).
        """
        if self.kind == SCALE:
            return -(-columns // K_BLOCK), batch, -(-rows // self.block)
        results = self.by_axis(columns, rows, 1)
        if not self.partial:
            return batch, results
        states, count = len(NEUTRAL[self.kind]), self.by_axis(*parts)
        return (states, batch, count) if self.axis is None else (states, count, batch, results)


def check_form(x: Result) -> None:
    """Check an output's kind, and that fields of other kinds have their defaults.

    Raises:
        SpecError: the kind is unknown, or a field has a value that the kind does not allow.
    """
    if not checks.among(x.kind, (STORE, *REDUCTIONS, SCALE)):
        rule = f"must be one of {(STORE, *REDUCTIONS, SCALE)}"
        raise field_error(SpecError, f"{x.name}.kind", x.kind, rule)
    store, scale = x.kind == STORE, x.kind == SCALE
    legal = {
        "block": (0, 1, K_BLOCK) if store else (1, K_BLOCK) if scale else (0,),
        "dtype": tuple(y.value for y in LARGEST)
        if scale or x.block
        else (None, *CASTS)
        if store
        else (None,),
        "major": (None, "n", "m") if store else (None,),
        "axis": (None,) if store else (1,) if scale else (None, 0, 1),
        "partial": (False,) if store or scale else (False, True),
        "exponents": (False, True) if x.block else (False,),
    }
    for field, values in legal.items():
        value = getattr(x, field)
        if not checks.among(value, values):
            rule = f"of a {x.kind} must be one of {values}"
            raise field_error(SpecError, f"{x.name}.{field}", value, rule)
