# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: what was chosen, and everything that a plan says of it."""

from __future__ import annotations

from cutegemm.errors import PlanError
from cutegemm.planning import adding, budget, invariance, narrow, splits, swap, ways
from cutegemm.planning.candidates import Order
from cutegemm.planning.choose import choose
from cutegemm.planning.kernel import accumulators, raster
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.reductions import plan_reductions
from cutegemm.planning.request import Request
from cutegemm.planning.steps import Multiply
from cutegemm.spec import AUTO


def plan_tensor_core(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem that runs on the tensor cores, its operands swapped or not.

    Raises:
        PlanError: a given field contradicts another or the problem.
    """
    few = narrow.taken(asked)
    if few or not swap.wanted(asked):
        made = _plan_product(invariance.pinned(asked), narrow.order_narrow(asked, few, order))
        return _faster(made, asked, order) if ways.open_to(asked, made) else made
    try:
        made = _plan_swapped(asked, order)
    except PlanError as error:
        # a choice that nothing in the spec asks for refuses nothing
        if asked.spec.swap == AUTO and asked.spec.tile == AUTO:
            return _plan_product(invariance.pinned(asked), order)
        raise swap.error_in_d(error) from error
    return made


def _plan_swapped(asked: Request, order: Order) -> KernelPlan:
    """The plan of D's transpose, in D's coordinates."""
    turned = swap.transposed(invariance.pinned(asked, swapped=True))
    return swap.in_d(_plan_product(turned, swap.order_swapped(turned, order)), asked)


def _faster(made: KernelPlan, asked: Request, order: Order) -> KernelPlan:
    """A plan, or that of the transpose where it is predicted so much faster that it must be (`ways`)."""
    try:
        other = _plan_swapped(asked, order)
    except PlanError:
        return made
    return other if ways.clearly(other, made) else made


def _plan_product(asked: Request, order: Order) -> KernelPlan:
    """The plan of a product as its kernel sees it."""
    setting, candidate, config, grid, why = choose(asked, order)
    loads = setting.loads
    invariant = asked.spec.batch_invariant is True
    storing = config
    if not config.stores:
        storing = adding.adding(config, grid.tiles, asked.device.sms, in_turn=invariant)
    reductions = plan_reductions(storing, asked.problem, grid.tiles, loads.workspace_bytes)
    parts = splits.plan_parts(config, grid.tiles, grid.clusters, reductions.workspace_bytes)
    multiply = Multiply.of(
        asked.problem,
        loads.views,
        config=config,
        gate=loads.gate,
        raster=raster(setting, candidate),
        clusters=grid.clusters,
        parts=reductions.parts,
        in_workspace=loads.places | reductions.partials | parts.places,
        counted=parts.counted,
    )
    adds = () if config.stores else (adding.step(multiply, storing, grid.tiles),)
    return KernelPlan(
        spec=asked.spec,
        problem=asked.problem,
        device=asked.device,
        steps=(*loads.steps, multiply, *adds, *reductions.steps),
        tiles=grid.tiles,
        waves=grid.waves,
        smem=budget.shared_memory(config),
        smem_bytes=budget.smem_bytes(config),
        barriers=budget.barriers(config),
        accumulators=accumulators(config.tile, config.team, setting.limits),
        registers=config.registers,
        boxes=budget.boxes(config),
        store_conflicts=budget.store_conflicts(config),
        workspace_bytes=parts.workspace_bytes,
        counter_bytes=parts.counter_bytes,
        reasons=(*setting.reasons, why) if why else setting.reasons,
    )
