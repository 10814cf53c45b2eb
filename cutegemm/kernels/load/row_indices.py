# SPDX-License-Identifier: Apache-2.0
"""Which row of a matrix each row of a launch is, as a tensor of indices on the device says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass

from cutegemm.kernels.memory_views import elements_at


@dataclass(frozen=True)
class RowIndices:
    """Indices in global memory.

    Attributes:
        words: Int32, `width` of them an index, the lowest first.
        width: 1 of 32-bit indices, 2 of 64-bit ones.
        extent: rows that they may name.
    """

    words: Any
    width: Any
    extent: Any

    @staticmethod
    def create(address: Any, count: Any, schedule: dict[str, Any]) -> RowIndices:
        """From the address of so many indices and the launch's group "schedule"."""
        width = schedule["rows.width"]
        return RowIndices(elements_at(cutlass.Int32, address, count * width), width, schedule["rows.extent"])

    def row(self, place: Any) -> tuple[Any, Any]:
        """(the row that an index names, or 0 where there is no such row; whether there is)."""
        low = self.words[place * self.width]
        # of a 32-bit index the same word, whose sign alone counts
        high = self.words[place * self.width + (self.width - 1)]
        near = cutlass.Boolean(self.width == 1) | cutlass.Boolean(high == 0)
        there = near & cutlass.Boolean(low >= 0) & cutlass.Boolean(low < self.extent)
        return cutlass.select_(there, low, cutlass.Int32(0)), there
