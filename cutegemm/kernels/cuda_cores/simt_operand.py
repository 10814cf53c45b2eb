# SPDX-License-Identifier: Apache-2.0
"""One operand's tile of a CUDA-core kernel, however it comes into shared memory: its geometry and where it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.config import OperandConfig


@dataclass(frozen=True, kw_only=True)
class OperandTile:
    """The compiled-in geometry of one operand's tile, and how many threads bring it."""

    matrix: OperandConfig
    # BLK_M or BLK_N
    rows: int
    # BLK_K
    depth: int
    # elements per access
    vector: int
    threads: int
    # of a gated B: columns side by side of one half, then as many of the other
    half: int | None = None

    @property
    def along_k(self) -> bool:
        """Accesses lie along k."""
        return self.matrix.major not in ("m", "n")

    @property
    def box(self) -> tuple[int, int]:
        """Extents of the tile in the matrix, (rows, k); of a gated B in each half."""
        return self.rows if self.half is None else self.rows // 2, self.depth

    def source(self, first: Any, row: Any) -> tuple[Any, Any]:
        """(row of the operand, which half of a gated B or None) that row `row` of the tile from `first` on holds."""
        if self.half is None:
            return first + row, None
        line = first + row // (2 * self.half) * self.half
        return line + row % self.half, row // self.half % 2
