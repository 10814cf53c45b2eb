# SPDX-License-Identifier: Apache-2.0
"""Groups whose sizes the host does not know: their most work tiles, and two launches if sizes differ widely.

One launch has the tiles of small groups, one those of large ones. Each reads the ends of all groups and computes those
of its own sizes.
"""

from __future__ import annotations

import dataclasses
import math

from cutegemm.config import KernelConfig
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import MOST_ROWS, Multiply


def by_size(small: KernelPlan, large: KernelPlan, most: int) -> KernelPlan:
    """The plan of both launches.

    Args:
        small, large: plans of one launch over the same groups, without reductions. That of `small` zeroes the rows of
            no group.
        most: rows of the largest group that `small` computes.
    """
    (first,), (last,) = small.steps, large.steps
    assert isinstance(first, Multiply) and isinstance(last, Multiply) and first.groups and last.groups
    counted = {name: small.counter_bytes + offset for name, offset in last.counted.items()}
    steps = (
        dataclasses.replace(first, groups=dataclasses.replace(first.groups, sizes=(0, most))),
        dataclasses.replace(
            last, groups=dataclasses.replace(last.groups, sizes=(most + 1, MOST_ROWS)), counted=counted
        ),
    )
    tile = " x ".join(map(str, last.along_d(last.config.tile)))
    reason = f"groups of more than {most} rows have a launch of their own, in tiles of {tile}"
    return dataclasses.replace(
        small,
        steps=steps,
        reasons=(*small.reasons, reason),
        counter_bytes=small.counter_bytes + large.counter_bytes,
    )


def group_works(config: KernelConfig, extents: tuple[int, int, int, int], packed: int) -> int:
    """The most work tiles that a launch of groups may have, wherever the groups end.

    Args:
        extents: (m, n, k, l) as the kernel sees them: of all groups if they lie in one matrix, else of each.
        packed: groups that lie in one matrix; 0 if each has a matrix of D.
    """
    each = (config.rows * config.cluster[0], config.columns * config.cluster[1])
    tiles = [math.ceil(x / y) for x, y in zip(extents, each, strict=False)]
    if packed:
        # a group begins with a tile of its own, so each may have one more than its rows fill
        axis = "mn".index(config.grouped)
        tiles[axis] = extents[axis] // each[axis] + min(packed, extents[axis])
    found: int = tiles[0] * tiles[1] * extents[3]
    return found


__all__ = ["by_size", "group_works"]
