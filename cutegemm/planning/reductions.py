# SPDX-License-Identifier: Apache-2.0
"""Planning reductions: how many partial results a launch gives, where they lie, and the launches that finish them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import FinishConfig, GemmConfig
from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.planning.operands import WORKSPACE_ALIGN
from cutegemm.planning.steps import Finish
from cutegemm.problems import Problem, output_extent, round_up


@dataclass(frozen=True)
class Reductions:
    """Everything a plan says of its reductions (`KernelPlan`)."""

    steps: tuple[Finish, ...]
    parts: tuple[int, int, int]
    # offsets in the workspace, bytes, of those that are finished
    partials: dict[str, int]
    workspace_bytes: int


def plan_reductions(
    config: GemmConfig, problem: Problem, tiles: tuple[int, int, int], start: int
) -> Reductions:
    """Plan the reductions of a launch.

    Args:
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    height, width = output_extent(config.epilogue, problem.m, problem.n)
    parts = (
        math.ceil(height / config.partial_width[0]),
        math.ceil(width / config.partial_width[1]),
        tiles[0] * tiles[1] * config.partials_per_tile,
    )
    steps: list[Finish] = []
    offsets: dict[str, int] = {}
    end = start
    for result in config.epilogue.reductions:
        if result.partial:
            continue
        count = result.by_axis(*parts)
        results = problem.batch * result.by_axis(width, height, 1)
        finish = FinishConfig(kind=result.kind, across=result.axis is not None)
        steps.append(Finish(config=finish, output=result.name, offset=end, parts=count, results=results))
        offsets[result.name] = end
        end = round_up(end + 4 * len(NEUTRAL[result.kind]) * count * results, WORKSPACE_ALIGN)
    return Reductions(tuple(steps), parts, offsets, end)
