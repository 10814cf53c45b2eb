# SPDX-License-Identifier: Apache-2.0
"""A persistent tile scheduler over groups: rows of A and D in groups of any size, with a matrix of B for each.

Where the groups end is read on the device: the host neither knows nor waits. Group g begins where the one before it
ends and ends before row ends[g]. An end before the group's begin or beyond the matrix counts as the nearest one that is
neither, so groups are disjoint whatever the tensor holds. Cluster c takes cluster tiles c, c + clusters, ... of all
groups' tiles, one group's after another's. Every role finds a tile's group by itself, going on from its last one.

Tiles of a group begin at its first row, so a group's last tile reaches into the next group: loads may read what they
find there, and stores end with the group. No row outside the groups is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.scheduler import State, Walk, cluster_tiles, tile_of
from cutegemm.kernels.work import Origin, Work
from cutegemm.launch_layout import GROUP_ENDS


@dataclass(frozen=True)
class GroupedWalk(Walk):
    """The works of one CTA.

    A state is (number of the cluster tile among all groups', its group, the group's first cluster tile and the one
    after its last, its first row and the one after its last). Whole warps ask for states.
    """

    ends: Any = None  # (groups) Int32 in global memory

    def placed(self, addresses: dict[str, Any], smem: Any) -> GroupedWalk:
        """The scheduler with the tensor that it reads."""
        ptr = cute.make_ptr(cutlass.Int32, addresses[GROUP_ENDS], cute.AddressSpace.gmem, assumed_align=4)
        return dataclasses.replace(self, ends=cute.make_tensor(ptr, cute.make_layout(self.groups)))

    @property
    def groups(self) -> Any:
        """How many there are: as many as B has matrices."""
        return self.shape["b.l"]

    def start(self, skip: Any = 0) -> State:
        """The state of the CTA's first work, or of the one `skip` works later."""
        # before the first group there is one without rows
        zero = cutlass.Int32(0)
        return self._found((self.cluster + skip * self.clusters, cutlass.Int32(-1), zero, zero, zero, zero))

    def next(self, state: State, count: int = 1) -> State:
        """The state `count` works later."""
        return self._found((state[0] + self.clusters * count, *state[1:]))

    def more(self, state: State) -> Any:
        """Whether there is a work to do."""
        return state[1] < self.groups

    def work(self, state: State) -> Work:
        """The work of a state."""
        index, group, first, _, row, end = state
        tiles_m = cluster_tiles(end - row, self.config.rows, self.config.cluster[0])
        m, n, _ = tile_of(index - first, tiles_m, self.tiles[1], self.group, self.config.raster)
        cluster_m, cluster_n = self.config.cluster
        place = (m * cluster_m + self.place.m, n * cluster_n + self.place.n, group)
        return self._of(place, (row, end), cutlass.Int32(0), self.k_tiles)

    @property
    def no_numbers(self) -> tuple:
        """As many zeros as `numbers` are, and one more."""
        return (cutlass.Int32(0),) * 6

    def numbers(self, work: Work) -> tuple:
        """What a work's loads depend on, in numbers that a loop carries."""
        return work.m, work.n, work.l, work.first, work.origins["a"].row

    def of_numbers(self, numbers: tuple) -> Work:
        """The work of `numbers`, as far as its loads ask."""
        m, n, group, first, row = numbers
        return self._of((m, n, group), (row, row), first, 0)

    def _of(self, place: tuple[Any, Any, Any], rows: tuple[Any, Any], first: Any, k_tiles: Any) -> Work:
        """The work of a CTA tile (m, n, group) of the group that has these rows."""
        begin = Origin(row=rows[0], batch=cutlass.Int32(0))
        whole = self.share(place, first, k_tiles, cutlass.Int32(0), 1)
        return dataclasses.replace(whole, origins={"a": begin, "d": begin}, ends=(rows[1], self.shape["n"]))

    @cute.jit
    def _found(self, state: Any) -> Any:
        """The state of the same cluster tile with its group; beyond the last tile that is none of the groups.

        A warp looks at as many groups at once as it has lanes, a group each.
        """
        index, group, first, last, row, end = state
        # until a group has the tile, or none is left
        while (index >= last) & (group < self.groups):
            group, first, last, row, end = self._looked(index, group, last, end)
        return index, group, first, last, row, end

    def _looked(self, index: Any, group: Any, last: Any, end: Any) -> tuple:
        """(group, its first tile, the one after its last, its first row, the one after its last) of a tile.

        Of a tile beyond the groups that the warp looks at those of the last of them.

        Args:
            index: the tile's number.
            group, last, end: the group before those that are looked at; the tile and the row after its last ones.
        """
        lane = cute.arch.lane_idx()
        # a group that is none has no rows
        mine = cutlass.min(group + 1 + lane, self.groups - 1)
        ends = scanned(cutlass.max(cutlass.min(self.ends[mine], self.shape["m"]), end), lane, cutlass.max)
        before = cute.arch.shuffle_sync_up(ends, 1)
        row = cutlass.select_(lane == 0, end, before)
        tiles = cluster_tiles(ends - row, self.config.rows, self.config.cluster[0]) * self.tiles[1]
        after = last + scanned(tiles, lane, lambda x, y: x + y)
        passed = cute.arch.popc(cute.arch.vote_ballot_sync(after <= index))
        which = cutlass.min(passed, hw.WARP - 1)
        first = cute.arch.shuffle_sync(after - tiles, which)
        last, row, end = (cute.arch.shuffle_sync(x, which) for x in (after, row, ends))
        return group + 1 + which, first, last, row, end


def scanned(value: Any, lane: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """A lane's value combined with those of all lanes before it."""
    for offset in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(value, offset)
        value = cutlass.select_(lane >= offset, combine(value, other), value)
    return value
