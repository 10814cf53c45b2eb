# SPDX-License-Identifier: Apache-2.0
"""How many tiles groups of random sizes have in the mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cutegemm.config.numbers import Number

Column = NDArray[np.float64]

# tiles of a group that are counted one by one, slope of the logistic curve that is nearest to the normal distribution
# (Camilli 1994), and largest exponent
MOST_TILES, NORMAL, EXPONENTS = 12, 1.702, 50.0


def mean_tiles(average: Number, lines: Column) -> Column:
    """The mean number of tiles of a group.

    The numbers of rows of groups are about normally distributed, as those of random routing. A group has one more tile
    for each multiple of a tile's extent that its rows exceed. Where that is many tiles, the last is half full in the
    mean.

    Args:
        average: rows of a group.
        lines: extent of each config's tile along the groups.
    """
    first = share_with_rows(average)
    slope = NORMAL / np.sqrt(np.maximum(average, 1.0))
    steps = np.arange(1.0, MOST_TILES)[:, None] * lines
    more = 1 / (1 + np.exp(np.clip((steps - average) * slope, -EXPONENTS, EXPONENTS)))
    found: Column = np.where(
        average / lines > MOST_TILES / 2, average / lines + 0.5, first + more.sum(axis=0)
    )
    return found


def share_with_rows(average: Number) -> Number:
    """The share of groups that have rows."""
    return -np.expm1(-np.asarray(average, dtype=np.float64))
