# SPDX-License-Identifier: Apache-2.0
"""The grid of a tensor-core kernel: tiles, clusters to launch, waves."""

from __future__ import annotations

import math
from typing import NamedTuple

from cutegemm.arch.device import Device
from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.operands import grid_fault
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec


class Grid(NamedTuple):
    """CTA tiles along (m, n, l), rounded up to whole clusters; clusters launched; tiles over tiles in flight."""

    tiles: tuple[int, int, int]
    clusters: int
    waves: float


def check_sms(spec: GemmSpec, cluster_size: int) -> None:
    """The given SMs hold a cluster of so many CTAs, and a walk keeps to them.

    Raises:
        PlanError: they do not.
    """
    if not isinstance(spec.sms, int):
        return
    if spec.scheduler == "per_tile":
        rule = 'an SM limit needs scheduler="persistent"'
        raise field_error(PlanError, "sms", spec.sms, rule, AUTO)
    if spec.sms < cluster_size:
        rule = f"a cluster occupies {cluster_size} SMs"
        raise field_error(PlanError, "sms", spec.sms, rule, cluster_size)


def check_per_tile(spec: GemmSpec, problem: Problem, limits: Limits) -> None:
    """A launch of a CTA per tile is refused before any tile is tried if no tile is large enough.

    The accumulators of a tile lie in the registers of its SM, so a tile has at most as many elements.

    Raises:
        PlanError: the grid would be larger than a launch may be.
    """
    fewest = problem.m * problem.n * problem.batch // limits.registers_per_sm
    if spec.scheduler == "per_tile" and fewest > limits.max_grid:
        raise grid_fault(spec, problem, fewest, limits)


def grid_of(spec: GemmSpec, problem: Problem, config: KernelConfig, device: Device) -> Grid:
    """The launch of a kernel.

    Raises:
        PlanError: the given SMs hold no cluster, or the grid is larger than a launch may be.
    """
    cluster_m, cluster_n = config.cluster
    across_m = math.ceil(problem.m / (config.tile[0] * cluster_m))
    across_n = math.ceil(problem.n / (config.tile[1] * cluster_n))
    # works: cluster tiles, each as often as other clusters add up parts of its K
    count = across_m * across_n * problem.batch * (config.splits // config.cluster_parts)
    resident = device.resident_clusters(config.cluster_size) * config.ctas_per_sm
    check_sms(spec, config.cluster_size)
    if isinstance(spec.sms, int):
        resident = min(resident, spec.sms // config.cluster_size)
    # of a stream every cluster gets at least one k tile
    most = count * math.ceil(problem.k / config.tile[2]) if config.streamed else count
    clusters = min(most, resident) if config.persistent else count
    ctas = clusters * config.cluster_size
    if ctas > device.limits.max_grid:
        raise grid_fault(spec, problem, ctas, device.limits)
    tiles = (across_m * cluster_m, across_n * cluster_n, problem.batch)
    return Grid(tiles, clusters, count / resident)
