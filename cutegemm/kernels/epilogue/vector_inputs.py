# SPDX-License-Identifier: Apache-2.0
"""The epilogue's row and column inputs: read from global memory once per tile, before its mainloop.

A row input (N elements) is shared by all rows: the warpgroup's threads read the tile's columns of it,
neighbours side by side, hold them in registers through the mainloop and hand them round in shared memory
after it. Of a column input (M elements) a thread reads what its own rows need and keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import KernelConfig
from cutegemm.kernels.epilogue.fusion import Inputs
from cutegemm.kernels.epilogue.subtiles import Role, Subtile
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.memory_views import as_type, store_if
from cutegemm.kernels.schedule.work import OutputTile


@dataclass(frozen=True)
class Vectors:
    """Row and column inputs of a tensor-core kernel."""

    config: KernelConfig
    inputs: Inputs
    sRow: Any  # (COLUMNS, row inputs, CONSUMERS) fp32, of integers their bits, or None

    @staticmethod
    def create(config: KernelConfig, inputs: Inputs, shared: Shared) -> Vectors:
        """Allocate what row inputs need."""
        count = len(config.epilogue.names("row"))
        if count == 0:
            return Vectors(config, inputs, None)
        layout = cute.make_layout((config.stored_columns, count, config.consumers))
        return Vectors(config, inputs, shared.tensor("rows", cutlass.Float32, layout))

    def ahead(self, role: Role, tile: OutputTile) -> tuple[list, list]:
        """Read a tile's vectors: this thread's columns of each row input, its rows of each column input.

        Returns:
            rows[input][share] and columns[input][pass][row key], in the graph's order of the inputs, fp32 or Int32.
        """
        config, epilogue = self.config, self.config.epilogue
        shares = range(-(-config.stored_columns // hw.WARPGROUP))
        first = tile.origin.column + tile.n * config.stored_columns + role.thread
        rows = [
            [self.inputs.element(name, (0, first + i * hw.WARPGROUP, tile.l)) for i in shares]
            for name in epilogue.names("row")
        ]
        passes = [Subtile.of(config, role, tile, (i, 0)) for i in range(config.passes)]
        columns = [
            [
                [self.inputs.element(name, (subtile.row(key), 0, tile.l)) for key in (0, 1)]
                for subtile in passes
            ]
            for name in epilogue.names("col")
        ]
        return rows, columns

    def share(self, role: Role, rows: list) -> None:
        """Hand the row inputs round in the warpgroup; the tile before must have been read by all its threads."""
        width = self.config.stored_columns
        for at, values in enumerate(rows):
            for i, value in enumerate(values):
                number, column = as_type(value, cutlass.Float32), role.thread + i * hw.WARPGROUP
                there = None if width % hw.WARPGROUP == 0 else column < width
                store_if(there, self.sRow, (column, at, role.slot), number)
        if rows:
            role.barrier()

    def row(self, name: str, subtile: Subtile, key: tuple[int, int]) -> Any:
        """A row input at a subtile's column key."""
        at = self.config.epilogue.names("row").index(name)
        column = subtile.index[1] * self.config.epi_n + subtile.column_in(key)
        whole = self.config.input_of[name].dtype.whole
        return as_type(self.sRow[column, at, subtile.role.slot], cutlass.Int32 if whole else cutlass.Float32)
