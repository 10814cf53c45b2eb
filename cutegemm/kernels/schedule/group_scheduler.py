# SPDX-License-Identifier: Apache-2.0
"""A persistent tile scheduler over groups: rows of D in groups of any size, with a matrix of weights for each.

Where the groups end is read on the device (`group_ends`): the host neither knows nor waits. Groups lie along the
kernel's M, or where operands are swapped along its N; masked ones are the first rows of a batch each. Cluster c takes
cluster tiles c, c + clusters, ... of all groups' tiles, one group's after another's. Every role finds a tile's group by
itself, going on from its last one.

Tiles of a group begin at its first row, so a group's last tile reaches into the next group: loads may read what they
find there, and stores end with the group. Rows of no group are zeroed after the last work tile, or left alone.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.epilogue.partial_reductions import ZeroParts
from cutegemm.kernels.schedule.group_ends import GroupEnds, first_lane, picked, scanned
from cutegemm.kernels.schedule.tile_scheduler import State, TileScheduler, cluster_tiles, tile_of
from cutegemm.kernels.schedule.work import Origin, Work
from cutegemm.kernels.schedule.zero_rows import Zeroed
from cutegemm.launch_layout import GROUP_ENDS


@dataclass(frozen=True)
class GroupScheduler(TileScheduler):
    """The work tiles of one CTA.

    A state is (number of the cluster tile among all groups', its group, the group's first cluster tile and the one
    after its last, its first row and the one after its last). Whole warps ask for states.
    """

    ends: Any = None  # GroupEnds
    tail: Any = None  # whether rows of no group are zeroed, Int32

    def placed(self, addresses: dict[str, Any], smem: Any) -> GroupScheduler:
        """The scheduler with the tensor that it reads."""
        masked, axis = self.config.masked, self.config.grouped
        ends = GroupEnds.create(addresses[GROUP_ENDS], self.launched, self.shape[axis], masked)
        return dataclasses.replace(self, ends=ends, tail=self.launched["tail"])

    def start(self, skip: Any = 0) -> State:
        """The state of the CTA's first work tile, or of the one `skip` work tiles later."""
        # before the first group there is one without rows
        zero, begin = cutlass.Int32(0), self.ends.begin()
        return self._found((self.cluster + skip * self.clusters, cutlass.Int32(-1), zero, zero, begin, begin))

    def next(self, state: State, count: int = 1) -> State:
        """The state `count` work tiles later."""
        return self._found((state[0] + self.clusters * count, *state[1:]))

    def more(self, state: State) -> Any:
        """Whether there is a work tile to do."""
        return state[1] < self.ends.count

    def work(self, state: State) -> Work:
        """The work tile of a state."""
        index, group, first, _, row, end = state
        tiles = self._tiles(end - row)
        m, n, _ = tile_of(index - first, *tiles, self.group, self.config.raster)
        return self._of(self.own(m, n, group), (row, end), cutlass.Int32(0), self.k_tiles)

    def _tiles(self, rows: Any) -> tuple[Any, Any]:
        """Cluster tiles along M and N of a group of so many rows."""
        config = self.config
        if config.grouped == "m":
            return cluster_tiles(rows, config.rows, config.cluster[0]), self.tiles[1]
        return self.tiles[0], cluster_tiles(rows, config.columns, config.cluster[1])

    def numbers(self, work: Work) -> tuple:
        """What a work tile's loads depend on, in numbers that a loop carries."""
        begin = cutlass.Int32(0)
        if not self.config.masked:
            begin = work.origins["a" if self.config.grouped == "m" else "b"].row
        return work.m, work.n, work.l, work.first, begin

    def of_numbers(self, numbers: tuple) -> Work:
        """The work tile of `numbers`, as far as its loads ask."""
        m, n, group, first, row = numbers
        return self._of((m, n, group), (row, row), first, 0)

    def _of(self, place: tuple[Any, Any, Any], rows: tuple[Any, Any], first: Any, k_tiles: Any) -> Work:
        """The work tile of a CTA tile (m, n, group) of the group that has these rows."""
        along_m, only = self.config.grouped == "m", cutlass.Int32(0)
        ends = (rows[1], self.shape["n"]) if along_m else (self.shape["m"], rows[1])
        whole = dataclasses.replace(self.share(place, first, k_tiles, cutlass.Int32(0), 1), ends=ends)
        if self.config.masked:
            return whole
        begin = Origin(row=rows[0], batch=only)
        places = (
            {"a": begin, "d": begin} if along_m else {"b": begin, "d": Origin(column=rows[0], batch=only)}
        )
        return dataclasses.replace(whole, origins=places)

    @cute.jit
    def _found(self, state: Any) -> Any:
        """The state of the same cluster tile with its group; beyond the last tile that is none of the groups.

        A warp looks at as many groups at once as it has lanes, a group each.
        """
        index, group, first, last, row, end = state
        # until a group has the tile, or none is left
        while (index >= last) & (group < self.ends.count):
            group, first, last, row, end = self._looked(index, group, last, end)
        return index, group, first, last, row, end

    def _looked(self, index: Any, group: Any, last: Any, end: Any) -> tuple:
        """(group, its first tile, the one after its last, its first row, the one after its last) of a tile.

        Of a tile beyond the groups that the warp looks at those of the last of them.

        Args:
            index: the tile's number.
            group, last, end: the group before those that are looked at; the tile and the row after its last ones.
        """
        row, ends, lane = self.ends.looked(group, end)
        along_m, along_n = self._tiles(ends - row)
        tiles = along_m * along_n
        after = last + scanned(tiles, lane, lambda x, y: x + y)
        which = first_lane(after <= index)
        first, last, end = picked(which, after - tiles, after, ends)
        row = row if self.config.masked else picked(which, row)[0]
        return group + 1 + which, first, last, row, end

    @cute.jit
    def end_rows(self, state: Any, epilogue: cutlass.Constexpr, thread: Any, threads: Any) -> None:
        """After the last work tile: zero the rows of no group, if that is asked for; by all consumers of the launch.

        Their reductions are 0 in any case, as a launch that follows reads what they are made of.

        Args:
            state: without a work tile.
            epilogue: of the launch.
            thread, threads: which of how many threads of the launch's consumers this is.
        """
        if self.tail > 0:
            for output in epilogue.outputs:
                self._zero(Zeroed.of(output, self.config.grouped, self.shape, thread, threads), state)
        for partials in epilogue.partials:
            self._zero(ZeroParts(partials, thread, threads), state)

    @cute.jit
    def _zero(self, zeroed: cutlass.Constexpr, state: Any) -> None:
        """Zero the rows of no group of an output, or of a reduction."""
        if cutlass.const_expr(self.config.masked):
            for group in cutlass.range(self.ends.count, unroll=1):
                zeroed.zero(group, self.ends.extent_of(group), self.ends.extent)
        else:
            zeroed.zero(cutlass.Int32(0), cutlass.Int32(0), self.ends.begin())
            zeroed.zero(cutlass.Int32(0), state[5], self.ends.extent)
