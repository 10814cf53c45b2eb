# SPDX-License-Identifier: Apache-2.0
"""Planning reductions: how many partial results a launch gives, where they lie, and the launches that finish them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import FinishConfig, GemmConfig
from cutegemm.epilogue.graph import NEUTRAL
from cutegemm.plan_parts import WORKSPACE_ALIGN
from cutegemm.plan_types import Step
from cutegemm.problem import Problem, columns, round_up


@dataclass(frozen=True)
class Reductions:
    """Everything a plan says of its reductions (`KernelPlan`)."""

    steps: tuple[Step, ...]
    parts: tuple[int, int, int]
    partials: tuple[int | None, ...]
    workspace_bytes: int


def plan_reductions(
    config: GemmConfig, problem: Problem, tiles: tuple[int, int, int], start: int
) -> Reductions:
    """Plan the reductions of a launch.

    Args:
        tiles: CTA tiles along (m, n, l).
        start: bytes of workspace already taken.
    """
    width = columns(config.epilogue, problem.n)
    parts = (
        math.ceil(problem.m / config.partial_width[0]),
        math.ceil(width / config.partial_width[1]),
        tiles[0] * tiles[1] * config.partials_per_tile,
    )
    steps, offsets, end = [], [], start
    for result in config.epilogue.reductions:
        if result.partial:
            offsets.append(None)
            continue
        count = result.by_axis(*parts)
        results = problem.batch * result.by_axis(width, problem.m, 1)
        finish = FinishConfig(kind=result.kind, across=result.axis is not None)
        steps.append(
            Step(f"finish {result.name}", finish, result.name, offset=end, parts=count, results=results)
        )
        offsets.append(end)
        end = round_up(end + 4 * len(NEUTRAL[result.kind]) * count * results, WORKSPACE_ALIGN)
    return Reductions(tuple(steps), parts, tuple(offsets), end)
