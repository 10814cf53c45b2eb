# SPDX-License-Identifier: Apache-2.0
"""Accumulators of the tensor cores: registers and matrix are two views of the same memory.

Source: PTX ISA 9.0, 9.7.16.5.2 (register fragments of D of wgmma; mma.m16n8 has the same).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Value, Vector
from cutegemm.emulator.numbers.values import ND


class Accumulators:
    """The accumulator registers of some warps as a matrix of 16 rows per warp, in fp32 or fp16.

    A 32-bit register i of lane t holds row t/4 + 8 * (i/2 % 2), column 8 * (i/4) + 2 * (t % 4) + i % 2. With fp16 a
    register holds two columns.
    """

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix
        self.half = matrix.dtype == np.float16
        words = matrix.view(np.uint32).reshape(-1, 2, 8, matrix.shape[1] // 8, 4, 1 if self.half else 2)
        self.views = words.transpose(3, 1, 5, 0, 2, 4)  # (column / 8, row half, column % 2, warp, row, lane)

    @classmethod
    def empty(cls, warps: int, registers: int, half: bool) -> Accumulators:
        """Zeros."""
        columns = registers * (4 if half else 2)
        return cls(np.zeros((16 * warps, columns), np.float16 if half else np.float32))

    @classmethod
    def of(cls, registers: Sequence[Value], warps: int, half: bool) -> Accumulators:
        """A copy of registers, each an int or a vector over the lanes of the warps."""
        out = cls.empty(warps, len(registers), half)
        for i, value in enumerate(registers):
            out.register(i)[...] = value.reshape(warps, 8, 4) if value.__class__ is ND else value
        return out

    def register(self, i: int) -> npt.NDArray[np.uint32]:
        """View of register `i` as (warps, 8, 4)."""
        view: npt.NDArray[np.uint32]
        view = self.views[i >> 1, i & 1, 0] if self.half else self.views[i >> 2, i >> 1 & 1, i & 1]
        return view

    def registers(self) -> list[Vector]:
        """A copy of every register, as vectors over the lanes."""
        count = self.matrix.shape[1] // (4 if self.half else 2)
        return [self.register(i).ravel() for i in range(count)]

    def take(self, rows: np.ndarray) -> Accumulators:
        """A copy of the accumulators of some rows, 16 for each warp."""
        return Accumulators(np.ascontiguousarray(self.matrix[rows]))
