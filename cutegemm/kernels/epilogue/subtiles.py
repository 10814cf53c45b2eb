# SPDX-License-Identifier: Apache-2.0
"""How a consumer warpgroup's share of a tile falls into subtiles of WGMMA_M x EPI_N, and where their elements lie.

A thread holds EPI_N / 2 elements of a subtile: value v at the row and column that PTX ISA's wgmma D fragment
gives it. Elements are named by (row key, column key), so that code can tell which share a row or a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.config.shared import FIRST_NAMED
from cutegemm.dtypes import DType
from cutegemm.kernels.host.operand_layouts import NUMERIC, tiled_mma
from cutegemm.kernels.schedule.work import OutputTile


@dataclass(frozen=True)
class Role:
    """A consumer thread: its warpgroup's slot (buffers, barrier), the warpgroup's band of rows, its index."""

    slot: Any
    band: Any
    thread: Any

    def barrier(self) -> None:
        """Wait for the warpgroup's other threads."""
        cute.arch.barrier(barrier_id=FIRST_NAMED + self.slot, number_of_threads=hw.WARPGROUP)


@dataclass(frozen=True)
class Subtile:
    """The subtile of the `row`-th pass and `column`-th step along N: its place in the output, and its thread's view."""

    config: KernelConfig
    role: Role
    index: tuple[int, int]  # (pass, subtile along N)
    tile: OutputTile
    block: Any  # of WGMMA_M rows of its GEMM
    column: Any  # of EPI_N columns of its GEMM

    @staticmethod
    def of(config: KernelConfig, role: Role, tile: OutputTile, index: tuple[int, int]) -> Subtile:
        """The subtile of a CTA's tile."""
        block = tile.m * (config.rows // hw.WGMMA_M) + index[0] * config.team + role.band
        return Subtile(config, role, index, tile, block, tile.n * config.subtiles_n + index[1])

    @property
    def batch(self) -> Any:
        """The output's batch."""
        return self.tile.batch

    @property
    def ends(self) -> tuple[Any, Any]:
        """(m, n) of the output from which on nothing is stored."""
        return self.tile.ends

    @property
    def whole(self) -> Any:
        """Whether all of it may be stored along the axis of groups."""
        axis = "mn".index(self.config.grouped)
        extent = hw.WGMMA_M if axis == 0 else self.config.epi_n
        return self.origin[axis] + extent <= self.ends[axis]

    @property
    def number(self) -> int:
        """Which of the tile's subtiles it is."""
        return self.index[0] * self.config.subtiles_n + self.index[1]

    @property
    def size(self) -> int:
        """Elements per thread."""
        return hw.WGMMA_M * self.config.epi_n // hw.WARPGROUP

    @property
    def origin(self) -> tuple[Any, Any]:
        """(m, n) of the subtile's first element."""
        first = self.tile.origin
        return first.row + self.block * hw.WGMMA_M, first.column + self.column * self.config.epi_n

    def row(self, key: int) -> Any:
        """m of the thread's elements with a row key (0 or 1)."""
        thread = self.role.thread
        return self.origin[0] + thread // hw.WARP * 16 + thread % hw.WARP // 4 + step_to(key, (0, 0))[0]

    def column_in(self, key: tuple[int, int]) -> Any:
        """Column within the subtile of the thread's elements with a column key (0 or 1, group of eight)."""
        return self.role.thread % 4 * 2 + step_to(0, key)[1]

    def coord(self, row: int, column: tuple[int, int]) -> tuple[Any, Any, Any]:
        """(m, n, l) of an element."""
        return self.row(row), self.origin[1] + self.column_in(column), self.batch

    def accumulator(self, value: int, gate: int) -> int:
        """Where the accumulator of a thread's value-th element lies among its accumulators; gate 1 is "up".

        A gated pair lies side by side in a pass, or along M in the second half of the passes.
        """
        config = self.config
        # accumulators of one pass: WGMMA_M x BLK_N over 128 threads
        a_pass = config.tile[1] // config.slices // 2
        up = config.passes * a_pass if config.a.halves == 2 else config.stored_columns // 2
        return self.index[0] * a_pass + gate * up + self.index[1] * self.size + value


def key_of(value: int) -> tuple[int, tuple[int, int]]:
    """(row key, column key) of a thread's value-th element."""
    return value // 2 % 2, (value % 2, value // 4)


def step_to(row: int, column: tuple[int, int]) -> tuple[int, int]:
    """(m, n) from a thread's first element of a subtile, whose keys are (0, (0, 0)), to one with other keys."""
    return 8 * row, column[0] + 8 * column[1]


def to_shared(config: KernelConfig, dtype: DType, major: str) -> cute.TiledCopy:
    """The copy of a subtile from accumulator order to shared memory: stmatrix for 16-bit elements."""
    return _subtile_copy(warp.StMatrix8x8x16bOp, config, dtype, major)


def from_shared(config: KernelConfig, dtype: DType, major: str) -> cute.TiledCopy:
    """The copy of a subtile from shared memory to accumulator order: ldmatrix for 16-bit elements."""
    return _subtile_copy(warp.LdMatrix8x8x16bOp, config, dtype, major)


def _subtile_copy(matrix_op: type, config: KernelConfig, dtype: DType, major: str) -> cute.TiledCopy:
    op = matrix_op(major == "m", _matrices(config)) if dtype.bits == 16 else cute.nvgpu.CopyUniversalOp()
    return cute.make_tiled_copy_S(cute.make_copy_atom(op, NUMERIC[dtype]), _accumulator_copy(config, major))


def _matrices(config: KernelConfig) -> int:
    """8 x 8 matrices of one stmatrix or ldmatrix: 16 rows of a warp by 16 columns, or by 8 in narrow subtiles."""
    return 4 if config.epi_n % 16 == 0 else 2


def _accumulator_copy(config: KernelConfig, major: str) -> cute.TiledCopy:
    matrix = cute.make_copy_atom(warp.StMatrix8x8x16bOp(major == "m", _matrices(config)), NUMERIC[DType.BF16])
    return cute.make_tiled_copy_C_atom(matrix, tiled_mma(config, 1, config.epi_n))
