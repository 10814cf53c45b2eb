# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: what was chosen, and everything that a plan says of it."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from cutegemm.config import memory
from cutegemm.config.registers import accumulators
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError
from cutegemm.planning import adding, budget, invariance, narrow, splits, swap
from cutegemm.planning.candidates import Order, Ranked
from cutegemm.planning.choose import Chosen, choose, served
from cutegemm.planning.kernel import raster
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.model import by_model
from cutegemm.planning.reductions import plan_reductions
from cutegemm.planning.request import Request
from cutegemm.planning.setting import first_setting
from cutegemm.planning.steps import Multiply
from cutegemm.spec import AUTO

# times less that a config must cost than the order's choice: predictions of the two differ by as much where both take
# as long (`benchmarks.fit_cost`)
CLEARLY = 1.03


class Found(NamedTuple):
    """A choice for a request: the request as its kernel sees it, D's transpose where operands are swapped."""

    seen: Request
    chosen: Chosen
    swapped: bool


def plan_tensor_core(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem that runs on the tensor cores, its operands swapped or not.

    Where the cost model knows a config that is clearly cheaper than the order's choice, it is taken instead.

    Raises:
        PlanError: a given field contradicts another or the problem.
    """
    found = _by_order(asked, order)
    if order is by_model:
        found = _cheaper(asked, found)
    made = _plan_of(found.seen, found.chosen)
    return swap.in_d(made, asked) if found.swapped else made


def _cheaper(asked: Request, found: Found) -> Found:
    """The config that costs least, if that is clearly less than another choice; else that choice."""
    # imports NumPy
    from cutegemm.planning import ranking

    if not ranking.open_to(asked):
        return found
    own, options = ranking.beside(asked, found.swapped, found.chosen.ranked.candidate)
    seen, settings = {found.swapped: found.seen}, {found.swapped: found.chosen.setting}
    for ns, swapped, candidate in options:
        if ns * CLEARLY >= own:
            break
        with contextlib.suppress(PlanError):
            if swapped not in seen:
                seen[swapped] = swap.transposed(asked) if swapped else asked
                settings[swapped] = first_setting(seen[swapped])
            config, grid = served(seen[swapped], settings[swapped], candidate)
            if spills(config):
                continue
            ranked = Ranked(candidate, f"costs least, {ns / 1e3:,.1f} us", ns)
            return Found(seen[swapped], Chosen(settings[swapped], ranked, config, grid), swapped)
    return found


def _by_order(asked: Request, order: Order) -> Found:
    """The first candidate of an order that serves, as rules of few rows or columns have it.

    Raises:
        PlanError: a given field contradicts another or the problem.
    """
    columns = narrow.mirrored(asked)
    if columns:
        return _turned(asked, narrow.order_narrow(asked, columns, order, swapped=True))
    few, upright = narrow.taken(asked), invariance.pinned(asked)
    if few or not swap.wanted(asked):
        return Found(upright, choose(upright, narrow.order_narrow(asked, few, order)), False)
    try:
        return _turned(asked, order)
    except PlanError as error:
        # a choice that nothing in the spec asks for refuses nothing
        if asked.spec.swap == AUTO and asked.spec.tile == AUTO:
            return Found(upright, choose(upright, order), False)
        raise swap.error_in_d(error) from error


def _turned(asked: Request, order: Order) -> Found:
    """What is chosen for D's transpose."""
    turned = swap.transposed(invariance.pinned(asked, swapped=True))
    return Found(turned, choose(turned, swap.order_swapped(turned, order)), True)


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
