# SPDX-License-Identifier: Apache-2.0
"""Planning what parts of K leave in workspace: their tiles, the counters, and the launch that zeroes those."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import ClearConfig, KernelConfig
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
    """Plan a launch's parts of K.

    Args:
        clusters: launched.
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    if config.split_reduction != "workspace":
        return Parts((), {}, start)
    count = math.prod(tiles)
    counters = round_up(start, WORKSPACE_ALIGN)
    parts = round_up(counters + 4 * count, WORKSPACE_ALIGN)
    # on a stream every CTA leaves at most one tile's first part and one tile's other part
    slots = 2 * clusters * config.cluster_size if config.streamed else config.splits * count
    end = parts + 4 * config.tile[0] * config.tile[1] * slots
    clear = Clear(config=ClearConfig(), offset=counters, counters=count)
    return Parts((clear,), {"split.parts": parts, "split.counters": counters}, end)
