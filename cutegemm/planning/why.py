# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: every candidate's predicted time and fate. Made when asked for (`KernelPlan.why`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from cutegemm.config import KernelConfig, SimtConfig, SimtTile
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError
from cutegemm.planning import invariance, narrow, ranking, simt_tiles, simt_times, swap
from cutegemm.planning.candidates import Candidate, Order
from cutegemm.planning.choose import preferred, served
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.model import by_model, predicted_ns
from cutegemm.planning.operands import aligned_copy, gated_half
from cutegemm.planning.request import Request, requested
from cutegemm.planning.setting import first_setting
from cutegemm.planning.steps import Relayout
from cutegemm.planning.times import fastest_first
from cutegemm.planning.weighed import Weighed, Why
from cutegemm.problems import Problem
from cutegemm.spec import AUTO

# of the cost model's configs, so many are shown: no two that differ in the cluster alone
SHOWN = 96
SPILLS = "its threads' registers do not hold the accumulators and what the epilogue adds to them"


def weigh_tensor_core(made: KernelPlan) -> Why:
    """The fate of each candidate of a tensor-core plan; last the plan's own where none of them is it."""
    config = made.config
    assert isinstance(config, KernelConfig)
    asked, _ = requested(made.spec, made.problem, made.device)
    own = Candidate.of(config)
    if ranking.open_to(asked):
        return Why(tuple(_costs(asked, made.swapped, own)))
    turned, order = _way(asked, made.swapped)
    least = predicted_ns(_seen(first_setting(turned).problem, config), made.device, own)
    return Why(tuple(_fates(turned, order, made.swapped, own, least)))


def _costs(asked: Request, turned: bool, own: Candidate) -> Iterator[Weighed]:
    """What became of the cheapest of the generator's configs, of the orders' candidates, and of a plan's own.

    Args:
        turned: whether the plan swaps operands; own: its candidate.
    """
    kinds: set[tuple[bool, Candidate]] = set()
    shown: dict[tuple[bool, Candidate], float] = {}
    least, options = ranking.beside(asked, turned, own)
    for ns, swapped, candidate in itertools.islice(options, 4 * SHOWN):
        kind = swapped, candidate._replace(cluster=(1, 1))
        if kind not in kinds and len(kinds) < SHOWN:
            shown[swapped, candidate] = ns
        kinds.add(kind)
    for swapped in (False, True) if asked.spec.swap == AUTO else (turned,):
        seen, order = _way(asked, swapped)
        tried = [x.candidate for x in preferred(seen, first_setting(seen), order)]
        shown |= zip(((swapped, x) for x in tried), ranking.predicted(asked, swapped, tried), strict=True)
    shown[turned, own] = least
    for (swapped, candidate), ns in sorted(shown.items(), key=lambda x: x[1]):
        yield _cost(asked, swapped, candidate, (ns, least), (swapped, candidate) == (turned, own))


def _cost(
    asked: Request, swapped: bool, candidate: Candidate, ns: tuple[float, float], taken: bool
) -> Weighed:
    """What became of one config; `ns` of it and of what was taken."""
    lost, serves = "", True
    if not taken:
        seen = swap.transposed(asked) if swapped else asked
        try:
            config, _ = served(seen, first_setting(seen), candidate)
            lost = SPILLS if spills(config) else _lost(*ns)
        except PlanError as error:
            lost, serves = f"refused: {error}", False
    shown = _in_d(candidate) if swapped else candidate
    return Weighed(_words(shown, swapped), ns[0] / 1e3, lost, _fields(shown, swapped), serves)


def _way(asked: Request, swapped: bool) -> tuple[Request, Order]:
    """The request as a way round has it, and the order of its candidates."""
    pinned = invariance.pinned(asked, swapped=swapped)
    if swapped:
        turned, mirrored = swap.transposed(pinned), narrow.mirrored(asked)
        own = narrow.order_narrow(asked, mirrored, by_model, swapped=True)
        return turned, swap.order_swapped(turned, own)
    return pinned, narrow.order_narrow(asked, narrow.taken(asked), by_model)


def _fates(asked: Request, order: Order, swapped: bool, own: Candidate, least: float) -> list[Weighed]:
    """What became of the candidates of a way round.

    Args:
        own: the one that was taken; least: its nanoseconds.
    """
    first = first_setting(asked)
    # an order may name one twice: for a rule of its own, then by its time
    tried = list(dict.fromkeys(ranked.candidate for ranked in preferred(asked, first, order)))
    if own not in tried:
        tried.append(own)
    found = []
    for candidate, ns in zip(tried, fastest_first(first.seen, asked.device, tried)[1], strict=True):
        lost, serves = "", True
        try:
            config, _ = served(asked, first, candidate)
            if asked.spec.tile == AUTO and spills(config):
                lost = SPILLS
        except PlanError as error:
            lost, serves = f"refused: {error}", False
        if candidate == own:
            # its operands may be copied where the first setting's threads load them
            ns, lost, serves = least, "", True
        elif not invariance.allows(asked, candidate):
            lost, serves = "refused: batch_invariant=True pins other columns or another depth", False
        elif not lost:
            lost = _lost(ns, least)
        shown = _in_d(candidate) if swapped else candidate
        fields = _fields(shown, swapped)
        found.append(Weighed(_words(shown, swapped), ns / 1e3, lost, fields, serves))
    return found


