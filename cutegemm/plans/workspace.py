# SPDX-License-Identifier: Apache-2.0
"""What the CTAs of a launch share in device memory: partial sums of splits, counters, partial results of reductions."""

from __future__ import annotations

import math
from typing import NamedTuple

from cutegemm.config import FinishConfig, GemmConfig, KernelConfig
from cutegemm.config.numbers import round_up
from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.launch_layout import SPLIT_PLACES, WORK_COUNTER
from cutegemm.plans.steps import Finish
from cutegemm.problems import Problem, output_extent

# bytes: alignment of torch's allocations, enough for TMA
WORKSPACE_ALIGN = 256
COUNTER_BYTES = 4
WORK_COUNTERS = 2  # of a dynamic scheduler: numbers taken, clusters that take no more


class Parts(NamedTuple):
    """Byte offsets of splits in workspace and among the run's counters, by name, and the sizes of both."""

    places: dict[str, int]
    workspace_bytes: int
    counted: dict[str, int]
    counter_bytes: int


def plan_parts(config: KernelConfig, tiles: tuple[int, int, int], clusters: int, start: int) -> Parts:
    """Plan partial sums, counters of every slice of a tile and of a dynamic scheduler, behind `start` bytes."""
    parts_at, counters_at = SPLIT_PLACES
    count = math.prod(tiles) * config.slices * config.counts_kept
    counted = {counters_at: 0} if count else {}
    if config.dynamic:
        counted[WORK_COUNTER] = COUNTER_BYTES * count
    places, end = {}, start
    if config.split_reduction in ("workspace", "atomic", "launch"):
        places[parts_at] = round_up(end, WORKSPACE_ALIGN)
        # with Stream-K every CTA stores partial sums of at most two tiles
        whole = config.kept_splits * math.prod(tiles)
        slots = 2 * clusters * config.cluster_size if config.streamed else whole
        end = places[parts_at] + 4 * config.tile[0] * config.tile[1] * slots
    return Parts(places, end, counted, COUNTER_BYTES * (count + config.dynamic * WORK_COUNTERS))


class Reductions(NamedTuple):
    """The launches that finish reductions, partial results per result along (rows, columns, all), and the workspace."""

    steps: tuple[Finish, ...]
    parts: tuple[int, int, int]
    workspace_bytes: int

    @property
    def partials(self) -> dict[str, int]:
        """Byte offsets in the workspace of those that a launch finishes."""
        return {x.output: x.offset for x in self.steps}


def plan_reductions(
    config: GemmConfig, problem: Problem, tiles: tuple[int, int, int], end: int
) -> Reductions:
    """Plan the reductions of a launch of some CTA tiles, behind `end` bytes of workspace."""
    height, width = output_extent(config.epilogue, problem.m, problem.n)
    parts = (
        math.ceil(height / config.partial_width[0]),
        math.ceil(width / config.partial_width[1]),
        tiles[0] * tiles[1] * config.partials_per_tile,
    )
    steps: list[Finish] = []
    for result in config.epilogue.reductions:
        if result.partial or result.block:
            continue
        count = result.by_axis(*parts)
        results = problem.batch * result.by_axis(width, height, 1)
        finish = FinishConfig(kind=result.kind, across=result.axis is not None)
        steps.append(Finish(config=finish, output=result.name, offset=end, parts=count, results=results))
        end = round_up(end + 4 * len(NEUTRAL[result.kind]) * count * results, WORKSPACE_ALIGN)
    return Reductions(tuple(steps), parts, end)
