# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: what was chosen, and everything that a plan says of it."""

from __future__ import annotations

from cutegemm.planning import launches, swap
from cutegemm.planning.choose import Chosen, choose
from cutegemm.planning.kernel_fields import raster
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.launches import plan_reductions
from cutegemm.planning.requirements import Request
from cutegemm.planning.steps import Multiply
from cutegemm.planning.ways import Order


def plan_tensor_core(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem that runs on the tensor cores, its operands swapped or not.

    Raises:
        PlanError: a given field contradicts another or the problem.
    """
    chosen = choose(asked, order)
    way = chosen.option.way
    made = _plan_of(way.seen, chosen)
    return swap.in_d(made, asked) if way.swapped else made


def _plan_of(asked: Request, chosen: Chosen) -> KernelPlan:
    """The plan of a choice, as its kernel sees the product."""
    (_, way, candidate), config, grid = chosen
    loads = way.loads
    invariant = asked.spec.batch_invariant is True
    storing = config
    if not config.stores:
        storing = launches.adding_config(config, grid.tiles, asked.device.sms, in_turn=invariant)
    reductions = plan_reductions(storing, asked.problem, grid.tiles, loads.workspace_bytes)
    parts = launches.plan_parts(config, grid.tiles, grid.clusters, reductions.workspace_bytes)
    multiply = Multiply.of(
        asked.problem,
        loads.views,
        config=config,
        gate=loads.gate,
        raster=raster(way, candidate),
        clusters=grid.clusters,
        parts=reductions.parts,
        in_workspace=loads.places | reductions.partials | parts.places,
        counted=parts.counted,
    )
    adds = () if config.stores else (launches.adding_step(multiply, storing, grid.tiles),)
    return KernelPlan(
        spec=asked.spec,
        problem=asked.problem,
        device=asked.device,
        steps=(*loads.steps, multiply, *adds, *reductions.steps),
        tiles=grid.tiles,
        waves=grid.waves,
        workspace_bytes=parts.workspace_bytes,
        counter_bytes=parts.counter_bytes,
        reasons=chosen.reasons,
    )
