# SPDX-License-Identifier: Apache-2.0
"""What a CTA of a CUDA-core kernel does: one tile of the output, or its split of the tile's K.

The grid has a cluster for every tile, in panels of rows (`tile_scheduler.tile_of`), with a CTA for every split of K.
The first k tile has the remainder of K, so that no later copy needs a guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass

from cutegemm.config import SimtConfig
from cutegemm.kernels.schedule.tile_scheduler import Extent, State, cluster_tiles, tile_of
from cutegemm.kernels.schedule.work import Work


@dataclass(frozen=True)
class SimtScheduler:
    """The work tiles of a launch; a CTA has one.

    Attributes:
        extents: the launch's group "shape".
        schedule: its group "schedule".
    """

    config: SimtConfig
    extents: dict[str, Any]
    schedule: dict[str, Any]

    @property
    def tiles(self) -> tuple[Any, Any]:
        """Tiles along (M, N)."""
        rows, columns = self.config.tile[0], self.config.columns
        return cluster_tiles(self.extents["m"], rows, 1), cluster_tiles(self.extents["n"], columns, 1)

    @property
    def ctas(self) -> Any:
        """CTAs of the grid."""
        tiles_m, tiles_n = self.tiles
        return tiles_m * tiles_n * self.extents["l"] * self.config.split

    def output(self, tiles_n: Any) -> Extent:
        """The output that the launch covers."""
        shape, schedule = self.extents, self.schedule
        partials = (schedule["partials.m"], schedule["partials.n"], schedule["partials.all"])
        return Extent(shape["m"], shape["n"], shape["l"], tiles_n, partials)

    def start(self, block: Any, tiles: tuple[Any, Any]) -> State:
        """The state of a CTA: (m, n, l) of its tile, and which split of K is its; `tiles` are those of `self.tiles`."""
        split = self.config.split
        index, part = block // split, block % split
        return (*tile_of(index, *tiles, self.schedule["group"], "m"), part)

    def work(self, state: State) -> Work:
        """The work tile of a state."""
        split, (m, n, batch, part) = self.config.split, state
        k_tiles = cluster_tiles(self.extents["k"], self.config.tile[2], 1)
        ends = (self.extents["m"], self.extents["n"])
        if split == 1:
            return Work(m, n, batch, cutlass.Int32(0), k_tiles, part, split, ends)
        first = part * (k_tiles // split) + cutlass.min(part, k_tiles % split)
        count = k_tiles // split + cutlass.Int32(part < k_tiles % split)
        return Work(m, n, batch, first, count, part, split, ends)

    def columns(self, work: Work) -> tuple[Any, Any]:
        """(first column, columns of the first k tile) of a work tile."""
        k, depth = self.extents["k"], self.config.tile[2]
        remainder = k - (cluster_tiles(k, depth, 1) - 1) * depth
        if work.splits == 1:
            return cutlass.Int32(0), remainder
        column = cutlass.select_(work.first == 0, cutlass.Int32(0), remainder + (work.first - 1) * depth)
        return column, cutlass.select_(work.first == 0, remainder, cutlass.Int32(depth))
