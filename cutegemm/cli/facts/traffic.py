# SPDX-License-Identifier: Apache-2.0
"""The memory traffic and FLOP of a plan's GEMM launch, counted from tiles, boxes and extents like a profiler."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm.config import KernelConfig
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Multiply

# of a warpgroup
WARPS = 4


@dataclass(frozen=True)
class Traffic:
    """Work of the GEMM launch."""

    k_tiles: int  # mainloop stages of one CTA tile, of all splits of K
    stages: int  # mainloop stages of the launch
    stage_waits: int  # how often a consumer warp needs a full stage; it waits for those that are not full yet
    tma_loads: int  # TMA instructions for A and B, a multicast counted once; 0 if threads load
    tma_load_bytes: int
    multicast_saved_bytes: int  # that other CTAs of a cluster receive from these loads
    tma_stores: int  # TMA instructions of the epilogue
    tma_store_bytes: int
    stage_bytes: int  # of one CTA's stage
    l2_bytes: int  # of A and B from L2, without out-of-bounds elements
    dram_bytes: int  # at least: every tensor once
    flops: int  # of the problem
    executed_flops: int  # of whole tiles, including out-of-bounds elements
    store_conflicts: int | None  # extra wavefronts per stmatrix of the epilogue; None without stmatrix


def traffic_of(plan: KernelPlan, step: Multiply) -> Traffic:
    """Count the work of a plan's GEMM launch."""
    config, problem = step.config, plan.problem
    tiles = math.prod(plan.tiles)
    depth = config.tile[2]
    k_tiles = math.ceil(step.extents[2] / depth)
    stages = tiles * k_tiles
    size = config.a.dtype.bytes
    stage_bytes = (config.tile[0] + config.tile[1]) * depth * size
    if not isinstance(config, KernelConfig):
        executed = 2 * config.tile[0] * config.tile[1] * step.extents[2] * tiles
        l2 = _l2_bytes(plan, step, (config.tile[0], config.columns))
        return Traffic(
            k_tiles, stages, *(0,) * 6, stage_bytes, l2, problem.min_bytes, problem.flops, executed, None
        )  # fmt: skip
    loads = load_bytes = saved = 0
    # boxes have the caller's operand names, which a swapped kernel exchanges
    for item, name in zip(config.stage, step.factors, strict=True):
        for box in plan.boxes:
            if box.operand == name.upper():
                # of CTAs that load whole tiles in turn only one loads each
                issued = stages * box.count * item.shares // item.peers
                loads += issued
                moved = issued * math.prod(box.extents) * item.operand.dtype.bytes
                load_bytes += moved
                saved += moved * (item.peers - 1)
    stores = store_bytes = 0
    named = {x.name.upper() if x.name == "d" else x.name: x for x in config.epilogue.stores}
    for box in plan.boxes:
        if box.operand in named and config.stores:
            place = list(named).index(box.operand)
            count = tiles * config.subtiles * config.team * config.slices * box.count
            stores += count
            store_bytes += count * math.prod(box.extents) * config.outputs[place].dtype.bytes
    covered = (config.rows * config.cluster[0], config.columns * config.cluster[1])
    return Traffic(
        k_tiles, stages, stages * config.team * WARPS, loads, load_bytes, saved, stores, store_bytes, stage_bytes,
        _l2_bytes(plan, step, covered), problem.min_bytes, problem.flops,
        2 * math.prod(config.tile) * stages, plan.store_conflicts,
    )  # fmt: skip


def _l2_bytes(plan: KernelPlan, step: Multiply, covered: tuple[int, int]) -> int:
    """A once per column of clusters, B once per row of clusters."""
    m, n, k, batch = step.extents
    gates = (step.config.gates, 1) if plan.swapped else (1, step.config.gates)
    of_a = m * gates[0] * step.operands["a"].dtype.bytes * math.ceil(n / covered[1])
    of_b = n * gates[1] * step.operands["b"].dtype.bytes * math.ceil(m / covered[0])
    return (of_a + of_b) * k * batch
