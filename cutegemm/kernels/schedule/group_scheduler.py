# SPDX-License-Identifier: Apache-2.0
"""A persistent tile scheduler over groups: rows of D in groups of any size, with a matrix of weights for each.

The ends of the groups are read on the device (`group_ends`), so the host neither knows them nor synchronises. Groups
lie along the kernel's M, or along its N if operands are swapped; a masked group is the first rows of its own batch.
Cluster tiles are numbered through all groups, one group after another, and cluster c takes tiles c, c + clusters, ...
Every role searches a tile's group by itself, starting from the group of its last tile.

A group's tiles begin at its first row, so its last tile may reach into the next group: loads read the rows there, and
stores end with the group. Rows of no group are zeroed after the last work tile, or left alone.

A launch may leave groups of some sizes to another, which has tiles for them: for it they have no tile.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.epilogue.partial_reductions import ZeroParts
from cutegemm.kernels.schedule.group_ends import (
    FAR,
    NEAR,
    GroupEnds,
    broadcast,
    chosen,
    first_false_lane,
    inclusive_scan,
)
from cutegemm.kernels.schedule.tile_scheduler import State, TileScheduler, cluster_tiles, tile_of
from cutegemm.kernels.schedule.work import Origin, Work
from cutegemm.kernels.schedule.zero_rows import Zeroed
from cutegemm.launch_layout import GROUP_ENDS


@dataclass(frozen=True)
class GroupScheduler(TileScheduler):
    """The work tiles of one CTA.

    A state is (number of the cluster tile in all groups, its group, the group's first cluster tile and one past its
    last, the group's first row and one past its last). Whole warps call its methods.
    """

    ends: Any = None  # GroupEnds
    tail: Any = None  # whether rows of no group are zeroed, Int32
    sizes: tuple[Any, Any] | None = None  # least and most rows of the groups that it computes, Int32

    def placed(self, addresses: dict[str, Any], smem: Any) -> GroupScheduler:
        """The scheduler with the tensor that it reads."""
        masked, axis = self.config.masked, self.config.grouped
        ends = GroupEnds.create(addresses[GROUP_ENDS], self.launched, self.shape[axis], masked)
        sizes = self.launched["rows.least"], self.launched["rows.most"]
        return dataclasses.replace(self, ends=ends, tail=self.launched["tail"], sizes=sizes)

    def before(self) -> State:
        """The state before any work tile: of an empty group -1."""
        zero, begin = cutlass.Int32(0), self.ends.begin()
        return (cutlass.Int32(-1), cutlass.Int32(-1), zero, zero, begin, begin)

    def at(self, index: Any, state: State, first: bool) -> State:
        """The state of the index-th cluster tile of all groups, searched from the state's group on."""
        return self._found((index, *state[1:]), not first)

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
        """Cluster tiles along M and N of a group with `rows` rows."""
        config = self.config
        if config.grouped == "m":
            return cluster_tiles(rows, config.rows, config.cluster[0]), self.tiles[1]
        return self.tiles[0], cluster_tiles(rows, config.columns, config.cluster[1])

    def _computed(self, rows: Any) -> Any:
        """A group's rows, none if its size is left to another launch."""
        least, most = self.sizes
        own = cutlass.Boolean(rows >= least) & cutlass.Boolean(rows <= most)
        return cutlass.select_(own, rows, cutlass.Int32(0))

    def numbers(self, work: Work) -> tuple:
        """What a work tile's loads depend on, in numbers that a loop carries."""
        begin = cutlass.Int32(0)
        if not self.config.masked:
            begin = work.origins["a" if self.config.grouped == "m" else "b"].row
        return work.m, work.n, work.l, work.first, begin

    def of_numbers(self, numbers: tuple) -> Work:
        """The work tile of `numbers`, right in the fields that its loads read."""
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
    def _found(self, state: Any, near: cutlass.Constexpr) -> Any:
        """The state of the same cluster tile with its group; beyond the last tile `ends.count` or more.

        Args:
            near: whether the tile is likely to be in one of the next 32 groups, which are searched first.
        """
        index, group, first, last, row, end = state
        if cutlass.const_expr(near):
            if (index >= last) & (group < self.ends.count):
                group, first, last, row, end = self._search(index, group, last, end, NEAR)
        # until the tile is in the group, or no group is left
        while (index >= last) & (group < self.ends.count):
            group, first, last, row, end = self._search(index, group, last, end, FAR)
        return index, group, first, last, row, end

    def _search(self, index: Any, group: Any, last: Any, end: Any, each: int) -> tuple:
        """(group, its first tile, one past its last tile, its first row, one past its last row) of a tile.

        For a tile beyond the groups that a warp searches, those of the last of them.

        Args:
            index: the tile's number.
            group, last, end: the group to search after; one past its last tile and one past its last row.
            each: groups that a lane looks at.
        """
        found, lane = self.ends.after(group, end, each)
        extents = [self._tiles(self._computed(y - x)) for x, y in found]
        tiles = list(itertools.accumulate(along_m * along_n for along_m, along_n in extents))
        # one past the last tile of all lanes before this one, then of each of its groups
        start = last + inclusive_scan(tiles[-1], lane, lambda x, y: x + y) - tiles[-1]
        after = [start, *(start + x for x in tiles)]
        which = first_false_lane(after[-1] <= index)
        # the first of a lane's groups that ends after the tile, or the last
        place = sum((cutlass.Int32(x <= index) for x in after[1:-1]), cutlass.Int32(0))
        places = [group + 1 + lane * each + i for i in range(each)]
        rows, ends = zip(*found)
        columns = (places, after[:-1], after[1:], rows, ends)
        return broadcast(which, *(chosen(place, x) for x in columns))

    @cute.jit
    def end_rows(self, state: Any, epilogue: cutlass.Constexpr, thread: Any, threads: Any) -> None:
        """After the last work tile: zero the rows of no group, if requested; by all consumers of the launch.

        Partial results of reductions are always zeroed there, since a later launch reads them.

        Args:
            state: the state after the last work tile.
            epilogue: of the launch.
            thread, threads: this thread's number among the consumer threads of the launch, and their count.
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
