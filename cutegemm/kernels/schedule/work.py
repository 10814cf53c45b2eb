# SPDX-License-Identifier: Apache-2.0
"""A work tile: a CTA's share of a GEMM. Where it begins in A, B and D, in elements, and where D ends.

A tile scheduler makes work tiles; loads and stores take their elements from them and never compute with tile numbers.
So one launch may hold several GEMMs: each begins anywhere in A, B and D (`Origin`), and ends anywhere in D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.config import OperandConfig


@dataclass(frozen=True)
class Origin:
    """Where a GEMM begins in one matrix, elements: not at zero where a launch computes several GEMMs.

    Attributes:
        row: its first row: along M of A and D, along N of B.
        column: its first column: along K of A and B, along N of D.
        batch: the matrix' batch; None is the work tile's.
    """

    row: Any = 0
    column: Any = 0
    batch: Any = None


@dataclass(frozen=True)
class OutputTile:
    """What a CTA stores of a work tile: a tile of D, or one of the slices that a tile's columns fall into.

    Attributes:
        m, n, l: its number along each axis; of slices `n` counts slices.
        origin: where its GEMM begins in D.
        ends: (m, n), of D: one past the last row and column of its GEMM. Nothing is stored from there on.
        k_tiles: of the work tile, where it may have none (groups along K).
    """

    m: Any
    n: Any
    l: Any  # noqa: E741 (the batch axis' name in every shape comment)
    origin: Origin
    ends: tuple[Any, Any]
    k_tiles: Any = None

    @property
    def batch(self) -> Any:
        """D's batch."""
        return self.l if self.origin.batch is None else self.origin.batch


@dataclass(frozen=True)
class Work:
    """A CTA's share of a GEMM: a tile of its output, and the k tiles to multiply for it.

    Attributes:
        m, n, l: the CTA tile's number along each axis of its GEMM.
        first, k_tiles: the first k tile and how many there are: at least 1, except in an empty group along K.
        split, splits: the number of this split of K, and how many splits the tile has.
        ends: (m, n), of D: one past the GEMM's last row and column.
        step: from a k tile to the next, 1 or -1.
        rest: for groups along K, how many elements of the last k tile do not lie beyond the group's end.
        before: for groups along K with aligned stages, how many elements of the first k tile lie before the group.
        origins: where the GEMM begins in operands, by role, and in D, by "d"; matrices without one begin at 0.
    """

    m: Any
    n: Any
    l: Any  # noqa: E741 (as above)
    first: Any
    k_tiles: Any
    split: Any
    splits: Any
    ends: tuple[Any, Any]
    step: Any = 1
    rest: Any = None
    before: Any = None
    origins: Mapping[str, Origin] = field(default_factory=dict)

    @property
    def tile(self) -> OutputTile:
        """The tile of D."""
        return self.slice(0, 1)

    def slice(self, share: Any, count: int) -> OutputTile:
        """One of the tile's slices, of so many side by side along its columns."""
        n = self.n if count == 1 else self.n * count + share
        return OutputTile(self.m, n, self.l, self.origins.get("d", Origin()), self.ends, self.k_tiles)

    def corner(self, operand: OperandConfig, box: tuple[int, int], k: Any = 0) -> Corner:
        """Where the k-th of its tiles of an operand begins; `box`: extents of a tile along the operand's axes."""
        return Corner(self, operand, box, k)


@dataclass(frozen=True)
class Corner:
    """The first element of a work tile's k-th tile of an operand. Each number is computed where it is read."""

    work: Work
    operand: OperandConfig
    box: tuple[int, int]
    k: Any

    @property
    def row(self) -> Any:
        """Its row, along M or N."""
        tile = self.work.m if self.operand.axes[0] == "m" else self.work.n
        return self._origin.row + tile * self.box[0]

    @property
    def column(self) -> Any:
        """Its column, along K."""
        work = self.work
        k_tile = work.first + (self.k if isinstance(work.step, int) else self.k * work.step)
        return self._origin.column + k_tile * self.box[1]

    @property
    def batch(self) -> Any:
        """Its batch."""
        return self.work.l if self._origin.batch is None else self._origin.batch

    @property
    def _origin(self) -> Origin:
        return self.work.origins.get(self.operand.role, Origin())
