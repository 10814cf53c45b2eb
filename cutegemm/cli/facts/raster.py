# SPDX-License-Identifier: Apache-2.0
"""The order of a launch's tiles, and the L2 reuse of a wave.

The order is that of `kernels.schedule.tile_scheduler.tile_of`, on the host: panels along the raster axis, every second
one backwards with a serpentine scheduler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import KernelConfig
from cutegemm.plans.kernel_plan import KernelPlan


@dataclass(frozen=True)
class Wave:
    """The work tiles that run concurrently."""

    tiles: int  # how many
    rows: int  # different cluster rows of A that they read
    columns: int  # different cluster columns of B that they read
    reuse: float  # reads from L2 per byte from device memory, A and B together


@dataclass(frozen=True)
class Raster:
    """The order of work tiles over one GEMM of a batch."""

    axis: str  # of the panels, in the kernel's own coordinates
    group: int  # width of a panel in work tiles
    swapped: bool  # whether the kernel computes D's transpose
    across: int  # work tiles along N
    down: int  # work tiles along M
    tile: list[int]  # accumulator rows and columns of a work tile
    order: list[list[int]]  # (m, n) of each work tile in starting order; at most `MOST` of them
    at_once: int  # work tiles that run concurrently
    waves: list[Wave]  # of the first GEMM of the batch
    note: str  # what the order does not show


# most work tiles that are listed
MOST = 4096


def tile_of(
    index: int, tiles_m: int, tiles_n: int, group: int, raster: str, serpentine: bool = False
) -> tuple[int, int]:
    """(m, n) of the index-th work tile of one GEMM, as the kernels compute it."""
    along, across = (tiles_m, tiles_n) if raster == "m" else (tiles_n, tiles_m)
    panel, rest = divmod(index, group * across)
    width = min(group, along - panel * group)
    step, first = divmod(rest, width)
    if serpentine and panel % 2:
        step = across - 1 - step
    place = panel * group + first
    return (place, step) if raster == "m" else (step, place)


def raster_of(plan: KernelPlan, at_once: int) -> Raster:
    """The order of a plan, with so many work tiles at once."""
    config, step = plan.config, plan.multiply
    assert config is not None and step is not None
    m, n, k, _ = step.extents
    rows, columns = config.tile[0], config.columns
    axis, group = step.raster
    serpentine, note = False, ""
    if isinstance(config, KernelConfig):
        rows, columns = config.rows * config.cluster[0], config.columns * config.cluster[1]
        serpentine = config.serpentine
        if config.dynamic:
            note = "CTAs take tiles from a counter, in this order"
        elif config.streamed:
            note = "the last tiles are split along K so that all clusters end together"
        elif config.by_gpc:
            note = f"in each of {config.outer_splits} splits of K; neighbouring tiles are computed in a GPC"
        elif config.splits > config.cluster_splits:
            note = f"each tile comes {config.outer_splits} times in a row, once per split of K"
            at_once = max(1, at_once * config.cluster_splits // config.splits)
    down, across = math.ceil(m / rows), math.ceil(n / columns)
    count = min(down * across, MOST)
    order = [tile_of(i, down, across, group, axis, serpentine) for i in range(count)]
    if count < down * across:
        note = f"{note}; " * bool(note) + f"the first {count:,} of {down * across:,} work tiles"
    waves = [_wave(order[i : i + at_once], (rows, columns)) for i in range(0, count, max(1, at_once))]
    listed = [list(x) for x in order]
    return Raster(axis, group, plan.swapped, across, down, [rows, columns], listed, at_once, waves, note)


def _wave(tiles: list[tuple[int, int]], tile: tuple[int, int]) -> Wave:
    rows, columns = len({m for m, _ in tiles}), len({n for _, n in tiles})
    read = len(tiles) * (tile[0] + tile[1])
    return Wave(len(tiles), rows, columns, read / (rows * tile[0] + columns * tile[1]))
