# SPDX-License-Identifier: Apache-2.0
"""Where groups end, as a tensor on the device says: read in any of its forms, and kept inside the axis.

An end counts as the nearest place that it may be: at least 0, at most the axis' extent, and not before the end of any
group before it. So groups are disjoint and inside the matrix, whatever the tensor holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.memory_views import elements_at


@dataclass(frozen=True)
class GroupEnds:
    """The ends of the groups along one axis, or of masked groups how many rows of its batch each has.

    Attributes:
        words: Int32 in global memory, `width` of them a number, the lowest first.
        width: 1 of 32-bit numbers, 2 of 64-bit ones.
        lead: 1 where the first group's begin stands before the ends, else 0.
        count: groups.
        extent: of the axis, of masked groups of each batch.
        masked: whether numbers are extents of groups, each in a batch of its own.
    """

    words: Any
    width: Any
    lead: Any
    count: Any
    extent: Any
    masked: bool

    @staticmethod
    def create(address: Any, schedule: dict[str, Any], extent: Any, masked: bool) -> GroupEnds:
        """From the address of the tensor and the launch's group "schedule"."""
        width, lead, count = (schedule[x] for x in ("ends.width", "ends.lead", "groups"))
        words = elements_at(cutlass.Int32, address, (count + lead) * width)
        return GroupEnds(words, width, lead, count, extent, masked)

    def _number(self, index: Any) -> Any:
        """A number of the tensor, kept inside [0, extent]."""
        low = self.words[index * self.width]
        # of a 32-bit number the same word: its sign
        high = self.words[index * self.width + (self.width - 1)]
        beyond = cutlass.Boolean(self.width == 2) & (cutlass.Boolean(high > 0) | cutlass.Boolean(low < 0))
        found = cutlass.select_(beyond, self.extent, cutlass.min(low, self.extent))
        return cutlass.select_(high < 0, cutlass.Int32(0), found)

    @cute.jit
    def begin(self) -> Any:
        """Where the first group begins."""
        found = cutlass.Int32(0)
        if self.lead > 0:
            found = self._number(cutlass.Int32(0))
        return found

    def looked(self, group: Any, end: Any) -> tuple[Any, Any, Any]:
        """(begin, end) of the groups after `group`, a group a lane, and the lane; whole warps ask.

        Of lanes beyond the last group begin and end are the same.

        Args:
            end: where `group` ends.
        """
        lane = cute.arch.lane_idx()
        mine = group + 1 + lane
        number = self._number(cutlass.min(mine, self.count - 1) + self.lead)
        if self.masked:
            return cutlass.Int32(0), cutlass.select_(mine < self.count, number, cutlass.Int32(0)), lane
        ends = scanned(cutlass.max(number, end), lane, cutlass.max)
        before = cute.arch.shuffle_sync_up(ends, 1)
        return cutlass.select_(lane == 0, end, before), ends, lane

    def extent_of(self, group: Any) -> Any:
        """Rows of a masked group."""
        return self._number(group)


def scanned(value: Any, lane: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """A lane's value combined with those of all lanes before it."""
    for offset in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(value, offset)
        value = cutlass.select_(lane >= offset, combine(value, other), value)
    return value


def picked(lane: Any, *values: Any) -> tuple[Any, ...]:
    """The values of one lane, for all."""
    return tuple(cute.arch.shuffle_sync(x, lane) for x in values)


def first_lane(passed: Any) -> Any:
    """The first lane that a condition, true of none after a false one, is false of; the last one where all pass."""
    return cutlass.min(cute.arch.popc(cute.arch.vote_ballot_sync(passed)), hw.WARP - 1)
