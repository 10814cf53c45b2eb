# SPDX-License-Identifier: Apache-2.0
"""Planning where a launch's CTAs meet: parts of K in workspace, and counters."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import KernelConfig
from cutegemm.launch_layout import SPLIT_PLACES, WORK_COUNTER
from cutegemm.planning.operands import WORKSPACE_ALIGN
from cutegemm.problems import round_up

COUNTER_BYTES = 4


@dataclass(frozen=True)
class Parts:
    """Everything a plan says of them.

    Attributes:
        places: in workspace, by name, bytes; workspace_bytes: with what was there before.
        counted: places among the run's counters, by name, bytes; counter_bytes: of all of them.
    """

    places: dict[str, int]
    workspace_bytes: int
    counted: dict[str, int]
    counter_bytes: int


def plan_parts(config: KernelConfig, tiles: tuple[int, int, int], clusters: int, start: int) -> Parts:
    """Plan a launch's parts of K and its counters: those of every slice of a tile, and beside them one of works.

    Args:
        clusters: launched.
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    parts_at, counters_at = SPLIT_PLACES
    count = math.prod(tiles) * config.slices * config.counts_kept
    counted = {counters_at: 0} if count else {}
    if config.dynamic:
        counted[WORK_COUNTER] = COUNTER_BYTES * count
    places, end = {}, start
    if config.split_reduction in ("workspace", "atomic", "launch"):
        places[parts_at] = round_up(end, WORKSPACE_ALIGN)
        # on a stream every CTA leaves at most one tile's first part and one tile's other part
        whole = config.kept_parts * math.prod(tiles)
        slots = 2 * clusters * config.cluster_size if config.streamed else whole
        end = places[parts_at] + 4 * config.tile[0] * config.tile[1] * slots
    return Parts(places, end, counted, COUNTER_BYTES * (count + config.dynamic))
