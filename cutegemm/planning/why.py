# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: the cheapest configs' predicted times and fates. Made when asked for (`KernelPlan.why`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cutegemm.config import GemvConfig, KernelConfig, SimtConfig, SimtTile
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError
from cutegemm.planning import gemv_tiles, simt_tiles
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.choose import served
from cutegemm.planning.grouped import average_plan
from cutegemm.planning.ranking import options, predicted
from cutegemm.planning.ways import Option, Way, ways_of
from cutegemm.plans.kernel_plan import KernelPlan, Weighed, Why
from cutegemm.plans.steps import Relayout
from cutegemm.request.few_rows import as_rows, few
from cutegemm.request.requirements import MATRICES, Batches, Request, requested

# configs that are shown: no two that differ in the cluster alone
SHOWN = 96
SPILLS = "its threads' registers do not hold the accumulators and what the epilogue adds to them"
# of a `GemmSpec`, by name
Fields = tuple[tuple[str, object], ...]


def weigh_tensor_core(made: KernelPlan) -> Why:
    """The generator's table for a tensor-core plan's request, and what became of each config, the plan's among them."""
    made, batches = average_plan(made)
    asked, _ = requested(made.spec, made.problem, made.device, batches)
    own = option_of(made, batches)
    shown = _shown(asked) | {fields_of_option(own): own}
    fates = (_fate(fields, x, own.ns, taken=x is own) for fields, x in shown.items())
    return _sorted(*fates, *_gemv(asked, (), own.ns))


def _sorted(*found: Weighed) -> Why:
    return Why(tuple(sorted(found, key=lambda x: x.us)))


def _shown(asked: Request) -> dict[Fields, Option]:
    """The configs predicted fastest, no two that differ in the cluster alone."""
    shown, kinds = dict[Fields, Option](), set[tuple[object, ...]]()
    for option in itertools.islice(options(asked), 4 * SHOWN):
        kind = option.way.swapped, option.way.loads, option.candidate._replace(cluster=(1, 1))
        if kind not in kinds and len(kinds) < SHOWN:
            shown[fields_of_option(option)] = option
        kinds.add(kind)
    return shown


def _fate(fields: Fields, option: Option, least: float, *, taken: bool) -> Weighed:
    """What became of an option where one of `least` nanoseconds was taken."""
    lost, serves = "", True
    if not taken:
        try:
            config, _ = served(option.way, option.candidate)
            lost = SPILLS if spills(config) else _lost(option.ns, least)
        except PlanError as error:
            lost, serves = f"refused: {error}", False
    loads = "".join(f", {name.upper()} {load}" for name, load in _loads(option.way))
    what = f"{option.in_d}{', swapped' if option.way.swapped else ''}{loads}"
    return Weighed(what, option.ns / 1e3, lost, fields, serves)


def _gemv(asked: Request, own: Fields, least: float, taken: object = None) -> Iterator[Weighed]:
    """The fate of the tiles of the CUDA cores for few rows or columns of D, a plan's own among them."""
    of, tuned = as_rows(asked) or asked, (taken,) if isinstance(taken, GemvConfig) else ()
    for ns, x in gemv_tiles.weighed(asked, tuned):
        fields = simt_tiles.fields_of(x, swapped=of.factors != asked.factors)
        what = f"{few(asked.problem)} on the CUDA cores, tile {dict(fields)['tile']}"
        yield Weighed(what, ns / 1e3, "" if fields == own else _lost(ns, least), fields)


def _gemv_ns(asked: Request, config: GemvConfig) -> float:
    """The predicted time of a kernel for few rows or columns of D; the planner may not compare a tuned entry's tile."""
    return next(ns for ns, x in gemv_tiles.weighed(asked, (config,)) if x.tile == config.tile)


