# SPDX-License-Identifier: Apache-2.0
"""Planning a tensor-core kernel: the config that costs least of those that serve every given field, and its launches.

If none of the cheapest satisfies the given fields, everything else that they allow is tried: other tiles, schedules and
teams, direct stores. A spec is refused only if all of that fails, with the first error about a given field.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from cutegemm.config import KernelConfig
from cutegemm.config.invariants import KIND, check
from cutegemm.config.invariants.tiles import rows_step
from cutegemm.config.registers import most_accumulators
from cutegemm.config.spills import spills
from cutegemm.errors import InputError, PlanError, field_error, shown
from cutegemm.launch_layout import placed
from cutegemm.planning import candidates, gemv_tiles, invariance
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.kernel_fields import check_reduction, configured, drafted, raster
from cutegemm.planning.simt_tiles import plan_tile
from cutegemm.planning.ways import Option, Order, Way, by_cost, direct, only_depth, turned, ways_of
from cutegemm.plans import gpcs, launches
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.launch_limits import check_copies, check_fewest, check_sms
from cutegemm.plans.launches import Grid
from cutegemm.plans.steps import Multiply, Relayout, Step
from cutegemm.plans.workspace import plan_parts, plan_reductions
from cutegemm.request import swap
from cutegemm.request.few_rows import few
from cutegemm.request.requirements import Request
from cutegemm.spec import AUTO, GemmSpec

# rows of the generator's table that are tried; if all of them are refused, so are the others
TRIES = 64
# the option that a kernel comes from, the kernel, and its launch
Chosen = tuple[Option, KernelConfig, Grid]


def plan_tensor_core(asked: Request, order: Order) -> KernelPlan:
    """The plan of a problem on the tensor cores, with operands swapped or not."""
    option, config, grid = choose(asked, order)
    ns, way, candidate = option
    found = gemv_tiles.weighed(asked) if order is by_cost else []
    least, tile = min(found, key=lambda pair: pair[0]) if found else (math.inf, None)
    if tile is not None and least < ns:
        why = f"D has {few(asked.problem)}: the CUDA cores are predicted to be faster, {least / 1e3:,.1f} us"
        return plan_tile(asked, tile, (*asked.reasons, why))
    seen, reasons = way.request, way.reasons
    if seen.spec.tile == AUTO:
        why = f"costs least, {ns / 1e3:,.1f} us" if ns else "the given fields leave little else"
        reasons = (*reasons, f"{option.in_d}: {why}")
    if not config.promote and seen.spec.promote == AUTO and (most := seen.instruction.whole):
        short = f"K={seen.problem.k:,} is at most {most:,}, and every output is bf16 or fp8"
        reasons = (*reasons, f"sums are not promoted: {short}")
    if config.dynamic and seen.spec.scheduler == AUTO:
        alone = "without a cluster they would drift apart, and L2 does not hold all matrices"
        reasons = (*reasons, f"CTAs take tiles from a counter: {alone}")
    storing = config
    if not config.stores:
        in_turn = seen.spec.batch_invariant is True
        storing = launches.adding_config(config, grid.tiles, seen.device.sms, in_turn=in_turn)
    reductions = plan_reductions(storing, seen.problem, grid.tiles, way.workspace_bytes)
    parts = plan_parts(config, grid.tiles, grid.clusters, reductions.workspace_bytes)
    # of a gated pair that of its first half
    copied = {x.operand: x.offset for x in reversed(way.copies)}
    multiply = Multiply.of(
        seen.problem,
        way.views,
        config=config,
        factors=seen.factors,
        gate=way.gate,
        raster=raster(way, candidate),
        clusters=grid.clusters,
        order=gpcs.order(seen.device.gpcs[config.cluster_size], grid.clusters) if placed(config) else (),
        parts=reductions.parts,
        in_workspace=copied | reductions.partials | parts.places,
        counted=parts.counted,
    )
    steps: list[Step] = [multiply]
    if way.copies:
        renamed = (dataclasses.replace(x, operand=seen.called(x.operand)) for x in way.copies)
        steps.insert(0, Relayout.of(tuple(renamed)))
    if not config.stores:
        adders = math.prod(grid.tiles) * storing.slices * storing.team
        steps.append(dataclasses.replace(multiply, config=storing, clusters=adders, order=()))
    m, n, batch = grid.tiles
    return KernelPlan(
        spec=asked.spec,
        problem=asked.problem,
        device=asked.device,
        steps=(*steps, *reductions.steps),
        tiles=(n, m, batch) if way.swapped else grid.tiles,
        waves=grid.waves,
        workspace_bytes=parts.workspace_bytes,
        counter_bytes=parts.counter_bytes,
        reasons=reasons,
    )


class Refusals:
    """The refusal if no candidate is possible: the first that is not about an unspecified field."""

    def __init__(self, spec: GemmSpec, swapped: bool) -> None:
        self.spec, self.swapped = spec, swapped
        self.first: PlanError | None = None

    def add(self, error: PlanError) -> None:
        """Note that a candidate is refused, of D's transpose where operands are swapped."""
        if self.first is None:
            error = swap.error_in_d(error) if self.swapped else error
            unspecified = GemmSpec.__dataclass_fields__.keys() - self.spec.given().keys()
            self.first = None if any(map(error.concerns, unspecified)) else error


