# SPDX-License-Identifier: Apache-2.0
"""What the tile schedulers of groups count in 32-bit integers, for any ends that the groups may have.

The host does not know where groups end, so each limit is that of the ends for which the scheduler counts furthest.
"""

from __future__ import annotations

import math

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.launches import MOST_COUNTED, block_of, check_extents, check_works, last_work
from cutegemm.planning.steps import Ends
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec


def works_of(config: KernelConfig, extents: tuple[int, int, int, int], packed: int) -> int:
    """The most work tiles that a launch of groups may have.

    Args:
        config: the kernel of groups.
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


def check_limits(
    spec: GemmSpec, problem: Problem, ends: Ends, swapped: bool, launch: tuple[KernelConfig, int, int]
) -> None:
    """Refuse groups that the tile scheduler of a launch cannot count.

    Args:
        problem: of all groups, with their number as its batch.
        ends: how they are told.
        swapped: whether the kernel computes D's transpose.
        launch: the kernel, its most work tiles, and its clusters.

    Raises:
        PlanError: a number may exceed 32 bits.
    """
    m, n, k = block_of(launch[0])
    check_extents(problem, (n, m, k) if swapped else (m, n, k))
    # a warp looks at a group per lane, also beyond the last group
    most = min(MOST_COUNTED // ends.width - ends.lead, MOST_COUNTED - LIMITS.warp)
    if ends.count > most:
        rule = f"a tile scheduler finds their ends among {MOST_COUNTED:,} words of 32 bits"
        raise field_error(PlanError, "groups", ends.count, rule, most)
    if problem.m * ends.indices > MOST_COUNTED:
        rule = f"{ends.indices} words of 32 bits an index, of which a kernel counts {MOST_COUNTED:,}"
        raise field_error(PlanError, "m", problem.m, rule, MOST_COUNTED // ends.indices)
    check_works(spec, problem, last_work(*launch), "groups")


__all__ = ["check_limits", "works_of"]
