# SPDX-License-Identifier: Apache-2.0
"""What a launch can count: the CTAs of a grid, and what tile schedulers and copies count in 32-bit integers."""

from __future__ import annotations

import math

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.plans.steps import Copy, Ends
from cutegemm.problems import Problem
from cutegemm.request.operand_rules import AXES
from cutegemm.spec import AUTO, GemmSpec

# most rows that a CTA of a copying kernel has (`kernels.relayout_copy`: threads times chunks in flight)
COPIED = 512
# largest number of the tile schedulers' 32-bit integers
MOST_COUNTED = (1 << 31) - 1


def check_fewest(spec: GemmSpec, problem: Problem, limits: Limits) -> None:
    """Apply the limits of launches before any tile is tried: to the fewest work tiles that any tile leaves."""
    # a tile's accumulators lie in the registers of an SM
    fewest = problem.m * problem.n * problem.batch // limits.registers_per_sm
    if spec.scheduler == "per_tile":
        check_ctas(spec, problem, fewest, limits)
    check_works(spec, problem, fewest)


def check_ctas(spec: GemmSpec, problem: Problem, ctas: int, limits: Limits) -> None:
    """Refuse a launch of more CTAs than a grid has."""
    if ctas > limits.max_grid:
        rule = f"needs a launch of {ctas:,} CTAs or more, which has at most {limits.max_grid:,}"
        raise _size_fault(spec, problem, rule)


def check_works(spec: GemmSpec, problem: Problem, count: int, batches: str = "batch") -> None:
    """Refuse more work tiles than a 32-bit index can count; `batches`: the caller's name of the batch."""
    if count > MOST_COUNTED:
        limit = f"a tile scheduler counts to {MOST_COUNTED:,}"
        rule = f"needs a count of {count:,} work tiles or more, and {limit}"
        raise _size_fault(spec, problem, rule, batches)


def last_work(config: KernelConfig, works: int, clusters: int) -> int:
    """The largest number of a work tile that a tile scheduler reaches."""
    # a consumer stops at the first number beyond the last work tile's; in pingpong it takes every second one
    return works - 1 + clusters * (2 if config.pingpong else 1)


def check_extents(problem: Problem, blocks: tuple[int, int, int]) -> None:
    """Refuse extents that kernels cannot round up to whole blocks, elements along (m, n, k), in 32-bit integers."""
    for field, block in zip("mnk", blocks, strict=True):
        extent, most = getattr(problem, field), MOST_COUNTED - (block - 1)
        if extent > most:
            rule = f"a kernel rounds it up to a multiple of {block}, and counts to {MOST_COUNTED:,}"
            raise field_error(PlanError, field, extent, rule, most)


def check_copies(copies: tuple[Copy, ...]) -> None:
    """Refuse copies of operands whose extents the copying kernel cannot round up in 32-bit integers."""
    most = MOST_COUNTED - (COPIED - 1)
    for x in copies:
        for field, extent in zip(AXES[x.operand], (x.source.rows, x.source.cols), strict=True):
            if extent > most:
                rule = f"a copy of {x.operand.upper()} rounds it up to a multiple of {COPIED}"
                raise field_error(PlanError, field, extent, rule, most)


def block_of(config: KernelConfig) -> tuple[int, int, int]:
    """Elements along (m, n, k) that a cluster computes at once: extents are rounded up to multiples of them."""
    return config.tile[0] * config.cluster[0], config.tile[1] * config.cluster[1], config.tile[2]


def check_grid(spec: GemmSpec, problem: Problem, config: KernelConfig, works: int, clusters: int) -> None:
    """Refuse a launch of so many work tiles and clusters that its grid, kernel or tile scheduler cannot count."""
    check_extents(problem, block_of(config))
    check_ctas(spec, problem, clusters * config.cluster_size, config.limits)
    check_works(spec, problem, last_work(config, works, clusters))
    _check_k_tiles(problem, config, works, clusters)


def _check_k_tiles(problem: Problem, config: KernelConfig, works: int, clusters: int) -> None:
    """Refuse splits of K whose products the tile scheduler's 32-bit integers cannot hold."""
    depth = config.tile[2]
    k_tiles = math.ceil(problem.k / depth)
    stored = config.instruction.stored(depth)
    if k_tiles * stored > MOST_COUNTED:
        rule = f"operands have {k_tiles * stored:,} elements along k, and a kernel counts to {MOST_COUNTED:,}"
        raise field_error(PlanError, "k", problem.k, rule, MOST_COUNTED // stored * depth)
    if config.splits * k_tiles > MOST_COUNTED:
        rule = f"K is {k_tiles:,} k tiles, and splits times k tiles must be at most {MOST_COUNTED:,}"
        raise field_error(PlanError, "split_k", config.splits, rule, MOST_COUNTED // k_tiles)
    partial_wave = works % clusters
    streamed = min(partial_wave + clusters, works) if config.streamed and partial_wave else 0
    if clusters * streamed * k_tiles > MOST_COUNTED:
        rule = f"{clusters} clusters times {streamed * k_tiles:,} shared k tiles exceed {MOST_COUNTED:,}"
        raise field_error(PlanError, "scheduler", "stream_k", rule, "persistent")


def check_groups(
    spec: GemmSpec, problem: Problem, ends: Ends, swapped: bool, launch: tuple[KernelConfig, int, int]
) -> None:
    """Refuse groups that a tile scheduler cannot count, with the ends for which it counts furthest.

    Args:
        problem: of all groups, with their number as its batch.
        swapped: whether the kernel computes D's transpose.
        launch: the kernel, its most work tiles, and its clusters.
    """
    m, n, k = block_of(launch[0])
    check_extents(problem, (n, m, k) if swapped else (m, n, k))
    # a warp looks at a group per lane, also beyond the last group
    most = min(MOST_COUNTED // ends.width - ends.lead, MOST_COUNTED - LIMITS.warp)
    if ends.count > most:
        rule = f"a tile scheduler finds their ends among {MOST_COUNTED:,} words of 32 bits"
        raise field_error(PlanError, "groups", ends.count, rule, most)
    if problem.m * ends.indices > MOST_COUNTED:
        rule = f"{ends.indices} words of 32 bits an index, of which a kernel counts {MOST_COUNTED:,}"
        raise field_error(PlanError, "m", problem.m, rule, MOST_COUNTED // ends.indices)
    check_works(spec, problem, last_work(*launch), "groups")


def _size_fault(spec: GemmSpec, problem: Problem, rule: str, batches: str = "batch") -> PlanError:
    """An error that names what a caller can change: the field that asks for a CTA per tile, else the largest extent."""
    if spec.scheduler == "per_tile":
        return field_error(PlanError, "scheduler", "per_tile", rule, "persistent")
    if spec.schedule == "simt" and problem.a.dtype.bytes < 4:
        return field_error(PlanError, "schedule", "simt", rule, AUTO)
    field, extent = max((("m", problem.m), ("n", problem.n), (batches, problem.batch)), key=lambda x: x[1])
    return field_error(PlanError, field, extent, f"{rule}: split the problem along {field}")


def check_sms(spec: GemmSpec, cluster_size: int) -> None:
    """Check that the given SMs hold a cluster of so many CTAs, and that the tile scheduler can respect them."""
    if not isinstance(spec.sms, int):
        return
    if spec.scheduler == "per_tile":
        rule = 'an SM limit needs scheduler="persistent"'
        raise field_error(PlanError, "sms", spec.sms, rule, AUTO)
    if spec.sms < cluster_size:
        rule = f"a cluster occupies {cluster_size} SMs"
        raise field_error(PlanError, "sms", spec.sms, rule, cluster_size)
