# SPDX-License-Identifier: Apache-2.0
"""How many rows TMA's box of A has: those of the tile, or of few rows of D only as many as there are."""

from __future__ import annotations

from cutegemm.problems import round_up

# whether the planner takes tiles 64 x n with such boxes by itself (`narrow`), and gives them to tiles that it chose;
# not measured yet. A given tile has them in any case
NARROW_TILES = False
# rows of D up to which a box has no more than there are: beyond, they cost little beside the tile's columns
MOST_ROWS = 64
# stages that K must fill more than once, where a spec does not say how many a ring has
RING_STAGES = 8
# rows that a swizzle permutes among themselves
GROUP = 8


def box_rows(rows: int, tile: int, sharers: int) -> int:
    """Rows of the box of a tile of `tile` rows where the matrix has `rows`; 0 is all of the tile's.

    Args:
        sharers: CTAs that each load a part of the tile, which is then whole.
    """
    there = round_up(rows, GROUP)
    return there if there <= MOST_ROWS and there < tile and sharers == 1 else 0
