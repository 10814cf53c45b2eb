# SPDX-License-Identifier: Apache-2.0
"""Stream-K: every cluster computes the same number of k tiles, give or take one.

Where tiles do not fill whole waves, the last of them and one whole wave before are split along K over all clusters:
the k tiles of STREAMED tiles, one tile's after another's, fall into equal ranges, a cluster each. A range may begin
and end within a tile, so a tile may have several splits, which are reduced in workspace (`workspace_sum`). Other tiles
are computed whole. The ranges depend only on the problem and the number of clusters, so a result has the same bits on
every run.

Source: Osama, Merrill, Cecka, Garland, Owens: Stream-K, PPoPP 2023 (its two-tile hybrid).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.schedule.tile_scheduler import State, TileScheduler, tile_of
from cutegemm.kernels.schedule.work import Work


@dataclass(frozen=True)
class StreamKScheduler(TileScheduler):
    """The work tiles of one CTA. A state is (k tiles of the CTA's own sequence that are done,)."""

    @property
    def _count(self) -> Any:
        """Cluster tiles of the launch."""
        return self.tiles[0] * self.tiles[1] * self.tiles[2]

    @property
    def _streamed(self) -> Any:
        """How many of them are cut: those of the last, broken wave, and a wave of whole ones beside them."""
        rest = self._count % self.clusters
        broken = cutlass.Int32(rest > 0)
        return broken * cutlass.min(rest + self.clusters, self._count)

    @property
    def _range(self) -> tuple[Any, Any]:
        """This cluster's range of the streamed k tiles."""
        whole = self._streamed * self.k_tiles
        return self.cluster * whole // self.clusters, (self.cluster + 1) * whole // self.clusters

    def _owner(self, k_tile: Any) -> Any:
        """The cluster whose range holds a streamed k tile."""
        return ((k_tile + 1) * self.clusters - 1) // cutlass.max(self._streamed * self.k_tiles, 1)

    def start(self, skip: Any = 0) -> State:
        """The state of the CTA's first work tile."""
        return (cutlass.Int32(0),)

    def more(self, state: State) -> Any:
        """Whether there is a work tile to do."""
        first, end = self._range
        whole = (self._count - self._streamed) // self.clusters
        return state[0] < end - first + whole * self.k_tiles

    def next(self, state: State, count: int = 1) -> State:
        """The state after a work tile; work tiles have no common length, so only `count` 1."""
        return (state[0] + self.work(state).k_tiles,)

    def slot(self, work: Work, split: Any) -> Any:
        """A split's place in workspace: a CTA has one for a tile's first split and one for another."""
        cluster = self.cluster - work.split + split
        return (cluster * self.config.cluster_size + self.place.rank) * 2 + cutlass.Int32(split == 0)

    @cute.jit
    def work(self, state: State) -> Any:
        """The work tile of a state."""
        begin, end = self._range
        place = begin + state[0]
        beyond = state[0] - (end - begin)
        cut = cutlass.Boolean(place < end)
        streamed = place // self.k_tiles
        whole = self._streamed + beyond // self.k_tiles * self.clusters + self.cluster
        index = cutlass.select_(cut, streamed, whole)
        first = cutlass.select_(cut, place - streamed * self.k_tiles, cutlass.Int32(0))
        k_tiles = cutlass.select_(cut, cutlass.min(self.k_tiles - first, end - place), self.k_tiles)
        low = self._owner(streamed * self.k_tiles)
        high = self._owner(streamed * self.k_tiles + (self.k_tiles - 1))
        split = cutlass.select_(cut, self.cluster - low, cutlass.Int32(0))
        splits = cutlass.select_(cut, high - low + 1, cutlass.Int32(1))
        m, n, batch = tile_of(index, self.tiles[0], self.tiles[1], self.group, self.config.raster)
        return self.share(self.own(m, n, batch), first, k_tiles, split, splits)
