# SPDX-License-Identifier: Apache-2.0
"""What each role of a CTA does when: the pipeline played through with the rates of the GPU's record.

It is a model, not a measurement. A load may begin when its stage is free, and takes what L2 delivers to an SM; a stage
is multiplied when it is full and the one before it is done; an epilogue takes its subtiles. Consumers of a pingpong
kernel take tiles in turn, so that one's epilogue overlaps the other's mainloop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import KernelConfig
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.steps import Multiply

# what is played through: enough tiles to see the steady state, and enough stages of each
TILES, K_TILES = 4, 24
STAGE_K = 64
# consecutive spans that are closer than this become one
JOINED_NS = 1e-6


@dataclass(frozen=True)
class Span:
    """From `start` to `end`, nanoseconds: what a role does, for which of the CTA's tiles, and in how many stages."""

    start: float
    end: float
    does: str
    tile: int
    stages: int = 1


@dataclass(frozen=True)
class Track:
    """One role: what it does, and the share of the time in which it waits."""

    role: str
    spans: list[Span]
    waits: float


@dataclass(frozen=True)
class Timeline:
    """The roles of one CTA over its first tiles."""

    source: str  # where the times come from
    tiles: int  # played through
    of_tiles: int  # tiles that a CTA has
    k_tiles: int  # played through in each tile
    of_k_tiles: int  # k tiles that a tile has
    load_ns: float  # time of a stage's load
    mma_ns: float  # time of a stage's wgmma instructions
    epilogue_ns: float  # time of a tile's epilogue
    stages: int  # pipeline stages
    end: float  # when the last span ends, nanoseconds
    tracks: list[Track]  # the roles


def timeline_of(plan: KernelPlan, step: Multiply, work_tiles: int, at_once: int) -> Timeline | None:
    """The timeline of a tensor-core plan; None for other plans, whose warps all do the same."""
    config = step.config
    if not isinstance(config, KernelConfig) or not step.extents[2]:
        return None
    of_tiles = max(1, math.ceil(work_tiles / max(1, at_once)))
    of_k = max(1, math.ceil(step.extents[2] / config.tile[2] / config.splits))
    tiles, k_tiles = min(TILES, of_tiles), min(K_TILES, of_k)
    load, mma, epilogue = _costs(plan, config, of_tiles)
    spans = _played(config, tiles, k_tiles, (load, mma, epilogue))
    end = max(x[-1].end for x in spans.values())
    shown = [Track(role, x, 1 - sum(s.end - s.start for s in x) / end) for role, x in spans.items()]
    source = f"model: rates of the {plan.device.name}'s record; not measured"
    return Timeline(source, tiles, of_tiles, k_tiles, of_k, load, mma, epilogue, config.stages, end, shown)


def _costs(plan: KernelPlan, config: KernelConfig, of_tiles: int) -> tuple[float, float, float]:
    """Nanoseconds of a stage's load, of its products, and of a tile's epilogue."""
    time = plan.device.time
    m, n, depth = config.tile
    size = config.a.dtype.bytes
    delivered = (m / config.cluster[1] + n / config.cluster[0]) * depth * size
    load = delivered / (time.l2_lone if of_tiles == 1 else time.l2)
    mma = time.mma * m * n * depth / STAGE_K
    if config.gathers:
        load += max(
            (m if i == 0 else n) * depth * (time.gather if x.load == "gather" else size / time.shift)
            for i, x in enumerate(config.operands)
            if x.load != "tma"
        )
    d_bytes = max((x.dtype.bytes for x in config.outputs), default=4)
    rows = config.rows * config.stored_columns
    return load, mma, config.subtiles * time.piece + rows * d_bytes / time.store


class _Ring:
    """Stages that are loaded one after another and freed when they were multiplied."""

    def __init__(self, stages: int) -> None:
        self.stages = stages
        self.free: list[float] = []
        self.loaded = 0.0

    def load(self, ns: float) -> tuple[float, float]:
        """When the next load starts and ends."""
        at = len(self.free)
        freed = self.free[at - self.stages] if at >= self.stages else 0.0
        start = max(self.loaded, freed)
        self.loaded = start + ns
        return start, self.loaded


def _played(
    config: KernelConfig, tiles: int, k_tiles: int, costs: tuple[float, float, float]
) -> dict[str, list[Span]]:
    """What each role does that does anything."""
    load, mma, epilogue = costs
    ring = _Ring(config.stages)
    loads: list[Span] = []
    teams = config.consumers if config.pingpong else 1
    mains: list[list[Span]] = [[] for _ in range(teams)]
    ready = [0.0] * teams
    multiplied = 0.0
    for tile in range(tiles):
        team = tile % teams
        now = max(ready[team], multiplied)
        for _ in range(k_tiles):
            start, full = ring.load(load)
            _add(loads, Span(start, full, "load", tile))
            begin = max(now, full)
            now = begin + mma
            _add(mains[team], Span(begin, now, "mainloop", tile))
            ring.free.append(now)
        # the tensor cores go on with the other consumer's tile
        multiplied = now if config.pingpong else 0.0
        ready[team] = now + epilogue
        mains[team].append(Span(now, ready[team], "epilogue", tile))
    who = "producer" if config.producers else "loads (one thread issues them)"
    names = [f"consumer {i + 1}" for i in range(teams)] if teams > 1 else [_team(config)]
    return {who: loads} | {x: y for x, y in zip(names, mains, strict=True) if y}


def _team(config: KernelConfig) -> str:
    return "warpgroup" if config.consumers == 1 else f"{config.consumers} warpgroups"


def _add(spans: list[Span], new: Span) -> None:
    """Add a span, joined to the one before it where nothing lies between."""
    if spans:
        last = spans[-1]
        if (last.does, last.tile) == (new.does, new.tile) and new.start - last.end < JOINED_NS:
            spans[-1] = Span(last.start, new.end, last.does, last.tile, last.stages + 1)
            return
    spans.append(new)