def choose(asked: Request, order: Order) -> Chosen:
    """The kernel of a request."""
    # imports NumPy
    from cutegemm.planning.ranking import options

    check_fewest(asked.spec, asked.problem, asked.device.limits)
    refusals = Refusals(asked.spec, turned(asked)[0])
    spilling: Chosen | None = None
    first = itertools.islice(_ordered(order, options(asked)), TRIES)
    for option in itertools.chain(first, _others(asked, refusals)):
        _, way, candidate = option
        if not invariance.allows(way.request, candidate):
            continue
        try:
            config, grid = served(way, candidate)
        except PlanError as error:
            if way.swapped == refusals.swapped:
                refusals.add(error)
            continue
        if asked.spec.tile != AUTO or not spills(config):
            return option, config, grid
        spilling = spilling or (option, config, grid)
    if spilling is not None:
        return spilling
    raise refusals.first or field_error(PlanError, "tile", AUTO, "no tile serves the other given fields")


def _ordered(order: Order, found: Iterator[Option]) -> Iterator[Option]:
    """Options in the order in which they are tried; an `InputError` if the caller's function gives something else."""
    rule = "must take an iterator of options and give these in another order"
    try:
        ordered = iter(order(found))
    except TypeError as error:
        raise field_error(InputError, "order", order, f"{rule} ({error})") from error
    for option in ordered:
        if not isinstance(option, Option):
            raise field_error(InputError, "order", order, f"{rule}, and gave {shown(option)}")
        yield option


def _others(asked: Request, refusals: Refusals) -> Iterator[Option]:
    """Everything else that a spec allows, in one orientation and whatever it costs.

    Kinds of candidates that break an invariant with every tile are left out. Once the refusal is known, so are tiles
    that invariants exclude.
    """
    # imports NumPy
    from cutegemm.planning.generator import fitting

    found = [x for x in ways_of(asked) if x.swapped == refusals.swapped]
    for way in (*found, *filter(None, map(direct, found))):
        spec, limits, (a, b) = way.spec, way.limits, way.operands
        for kind in candidates.kinds(spec, limits):
            try:
                draft = drafted(way, kind)
                check(draft, KIND)
                check_reduction(spec, kind)
                check_sms(spec, draft.cluster_size)
            except PlanError as error:
                refusals.add(error)
                continue
            rows = rows_step(limits, kind.team, a.halves)
            elements = most_accumulators(draft) * kind.team * limits.warpgroup
            tiles = candidates.tiles(spec, limits, elements, rows, b.halves, only_depth(way))
            for tile in tiles:
                yield Option(0.0, way, kind._replace(tile=tile))
                if refusals.first is not None:
                    break
            for tile in fitting(way, kind, tiles):
                yield Option(0.0, way, kind._replace(tile=tile))


def served(way: Way, candidate: Candidate) -> tuple[KernelConfig, Grid]:
    """The kernel and the launch of a candidate; refused where one is not possible."""
    config = configured(way, candidate)
    check_copies(way.copies)
    spec = way.spec
    grid = launches.grid_of(spec, way.problem, config, way.request.device)
    if config.stages < 2 and spec.stages == AUTO and spec.tile == AUTO:
        rule = "loads and products of one stage would alternate"
        raise field_error(PlanError, "stages", config.stages, rule, 2)
    return config, grid
