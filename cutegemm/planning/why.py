# SPDX-License-Identifier: Apache-2.0
"""Why a plan is as it is: the cheapest configs' predicted times and fates. Made when asked for (`KernelPlan.why`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cutegemm.config import KernelConfig, SimtConfig, SimtTile
from cutegemm.config.spills import spills
from cutegemm.errors import PlanError
from cutegemm.planning import simt_tiles
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.choose import served
from cutegemm.planning.kernel_plan import KernelPlan, Weighed, Why
from cutegemm.planning.ranking import options, predicted
from cutegemm.planning.requirements import requested
from cutegemm.planning.steps import Relayout
from cutegemm.planning.ways import Option, Way, ways_of

# configs that are shown: no two that differ in the cluster alone
SHOWN = 96
SPILLS = "its threads' registers do not hold the accumulators and what the epilogue adds to them"


def weigh_tensor_core(made: KernelPlan) -> Why:
    """The cheapest configs of a tensor-core plan's spec and what became of each; the plan's own is among them."""
    return Why(tuple(_fates(made)))


def _fates(made: KernelPlan) -> Iterator[Weighed]:
    asked, _ = requested(made.spec, made.problem, made.device)
    way, own = way_of(made)
    least = predicted(way, [own])[0]
    shown: dict[tuple[tuple[str, object], ...], Option] = {}
    kinds: set[tuple[object, ...]] = set()
    for option in itertools.islice(options(asked), 4 * SHOWN):
        # no two that differ in the cluster alone
        kind = option.way.swapped, option.way.loads.chosen, option.candidate._replace(cluster=(1, 1))
        if kind not in kinds and len(kinds) < SHOWN:
            shown[_option_fields(option)] = option
        kinds.add(kind)
    taken = Option(least, way, own)
    fields = _option_fields(taken)
    shown[fields] = taken
    for named, option in sorted(shown.items(), key=lambda x: x[1].ns):
        lost, serves = "", True
        if named != fields:
            try:
                config, _ = served(option.way, option.candidate, asked.device)
                lost = SPILLS if spills(config) else _lost(option.ns, least)
            except PlanError as error:
                lost, serves = f"refused: {error}", False
        found = _in_d(option.candidate) if option.way.swapped else option.candidate
        yield Weighed(_words(found, option.way), option.ns / 1e3, lost, named, serves)


def way_of(made: KernelPlan) -> tuple[Way, Candidate]:
    """The way and the candidate of a plan's tensor-core kernel."""
    config = made.config
    assert isinstance(config, KernelConfig)
    asked, _ = requested(made.spec, made.problem, made.device)
    copied = {copy.operand for step in made.steps if isinstance(step, Relayout) for copy in step.copies}
    names = ("b", "a") if made.swapped else ("a", "b")
    loads = tuple(
        "relayout" if name in copied else x.load for name, x in zip(names, config.operands, strict=True)
    )
    found = [x for x in ways_of(asked) if x.swapped == made.swapped]
    return next(x for x in found if x.loads.chosen == loads), Candidate.of(config)


def predicted_us(made: KernelPlan) -> float:
    """Microseconds that the cost model predicts for a plan; 0 where nothing is launched."""
    config = made.config
    if isinstance(config, KernelConfig):
        way, own = way_of(made)
        return predicted(way, [own])[0] / 1e3
    if isinstance(config, SimtConfig):
        (found,) = (x.us for x in weigh_simt(made).weighed if not x.lost)
        return found
    return 0.0


def weigh_simt(made: KernelPlan) -> Why:
    """The fate of each tile and cut of K of a CUDA-core plan; the plan's own is among them, whoever chose it."""
    config = made.config
    assert isinstance(config, SimtConfig)
    asked, _ = requested(made.spec, made.problem, made.device)
    weighed = simt_tiles.weighed(asked)
    named = {simt_tiles.fields_of(x): (ns, x) for ns, x in weighed}
    own = simt_tiles.fields_of(config)
    if own not in named:
        named[own] = simt_tiles.estimate(made.problem, config, made.device), config
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
    """Fields of a `GemmSpec` that ask for a plan's candidate, raster and loads; on the CUDA cores for its tile.

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
        return f"predicted faster by {(least - ns) / 1e3:,.1f} us, but later in the order"
    return f"slower by {(ns - least) / 1e3:,.1f} us ({ns / least - 1:.1%})"


def _in_d(x: Candidate) -> Candidate:
    """A transposed product's candidate in D's coordinates."""
    (m, n, k), (along, across) = x.tile, x.cluster
    return x._replace(tile=(n, m, k), cluster=(across, along))


def _loads(way: Way) -> dict[str, str]:
    """How operands arrive in D's coordinates that TMA cannot address."""
    loads = way.loads
    names = ("b", "a") if way.swapped else ("a", "b")
    operands = loads.problem.a, loads.problem.b
    return {
        name: load
        for name, load, x in zip(names, loads.chosen, operands, strict=True)
        if x.tma_reason() is not None
    }


def _words(x: Candidate, way: Way) -> str:
    loads = "".join(f", {name.upper()} {load}" for name, load in sorted(_loads(way).items()))
    return f"{x}{', swapped' if way.swapped else ''}{loads}"


def option_fields(option: Option) -> dict[str, object]:
    """Fields of a `GemmSpec` that ask for an option."""
    return dict(_option_fields(option))


def _option_fields(option: Option) -> tuple[tuple[str, object], ...]:
    """What a spec gives to ask for an option."""
    found = _in_d(option.candidate) if option.way.swapped else option.candidate
    loads = tuple((f"{name}_load", load) for name, load in sorted(_loads(option.way).items()))
    return (*_fields(found, option.way.swapped), *loads)


def _tile_words(x: SimtTile) -> str:
    return f"tile {x.tile}" + ("" if x.split == 1 else f", {x.split} splits of K")


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
