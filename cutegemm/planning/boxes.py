# SPDX-License-Identifier: Apache-2.0
"""How many rows TMA's box of A has: those of the tile, or of few rows of D only as many as there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cutegemm.problems import Problem, round_up

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Column = NDArray[float64]

Number = TypeVar("Number", int, "Column")

# rows of D up to which a box has no more than there are: beyond, they cost little beside the tile's columns
MOST_ROWS = 64
# stages that K must fill more than once, where a spec does not say how many a ring has
RING_STAGES = 8
# rows that a swizzle permutes among themselves
GROUP = 8


def box_rows(
    problem: Problem, tile: Number, sharers: Number, depth: Number, ring: int = RING_STAGES
) -> Number:
    """Rows of the box of A for a tile of `tile` rows; 0 is all of the tile's. Of columns of candidates, of each.

    All of a tile that is contiguous along its rows. And where K fills a ring but once: there zeroing the rest costs
    what it saves, and one kernel serves every M.

    Args:
        sharers: CTAs that each load a part of the tile, which is then whole.
        depth: of a stage, times the parts of K.
        ring: its stages.
    """
    there = round_up(problem.m, GROUP)
    pays = there <= MOST_ROWS and problem.a.unit_col
    found: Number = there * (pays & (there < tile) & (sharers == 1) & (problem.k > ring * depth))
    return found
