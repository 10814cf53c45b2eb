# SPDX-License-Identifier: Apache-2.0
"""A kernel's grid, and the launch that reduces its splits."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from cutegemm.arch.device import Device
from cutegemm.config import KernelConfig
from cutegemm.families.rows import ADD_PARTIALS
from cutegemm.plans.launch_limits import block_of, check_grid, check_sms
from cutegemm.plans.subtiles import sliced
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

# most accumulators of a thread of the reduction launch, if columns allow such slices
MOST_VALUES = 16
# splits per warpgroup of the reduction launch, and its most warpgroups
PARTS_EACH = 4
MOST_ADDERS = 4
# CTAs of the reduction launch that an SM holds, if all of them fit the SMs then. It may hold up to the second number if
# all of them fit the SMs that the GEMM leaves free; threads with many registers leave room for fewer
MOST_ON_SM, MOST_ON_FREE = 2, 4


class Grid(NamedTuple):
    """CTA tiles along (m, n, l), rounded up to whole clusters; clusters launched; tiles over tiles in flight."""

    tiles: tuple[int, int, int]
    clusters: int
    waves: float


def resident_clusters(spec: GemmSpec, config: KernelConfig, device: Device) -> int:
    """Clusters of a kernel that the device, or the given number of its SMs, holds at once."""
    most = device.resident_clusters(config.cluster_size) * config.ctas_per_sm
    return min(most, spec.sms // config.cluster_size) if isinstance(spec.sms, int) else most


def grid_of(spec: GemmSpec, problem: Problem, config: KernelConfig, device: Device) -> Grid:
    """The launch of a kernel."""
    rows, columns, depth = block_of(config)
    across_m, across_n = math.ceil(problem.m / rows), math.ceil(problem.n / columns)
    # work tiles: the clusters' tiles, times the splits that clusters do not reduce
    count = across_m * across_n * problem.batch * config.outer_splits
    check_sms(spec, config.cluster_size)
    resident = resident_clusters(spec, config, device)
    # with Stream-K every cluster gets at least one k tile
    most = count * math.ceil(problem.k / depth) if config.streamed else count
    clusters = min(most, resident) if config.persistent else count
    check_grid(spec, problem, config, count, clusters)
    tiles = (across_m * config.cluster[0], across_n * config.cluster[1], problem.batch)
    return Grid(tiles, clusters, count / resident)


def adding_config(
    config: KernelConfig, tiles: tuple[int, int, int], sms: int, *, in_turn: bool
) -> KernelConfig:
    """The reduction launch's kernel: it reduces a kernel's partial sums, in enough slices for all SMs.

    Args:
        config: of the GEMM, with its epilogue; tiles: CTA tiles along (m, n, l).
        in_turn: whether splits are added one after another, as a cluster adds them; else several warpgroups each add
            consecutive ones.
    """
    whole = dataclasses.replace(
        config.draft,
        family=ADD_PARTIALS.name,
        stages=1,
        splits=config.outer_splits,
        cluster_splits=1,
        epilogue_stages=1,
        input_stages=1,
        persistent=False,
        dynamic=False,
        by_gpc=False,
        raster="m",
        ctas_per_sm=1,
        early=(),
        adders=1 if in_turn else max(1, min(MOST_ADDERS, config.outer_splits // PARTS_EACH)),
    )
    count = math.prod(tiles)
    most = max(-(-sms // (count * config.team)), config.tile_values // MOST_VALUES, 1)
    made = sliced(whole, most, enough=True)
    adders, free = count * config.team * made.slices, sms - count * config.splits
    if adders <= MOST_ON_SM * sms:
        fits = MOST_ON_SM * free < adders <= MOST_ON_FREE * free
        made = dataclasses.replace(made, most_on_sm=-(-adders // free) if fits else MOST_ON_SM)
    # shared memory holds only the epilogue's subtiles, and all of them
    reads = any(x.load == "tma" for x in made.inputs)
    return KernelConfig.of(dataclasses.replace(made, input_stages=made.subtiles if reads else 1))
