# SPDX-License-Identifier: Apache-2.0
"""When each role of a CTA works: the pipeline simulated with the rates of the GPU's record.

It is a model, not a measurement. A load starts when its stage is free, at the rate at which L2 delivers to an SM. The
MMAs of a stage start when the stage is full and the stage before is done. The two consumers of a pingpong kernel
alternate between tiles, so the epilogue of one overlaps the mainloop of the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import KernelConfig
from cutegemm.planning.cost import CYCLE_COLUMNS, K_BYTES
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Multiply

# tiles and stages of each that are simulated, enough to show the steady state
TILES, K_TILES = 4, 24
# consecutive spans that are closer than this are merged
JOINED_NS = 1e-6


@dataclass(frozen=True)
class Span:
    """From `start` to `end`, nanoseconds: a role's activity, the tile of the CTA, and the number of stages."""

    start: float
    end: float
    does: str
    tile: int
    stages: int = 1


@dataclass(frozen=True)
class Track:
    """One role: its activities, and the share of the time in which it waits."""

    role: str
    spans: list[Span]
    waits: float


@dataclass(frozen=True)
class Timeline:
    """The roles of one CTA over its first tiles."""

    source: str  # of the times
    tiles: int  # simulated
    of_tiles: int  # tiles of a CTA
    k_tiles: int  # simulated in each tile
    of_k_tiles: int  # k tiles of a tile
    load_ns: float  # time of a stage's load
    mma_ns: float  # time of a stage's wgmma instructions
    epilogue_ns: float  # time of a tile's epilogue
    stages: int  # pipeline stages
    end: float  # when the last span ends, nanoseconds
    tracks: list[Track]  # the roles


def timeline_of(plan: KernelPlan, step: Multiply, work_tiles: int, at_once: int) -> Timeline | None:
    """The timeline of a tensor-core plan; None for other plans, whose warps have no roles."""
    config = step.config
    if not isinstance(config, KernelConfig) or not step.extents[2]:
        return None
    of_tiles = max(1, math.ceil(work_tiles / max(1, at_once)))
    of_k = max(1, math.ceil(step.extents[2] / config.tile[2] / config.splits))
    tiles, k_tiles = min(TILES, of_tiles), min(K_TILES, of_k)
    load, mma, epilogue = _costs(plan, config)
    spans = _simulated(config, tiles, k_tiles, (load, mma, epilogue))
    end = max(x[-1].end for x in spans.values())
    shown = [Track(role, x, 1 - sum(s.end - s.start for s in x) / end) for role, x in spans.items()]
    source = f"model: rates of the {plan.device.name}'s record; not measured"
    return Timeline(source, tiles, of_tiles, k_tiles, of_k, load, mma, epilogue, config.stages, end, shown)


def _costs(plan: KernelPlan, config: KernelConfig) -> tuple[float, float, float]:
    """Nanoseconds of a stage's load, of its MMAs, and of a tile's epilogue."""
    device, cost = plan.device, plan.device.cost
    (m, n, depth), size = config.tile, config.a.dtype.bytes
    from_l2 = (m / config.cluster[1] + n / config.cluster[0]) * depth * size
    load = max(from_l2 / (cost.l2 / device.sms), (m + n) * depth * size / cost.port)
    if config.gathers:
        by_threads = {
            "gather": size * device.loads.gather,
            "shift": device.loads.shift,
            "cp_async": device.loads.copy,
        }
        threads = (x.load != "tma" and rows / by_threads[x.load] for rows, x in zip((m, n), config.operands))
        load += max(threads) * depth * size
    cycles = m / config.limits.mma_m * (depth * size / K_BYTES) * n / CYCLE_COLUMNS
    d_bytes = max((x.dtype.bytes for x in config.outputs), default=4)
    stores = config.rows * config.stored_columns * d_bytes / cost.store
    subtile = cost.piece_turn if config.pingpong else cost.piece
    return load, cycles * cost.mma, config.subtiles * subtile + stores


class _Pipeline:
    """Stages that are loaded one after another, and freed when their MMAs are done."""

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


def _simulated(
    config: KernelConfig, tiles: int, k_tiles: int, costs: tuple[float, float, float]
) -> dict[str, list[Span]]:
    """The spans of each role that does anything."""
    load, mma, epilogue = costs
    pipeline = _Pipeline(config.stages)
    loads: list[Span] = []
    teams = config.consumers if config.pingpong else 1
    mains: list[list[Span]] = [[] for _ in range(teams)]
    ready = [0.0] * teams
    multiplied = 0.0
    for tile in range(tiles):
        team = tile % teams
        now = max(ready[team], multiplied)
        for _ in range(k_tiles):
            start, full = pipeline.load(load)
            _add(loads, Span(start, full, "load", tile))
            begin = max(now, full)
            now = begin + mma
            _add(mains[team], Span(begin, now, "mainloop", tile))
            pipeline.free.append(now)
        # the tensor cores continue with the other consumer's tile
        multiplied = now if config.pingpong else 0.0
        ready[team] = now + epilogue
        mains[team].append(Span(now, ready[team], "epilogue", tile))
    who = "producer" if config.producers else "loads (one thread issues them)"
    names = [f"consumer {i + 1}" for i in range(teams)] if teams > 1 else [_team(config)]
    return {who: loads} | {x: y for x, y in zip(names, mains, strict=True) if y}


def _team(config: KernelConfig) -> str:
    return "warpgroup" if config.consumers == 1 else f"{config.consumers} warpgroups"


def _add(spans: list[Span], new: Span) -> None:
    """Add a span, merged with the previous one if there is no gap."""
    if spans:
        last = spans[-1]
        if (last.does, last.tile) == (new.does, new.tile) and new.start - last.end < JOINED_NS:
            spans[-1] = Span(last.start, new.end, last.does, last.tile, last.stages + 1)
            return
    spans.append(new)
