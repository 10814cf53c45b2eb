# SPDX-License-Identifier: Apache-2.0
"""What predicted times decide: the order of candidates, how an operand arrives, the walk over tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, Candidate, Ranked
from cutegemm.problems import Problem


def by_model(problem: Problem, device: Device, gates: int, candidates: Sequence[Candidate]) -> list[Ranked]:
    """The candidates, fastest first by the model (`candidates.Order`, `times.fastest_first`)."""
    # imports NumPy
    from cutegemm.planning.times import fastest_first

    order, times = fastest_first(problem, device, candidates)
    return [Ranked(candidates[i], f"the model's fastest, {times[i] / 1e3:,.1f} us") for i in order]


def cheaper_load(problem: Problem, name: str, device: Device) -> str:
    """How to load an operand that TMA cannot address: "relayout" or "gather".

    A re-layout is a launch and two passes over the operand; gathering costs every stage of every tile, and
    pays only where there are few of either.
    """
    operand = getattr(problem, name)
    size = operand.rows * operand.cols * operand.batch * operand.dtype.bytes
    relayout = device.time.relayout + 2 * size / device.dram_gbs
    tiles = math.ceil(problem.m / 64) * math.ceil(problem.n / 64) * problem.batch
    stages = math.ceil(tiles / device.sms) * math.ceil(problem.k / BLOCK_K)
    return "gather" if stages * 64 * BLOCK_K * device.time.gather < relayout else "relayout"


def raster_for(problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int]) -> tuple[str, int]:
    """Panels of eight clusters along M (or all there are): measured best or within 1 % on large squares."""
    rows = math.ceil(problem.m / (tile[0] * cluster[0]))
    return "m", max(1, min(8, rows))
