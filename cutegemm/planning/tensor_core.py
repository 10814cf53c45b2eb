# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: what was chosen, and everything that a plan says of it."""

from __future__ import annotations

import contextlib

from cutegemm.config import memory
from cutegemm.config.registers import accumulators
from cutegemm.errors import PlanError
from cutegemm.planning import adding, budget, invariance, narrow, splits, swap, ways
from cutegemm.planning.candidates import Order
from cutegemm.planning.choose import Chosen, choose
from cutegemm.planning.kernel import raster
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
    columns = narrow.mirrored(asked)
    if columns:
        return _in_d(asked, *_turned(asked, narrow.order_narrow(asked, columns, order, swapped=True)))
    few = narrow.taken(asked)
    if few or not swap.wanted(asked):
        return _weighed(asked, narrow.order_narrow(asked, few, order), order)
    try:
        return _in_d(asked, *_turned(asked, order))
    except PlanError as error:
        # a choice that nothing in the spec asks for refuses nothing
        if asked.spec.swap == AUTO and asked.spec.tile == AUTO:
            upright = invariance.pinned(asked)
            return _plan_of(upright, choose(upright, order))
        raise swap.error_in_d(error) from error


def _weighed(asked: Request, own: Order, order: Order) -> KernelPlan:
    """The plan of a product as it is given, or of its transpose where that is predicted so much faster (`ways`).

    Args:
        own: of candidates for the product as it is given; order: of those for the transpose.
    """
    upright = invariance.pinned(asked)
    chosen = choose(upright, own)
    if ways.open_to(asked, chosen):
        with contextlib.suppress(PlanError):
            turned, other = _turned(asked, order)
            if ways.clearly(other, chosen, asked.device):
                return _in_d(asked, turned, other)
    return _plan_of(upright, chosen)


def _turned(asked: Request, order: Order) -> tuple[Request, Chosen]:
    """The request for D's transpose, and what is chosen for it."""
    turned = swap.transposed(invariance.pinned(asked, swapped=True))
    return turned, choose(turned, swap.order_swapped(turned, order))


def _in_d(asked: Request, turned: Request, chosen: Chosen) -> KernelPlan:
    """The plan of D's transpose, in D's coordinates."""
    return swap.in_d(_plan_of(turned, chosen), asked)


def _plan_of(asked: Request, chosen: Chosen) -> KernelPlan:
    """The plan of a choice, as its kernel sees the product."""
    setting, (candidate, *_), config, grid = chosen
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
    smem = memory.shared_memory(config)
    return KernelPlan(
        spec=asked.spec,
        problem=asked.problem,
        device=asked.device,
        steps=(*loads.steps, multiply, *adds, *reductions.steps),
        tiles=grid.tiles,
        waves=grid.waves,
        smem=smem,
        smem_bytes=smem[-1].end,
        barriers=budget.barriers(config),
        accumulators=accumulators(config),
        registers=config.registers,
        boxes=budget.boxes(config),
        store_conflicts=budget.store_conflicts(config),
        workspace_bytes=parts.workspace_bytes,
        counter_bytes=parts.counter_bytes,
        reasons=chosen.reasons,
    )
