# SPDX-License-Identifier: Apache-2.0
"""Planning what a launch keeps in workspace: parts of K, counters, and the launch that zeroes those."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import ClearConfig, KernelConfig
from cutegemm.launch_layout import SPLIT_PLACES, WORK_COUNTER
from cutegemm.planning.operands import WORKSPACE_ALIGN
from cutegemm.planning.steps import Clear
from cutegemm.problems import round_up


@dataclass(frozen=True)
class Parts:
    """Everything a plan says of them: launches before the GEMM, places by name, bytes of the workspace so far."""

    steps: tuple[Clear, ...]
    places: dict[str, int]
    workspace_bytes: int


def plan_parts(config: KernelConfig, tiles: tuple[int, int, int], clusters: int, start: int) -> Parts:
    """Plan a launch's parts of K and its counters, which lie side by side: one of works, one of every tile's parts.

    Args:
        clusters: launched.
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    meets = config.split_reduction == "workspace"
    count = math.prod(tiles) if meets else 0
    counters = round_up(start, WORKSPACE_ALIGN)
    size = count + config.dynamic
    if not size:
        return Parts((), {}, start)
    places = {WORK_COUNTER: counters + 4 * count} if config.dynamic else {}
    end = counters + 4 * size
    if meets:
        parts = round_up(end, WORKSPACE_ALIGN)
        # on a stream every CTA leaves at most one tile's first part and one tile's other part
        slots = 2 * clusters * config.cluster_size if config.streamed else config.splits * count
        end = parts + 4 * config.tile[0] * config.tile[1] * slots
        places |= dict(zip(SPLIT_PLACES, (parts, counters), strict=True))
    return Parts((Clear(config=ClearConfig(), offset=counters, counters=size),), places, end)
