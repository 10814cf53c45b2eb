# SPDX-License-Identifier: Apache-2.0
"""Accumulators of wgmma: a list of registers as a matrix in natural order, whose registers are strided views.

Source: PTX ISA 9.0, 9.7.16.5.2 (register fragments of D).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Accumulators:
    """The accumulator registers of some warps as a matrix of 16 rows per warp.

    A 32-bit register i of lane t holds row t/4 + 8 * (i/2 % 2), column 8 * (i/4) + 2 * (t % 4) + i % 2 (f16: two
    columns in one register).
    """

    def __init__(self, warps: int, registers: int, half: bool) -> None:
        self.half = half
        self.columns = registers * (4 if half else 2)
        self.matrix = np.zeros((16 * warps, self.columns), np.float16 if half else np.float32)
        self._views(warps)

    def _views(self, warps: int) -> None:
        words = self.matrix.view(np.uint32)
        n = self.columns // 8
        if self.half:
            self.registers = words.reshape(warps, 2, 8, n, 4).transpose(3, 1, 0, 2, 4)
        else:
            self.registers = words.reshape(warps, 2, 8, n, 4, 2).transpose(3, 1, 5, 0, 2, 4)

    def register(self, i: int) -> npt.NDArray[np.uint32]:
        """View of register `i` as (warps, 8, 4)."""
        view: npt.NDArray[np.uint32]
        view = self.registers[i >> 1, i & 1] if self.half else self.registers[i >> 2, i >> 1 & 1, i & 1]
        return view

    def take(self, rows: np.ndarray, warps: int) -> Accumulators:
        """The accumulators of some of the warps."""
        new = object.__new__(Accumulators)
        new.half, new.columns = self.half, self.columns
        new.matrix = np.ascontiguousarray(self.matrix[rows])
        new._views(warps)
        return new