def option_of(made: KernelPlan, batches: Batches = MATRICES) -> Option:
    """The option that a plan's tensor-core kernel comes from, with its predicted time."""
    assert isinstance(made.config, KernelConfig)
    asked, _ = requested(made.spec, made.problem, made.device, batches)
    copied = {copy.operand for step in made.steps if isinstance(step, Relayout) for copy in step.copies}
    operands = zip("ba" if made.swapped else "ab", made.config.operands, strict=True)
    loads = tuple("relayout" if name in copied else x.load for name, x in operands)
    way = next(x for x in ways_of(asked) if x.swapped == made.swapped and x.loads == loads)
    candidate = Candidate.of(made.config)
    return Option(predicted(way, [candidate])[0], way, candidate)


def predicted_us(made: KernelPlan) -> float:
    """Microseconds that the cost model predicts for a plan; 0 where nothing is launched."""
    if isinstance(made.config, KernelConfig):
        return option_of(*average_plan(made)).ns / 1e3
    if isinstance(made.config, GemvConfig):
        asked, _ = requested(made.spec, made.problem, made.device)
        return _gemv_ns(asked, made.config) / 1e3
    taken = weigh_simt(made).taken if isinstance(made.config, SimtConfig) else None
    return 0.0 if taken is None else taken.us


def weigh_simt(made: KernelPlan) -> Why:
    """The fate of each tile of a CUDA-core plan, its own among them, and of tensor-core configs if they might serve."""
    config, own = made.config, tuple(fields_of(made).items())
    asked, family = requested(made.spec, made.problem, made.device)
    cores = family.name == "simt"
    if isinstance(config, GemvConfig):
        least = _gemv_ns(asked, config)
        others = () if cores else _shown(asked).items()
        found = [_fate(fields, x, least, taken=False) for fields, x in others]
    # tiles for several rows or columns are considered only where tensor cores are not
    several = [(ns, x) for ns, x in simt_tiles.candidates(asked) if isinstance(x, SimtTile)] if cores else []
    named = {simt_tiles.fields_of(x): (ns, x) for ns, x in several}
    if isinstance(config, SimtConfig):
        estimated = simt_tiles.estimate(made.problem, config, made.device), config
        (least, _), found = named.setdefault(own, estimated), []
    for fields, (ns, x) in named.items():
        what = f"tile {x.tile}" + ("" if x.split == 1 else f", {x.split} splits of K")
        found.append(Weighed(what, ns / 1e3, "" if fields == own else _lost(ns, least), fields))
    return _sorted(*found, *_gemv(asked, own, least, config))


def fields_of(made: KernelPlan) -> dict[str, object]:
    """Fields of a `GemmSpec` that ask for a plan's candidate, raster and loads; on the CUDA cores for its tile.

    They do not say what else a kernel has: a scheduler, hints, a trigger. Without K there are none.
    """
    if isinstance(made.config, SimtConfig | GemvConfig) and made.problem.k:
        return dict(simt_tiles.fields_of(made.config, made.swapped))
    if not isinstance(made.config, KernelConfig):
        return {}
    return {**dict(fields_of_option(option_of(made))), "raster": made.raster}


def fields_of_option(option: Option) -> Fields:
    """What a `GemmSpec` gives to ask for an option."""
    x = option.in_d
    fields: dict[str, object] = {"tile": x.tile, "schedule": x.schedule, "swap": option.way.swapped}
    if x.schedule != "multistage":
        fields["cluster"] = x.cluster
    if x.schedule == "cooperative":
        fields |= {"consumers": x.consumers, "split_k": x.splits}
        if x.splits > 1:
            fields |= {"cluster": (*x.cluster, x.depth), "split_reduction": x.reduction}
    return (*fields.items(), *((f"{name}_load", load) for name, load in _loads(option.way)))


def _lost(ns: float, least: float) -> str:
    if ns < least:
        return f"predicted faster by {(least - ns) / 1e3:,.1f} us, but not chosen"
    return f"slower by {(ns - least) / 1e3:,.1f} us ({ns / least - 1:.1%})"


def _loads(way: Way) -> list[tuple[str, str]]:
    """How operands arrive that TMA does not load as they lie, by name in D's coordinates."""
    return sorted((x, load) for x, load in zip(way.request.factors, way.loads, strict=True) if load != "tma")