def predicted_us(made: KernelPlan) -> float:
    """Microseconds that the model predicts for a plan; 0 where nothing is launched."""
    config, problem = made.config, made.problem
    if isinstance(config, KernelConfig):
        product = swap.transposed_problem(problem) if made.swapped else problem
        asked, _ = requested(made.spec, problem, made.device)
        if ranking.open_to(asked):
            return ranking.predicted(asked, made.swapped, [Candidate.of(config)])[0] / 1e3
        half, _ = gated_half(product, config.epilogue)
        return predicted_ns(_seen(half, config), made.device, Candidate.of(config)) / 1e3
    if isinstance(config, SimtConfig):
        (found,) = (x.us for x in weigh_simt(made).weighed if not x.lost)
        return found
    return 0.0


def _seen(product: Problem, config: KernelConfig) -> Problem:
    """A product as its kernel reads it: what TMA brings although it cannot address it has been copied."""
    a, b = (
        aligned_copy(operand, config.limits)[0] if x.load == "tma" and operand.tma_reason() else operand
        for operand, x in zip((product.a, product.b), config.operands, strict=True)
    )
    return product if (a, b) == (product.a, product.b) else dataclasses.replace(product, a=a, b=b)


def weigh_simt(made: KernelPlan) -> Why:
    """The fate of each tile and cut of K of a CUDA-core plan; the plan's own is among them, whoever chose it."""
    config = made.config
    assert isinstance(config, SimtConfig)
    asked, _ = requested(made.spec, made.problem, made.device)
    weighed = simt_tiles.weighed(asked)
    named = {simt_tiles.fields_of(x): (ns, x) for ns, x in weighed}
    own = simt_tiles.fields_of(config)
    if own not in named:
        named[own] = simt_times.estimate(made.problem, config, made.device), config
    least = named[own][0]
    return Why(
        tuple(
            Weighed(_tile_words(x), ns / 1e3, "" if fields == own else _lost(ns, least), fields)
            for fields, (ns, x) in sorted(named.items(), key=lambda pair: pair[1][0])
        )
    )


def candidate_of(made: KernelPlan) -> Candidate | None:
    """The candidate that a plan's tensor-core kernel comes from, of the product that the kernel sees."""
    return Candidate.of(made.config) if isinstance(made.config, KernelConfig) else None


def fields_of(made: KernelPlan) -> dict[str, object]:
    """Fields of a `GemmSpec` that ask for a plan's candidate, walk and loads; on the CUDA cores for its tile.

    What else a kernel has (a stream of works, hints, a trigger) they do not say. Without K there are none.
    """
    config = made.config
    if isinstance(config, SimtConfig) and made.problem.k:
        return dict(simt_tiles.fields_of(config))
    if not isinstance(config, KernelConfig):
        return {}
    found = Candidate.of(config)
    shown = _in_d(found) if made.swapped else found
    fields = {**dict(_fields(shown, made.swapped)), "raster": made.raster}
    copied = {copy.operand for step in made.steps if isinstance(step, Relayout) for copy in step.copies}
    loads = [x.load for x in config.operands]
    for name, load in zip("ab", reversed(loads) if made.swapped else loads, strict=True):
        if getattr(made.problem, name).tma_reason() is not None:
            fields[f"{name}_load"] = "relayout" if name in copied else load
    return fields


def _lost(ns: float, least: float) -> str:
    if ns < least:
        return f"predicted faster by {(least - ns) / 1e3:,.1f} us, but not clearly, or later in the order"
    return f"slower by {(ns - least) / 1e3:,.1f} us ({ns / least - 1:.1%})"


def _in_d(x: Candidate) -> Candidate:
    """A transposed product's candidate in D's coordinates."""
    (m, n, k), (along, across) = x.tile, x.cluster
    return x._replace(tile=(n, m, k), cluster=(across, along))


def _words(x: Candidate, swapped: bool) -> str:
    return f"{x}, swapped" if swapped else str(x)


def _tile_words(x: SimtTile) -> str:
    return f"tile {x.tile}" + ("" if x.split == 1 else f", K in {x.split} parts")


def config_fields(x: Candidate, swapped: bool) -> dict[str, object]:
    """Fields of a `GemmSpec` that ask for a candidate, which is of D's transpose where operands are swapped."""
    return dict(_fields(_in_d(x) if swapped else x, swapped))


def _fields(x: Candidate, swapped: bool) -> tuple[tuple[str, object], ...]:
    """What a spec gives to ask for a candidate."""
    fields: dict[str, object] = {"tile": x.tile, "schedule": x.schedule, "swap": swapped}
    if x.schedule != "multistage":
        fields["cluster"] = x.cluster
    if x.schedule == "cooperative":
        fields |= {"consumers": x.consumers, "split_k": x.splits}
        if x.splits > 1:
            fields |= {"cluster": (*x.cluster, x.depth), "split_reduction": x.reduction}
    return tuple(fields.items())
