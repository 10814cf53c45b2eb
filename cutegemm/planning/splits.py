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
    """Plan a launch's parts of K and its counters: one of every slice of a tile, and beside them one of works.

    Args:
        clusters: launched.
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    parts_at, counters_at = SPLIT_PLACES
    steps: tuple[Clear, ...] = ()
    places: dict[str, int] = {}
    end = start
    count = math.prod(tiles) * config.slices if config.counts else 0
    if count + config.dynamic:
        counters = round_up(start, WORKSPACE_ALIGN)
        steps = (Clear(config=ClearConfig(), offset=counters, counters=count + config.dynamic),)
        places |= {WORK_COUNTER: counters + 4 * count} if config.dynamic else {}
        places |= {counters_at: counters} if count else {}
        end = counters + 4 * (count + config.dynamic)
    if config.split_reduction in ("workspace", "launch"):
        places[parts_at] = round_up(end, WORKSPACE_ALIGN)
        # on a stream every CTA leaves at most one tile's first part and one tile's other part
        whole = config.outer_parts * math.prod(tiles)
        slots = 2 * clusters * config.cluster_size if config.streamed else whole
        end = places[parts_at] + 4 * config.tile[0] * config.tile[1] * slots
    return Parts(steps, places, end)
