# SPDX-License-Identifier: Apache-2.0
"""The ends of groups: read from a tensor on the device in each of its forms, and clamped.

An end is clamped to [0, extent of the axis], and to the ends of the groups before it. So groups are disjoint and inside
the matrix, whatever the tensor holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.arch import sm90 as hw
from cutegemm.kernels.memory_views import elements_at

# neighbouring groups that a lane looks at: in a search for a CTA's first work tile, which may be in any group, and for
# the next one, which is in one of the next groups. A search of more groups takes fewer reads, but more instructions.
FAR, NEAR = 4, 1


@dataclass(frozen=True)
class GroupEnds:
    """The ends of the groups along one axis; for masked groups the number of rows that each uses of its batch.

    Attributes:
        words: the tensor as Int32 in global memory, `width` words for each number, low word first.
        width: 1 for 32-bit numbers, 2 for 64-bit ones.
        lead: 1 if the tensor begins with the first group's first row, else 0.
        count: how many groups there are.
        extent: of the axis; for masked groups of each batch.
        masked: whether numbers are row counts of groups, each in its own batch.
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
        """A number of the tensor, clamped to [0, extent]."""
        low = self.words[index * self.width]
        # for a 32-bit number the same word, which has its sign
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

    def after(self, group: Any, end: Any, each: int) -> tuple[list[tuple[Any, Any]], Any]:
        """The groups after `group`: (begin, end) of each of a lane's `each` neighbours, and the lane.

        Whole warps call it. Beyond the last group begin and end are equal. All numbers are requested at once: the
        time to read one from L2 is most of a search's.

        Args:
            end: the end of `group`.
        """
        lane = cute.arch.lane_idx()
        mine = [group + 1 + lane * each + i for i in range(each)]
        numbers = [self._number(cutlass.min(x, self.count - 1) + self.lead) for x in mine]
        if self.masked:
            none = cutlass.Int32(0)
            return [(none, cutlass.select_(x < self.count, y, none)) for x, y in zip(mine, numbers)], lane
        numbers[0] = cutlass.max(numbers[0], end)
        most = list(itertools.accumulate(numbers, cutlass.max))
        before = cute.arch.shuffle_sync_up(inclusive_scan(most[-1], lane, cutlass.max), 1)
        ends = [cutlass.select_(lane == 0, end, before)]
        ends += [cutlass.max(x, ends[0]) for x in most]
        return list(itertools.pairwise(ends)), lane

    def extent_of(self, group: Any) -> Any:
        """Rows of a masked group."""
        return self._number(group)


def inclusive_scan(value: Any, lane: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """A lane's value combined with those of all lanes before it, in log2(32) shuffles."""
    for offset in (1, 2, 4, 8, 16):
        other = cute.arch.shuffle_sync_up(value, offset)
        value = cutlass.select_(lane >= offset, combine(value, other), value)
    return value


def broadcast(lane: Any, *values: Any) -> tuple[Any, ...]:
    """The values of one lane, in all lanes."""
    return tuple(cute.arch.shuffle_sync(x, lane) for x in values)


def chosen(which: Any, values: Sequence[Any]) -> Any:
    """The value at a place that is only known on the device."""
    found = values[0]
    for i, value in enumerate(values[1:], 1):
        found = cutlass.select_(which >= i, value, found)
    return found


def first_false_lane(condition: Any) -> Any:
    """The first lane whose condition is false, or the last lane if all are true.

    The condition must be monotonic over the lanes: true up to some lane, false from there on.
    """
    return cutlass.min(cute.arch.popc(cute.arch.vote_ballot_sync(condition)), hw.WARP - 1)
