# SPDX-License-Identifier: Apache-2.0
"""A persistent tile scheduler over groups along K: a GEMM for each group, of its columns of A and its rows of B.

D has a batch for each group. The ends of the groups are read on the device (`group_ends`). A group's last k tile may
reach into the next group; the elements beyond the group's end are zeroed in shared memory (`mainloop.ragged_tail`). An
empty group has no k tiles: nothing is loaded for it, and its batch of D is the epilogue of 0.

With block scales k tiles are those of the whole K (`scale_places.aligned`): a group's first one is the k tile in which
it begins. The elements before the group are zeroed, too. Groups that meet inside a k tile each load it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.config import scale_places
from cutegemm.kernels.schedule.group_ends import FAR, NEAR, GroupEnds, broadcast, chosen
from cutegemm.kernels.schedule.tile_scheduler import State, TileScheduler, cluster_tiles, tile_of
from cutegemm.kernels.schedule.work import Origin, Work
from cutegemm.launch_layout import GROUP_ENDS


@dataclass(frozen=True)
class GroupDepthScheduler(TileScheduler):
    """The work tiles of one CTA.

    A state is (index of the cluster's work tile, its group, where the group begins and ends along K).
    """

    ends: Any = None  # GroupEnds

    def placed(self, addresses: dict[str, Any], shared: Any) -> GroupDepthScheduler:
        """The scheduler with the tensor that it reads."""
        found = GroupEnds.create(addresses[GROUP_ENDS], self.launched, self.shape["k"], False)
        return dataclasses.replace(self, ends=found)

    def before(self) -> State:
        """The state before any work tile: of an empty group -1."""
        begin = self.ends.begin()
        return (cutlass.Int32(-1), cutlass.Int32(-1), begin, begin)

    def at(self, index: Any, state: State, first: bool) -> State:
        """The state of the index-th work tile of all clusters, searched from the state's group on."""
        return self._found((index, *state[1:]), FAR if first else NEAR)

    def stages_before(self, first: Any) -> Any:
        """K tiles of the CTA's first work tile if another consumer computes it, else 0."""
        return cutlass.select_(first > 0, self.work(self.peek_first()).k_tiles, cutlass.Int32(0))

    def stages_between(self, state: State) -> Any:
        """K tiles of the work tile after a state's."""
        return self.work(self.peek_next(state)).k_tiles

    def follows(self, state: State) -> Any:
        """Whether there is a work tile after a state's. It does not search that tile's group."""
        return self.more((state[0] + self.clusters,))

    def work(self, state: State) -> Work:
        """The work tile of a state."""
        index, _, begin, end = state
        m, n, group = tile_of(index, self.tiles[0], self.tiles[1], self.group, self.config.raster)
        place, depth = self.own(m, n, group), self.config.tile[2]
        if scale_places.aligned(self.config):
            first = begin // depth
            loaded = first * depth
            k_tiles = cutlass.select_(end > begin, cluster_tiles(end - loaded, depth, 1), cutlass.Int32(0))
            rest = end - loaded - (k_tiles - 1) * depth
            return dataclasses.replace(
                self._of(place, first, k_tiles, cutlass.Int32(0), rest), before=begin - loaded
            )
        k_tiles = cluster_tiles(end - begin, depth, 1)
        return self._of(place, cutlass.Int32(0), k_tiles, begin, end - begin - (k_tiles - 1) * depth)

    def numbers(self, work: Work) -> tuple:
        """What a work tile's loads depend on, in numbers that a loop carries."""
        return work.m, work.n, work.l, work.first, work.origins["a"].column

    def of_numbers(self, numbers: tuple) -> Work:
        """The work tile of `numbers`, right in the fields that its loads read."""
        m, n, group, first, column = numbers
        return self._of((m, n, group), first, 0, column, 0)

    def _of(self, place: tuple[Any, Any, Any], first: Any, k_tiles: Any, column: Any, rest: Any) -> Work:
        """The work tile of a CTA tile (m, n, group), with k tiles counted from a column and so much of the last one."""
        whole = self.share(place, first, k_tiles, cutlass.Int32(0), 1)
        origin = Origin(column=column, batch=cutlass.Int32(0))
        return dataclasses.replace(whole, origins={"a": origin, "b": origin}, rest=rest)

    @cute.jit
    def _found(self, state: Any, each: cutlass.Constexpr) -> Any:
        """The state of the same index with its group, searched from the state's group on.

        Args:
            each: groups that a lane of a warp looks at.
        """
        index, group, begin, end = state
        wanted = cutlass.min(index // (self.tiles[0] * self.tiles[1]), self.ends.count - 1)
        while group < wanted:
            group, begin, end = self._search(group, wanted, end, each)
        return index, group, begin, end

    def _search(self, group: Any, wanted: Any, end: Any, each: int) -> tuple:
        """(group, begin, end) of the wanted group, or of the last of those that a warp looks at."""
        found, _ = self.ends.after(group, end, each)
        which = cutlass.min(wanted - group - 1, cutlass.Int32(each * hw.WARP - 1))
        begin, end = broadcast(which // each, *(chosen(which % each, x) for x in zip(*found)))
        return group + 1 + which, begin, end
