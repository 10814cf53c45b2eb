# SPDX-License-Identifier: Apache-2.0
"""The candidates of a problem that the tuner measures, best predicted first, without duplicates."""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.device import Device
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.families import THREAD_LOADS
from cutegemm.planning import invariance
from cutegemm.planning.candidates import BLOCK_K
from cutegemm.planning.planner import plan
from cutegemm.planning.why import fields_of, predicted_us
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec

Fields = Mapping[str, Any]
# rows or columns of D up to which candidates are also tried with swapped operands
BOTH_WAYS = 256
# loads of an unaligned operand that are tried for the best candidates
UNALIGNED_LOADS = ("relayout", "shift", "cp_async", "gather")
LIKELY_LOADS = UNALIGNED_LOADS[:2]
# rows plus columns of a tile up to which threads load stages twice as deep
SHIFTED = 136
# rows or columns within which tiles count as similar
WIDTH = 48
# further candidates whose larger operand is tried with "shift"
LOADED = 3
# rasters that are tried for the best candidates
RASTERS = (("m", 4), ("m", 16), ("n", 8), ("m", 8))
# tiles up to which all rasters are the same
FEW_TILES = 8
# tiles per SM up to which kernels without a producer warp are tried
SHORT_WAVES = 2
# splits of K beyond which one less is tried
FEW_SPLITS = 8
# problems whose candidates are cached between batches; ranking them takes about 50 ms
REMEMBERED = 512
# number of best candidates whose variants are tried, and candidates before these variants
VARIED, PLAIN_FIRST = 2, 6
# predicted slowdown within which the model cannot tell kernels apart: its errors are about as large
WITHIN = 1.05


@dataclass(frozen=True)
class Proposal:
    """Fields to add to a spec, and the resulting plan."""

    fields: Fields  # plain data; {} is the model's own choice
    plan: KernelPlan  # for the spec with these fields
    us: float  # predicted microseconds

    @property
    def name(self) -> str:
        """The fields as JSON, the key of a trial."""
        return json.dumps(dict(self.fields), sort_keys=True)


def proposals(
    spec: GemmSpec,
    problem: Problem,
    device: Device,
    most: int,
    first: Iterable[Fields] = (),
    seeds: Iterable[Fields] = (),
) -> list[Proposal]:
    """The model's own choice, `first`, `seeds`, variants of `first`, then the others, without duplicates.

    The others are ordered by predicted time. After the first few come variants of the best two: other loads, other
    rasters, stream-K.

    Args:
        spec: its specified fields are kept; only unspecified fields vary.
        problem, device: of the plans.
        most: how many at most.
        first: fields to try before the model's order, such as those of an expired entry.
        seeds: fields that were fast elsewhere; unsupported ones are skipped.

    Raises:
        PlanError: the spec does not support the problem.
    """
    own = plan(spec, problem, device)
    chosen = [Proposal({}, own, predicted_us(own))]
    seen = {_kernels(own)}
    known = [{**x} for x in first]
    varied = (y for x in known for y in _variants(spec, x, problem, device))
    for fields in itertools.chain(known, seeds, varied, _by_time(spec, problem, device, own)):
        if len(chosen) >= most:
            break
        made = _planned(spec, fields, problem, device)
        if made is None or _kernels(made) in seen or not invariance.keeps(own, made):
            continue
        seen.add(_kernels(made))
        chosen.append(Proposal(fields, made, predicted_us(made)))
    return chosen


def explicit(spec: GemmSpec, proposal: Proposal) -> dict[str, Any]:
    """A proposal's fields in full, so that they give the same kernel when the cost model changes.

    The result is {} if the fields do not determine the model's own choice.
    """
    made = proposal.plan
    if proposal.fields:
        return {**proposal.fields}
    given = spec.given()
    fields = {name: v for name, v in _plain(fields_of(made)).items() if name not in given}
    again = _planned(spec, fields, made.problem, made.device)
    return fields if again is not None and _kernels(again) == _kernels(made) else {}


def _by_time(spec: GemmSpec, problem: Problem, device: Device, own: KernelPlan) -> Iterator[dict[str, Any]]:
    """Fields of every supported candidate, best predicted first; after a few come variants of the best."""
    plain = [_plain(dict(fields)) for fields in _ranked(spec, problem, device, own.swapped)]
    for place, fields in enumerate(plain):
        if place == PLAIN_FIRST:
            # kernels whose threads load operands cannot multicast
            alone = [x for x in plain if x["schedule"] == "cooperative" and x["cluster"] == [1, 1]]
            likely = list(_unaligned_loads(spec, own, LIKELY_LOADS))
            for best in alone[:LOADED]:
                yield from (_loaded(best, x) for x in likely if _shifts(x, problem))
            yield from (_loaded(best, x) for x in likely for best in alone[:1])
            for best in plain[:VARIED]:
                yield from _variants(spec, best, problem, device)
        yield fields
        if fields["schedule"] == "multistage":
            yield fields | {"ctas_per_sm": 2}
    if len(plain) <= PLAIN_FIRST:
        for best in plain[:VARIED]:
            yield from _variants(spec, best, problem, device)


@functools.lru_cache(REMEMBERED)
def _ranked(
    spec: GemmSpec, problem: Problem, device: Device, swapped: bool
) -> list[tuple[tuple[str, Any], ...]]:
    """Fields of the supported candidates; `swapped` is that of the model's choice.

    First those of every coarse kind that the model cannot tell from the best of all; then the best of every kind, then
    all others, each best predicted first.
    """
    weighed = list(plan(spec, problem, device).why.weighed)
    if spec.swap == AUTO and min(problem.m, problem.n) <= BOTH_WAYS:
        other = _planned(spec, {"swap": not swapped}, problem, device)
        weighed += [] if other is None else other.why.weighed
    supported = sorted((x for x in weighed if x.serves and x.fields), key=lambda x: x.us)
    # a plan that considered swapped operands lists both
    ranked = list(dict.fromkeys(x.fields for x in supported))
    both = min(problem.m, problem.n) <= BOTH_WAYS
    near = [x.fields for x in supported if x.us <= WITHIN * supported[0].us]
    foremost = {_coarse(dict(x), both): x for x in reversed(near)}
    first = {_kind(dict(x), both): x for x in reversed(ranked)}

    def rank(x: tuple[tuple[str, Any], ...]) -> int:
        fields = dict(x)
        if foremost.get(_coarse(fields, both)) == x:
            return 0
        return 1 if first[_kind(fields, both)] == x else 2

    return sorted(ranked, key=rank)


def _coarse(fields: Mapping[str, Any], both: bool) -> tuple[Any, ...]:
    """What gives kernels' times different reasons: a schedule, splits, loads, and an orientation if `both`."""
    loads = fields.get("a_load"), fields.get("b_load")
    return fields["schedule"], fields.get("split_k", 1) > 1, fields.get("swap") if both else None, *loads


def _kind(fields: Mapping[str, Any], both: bool) -> tuple[Any, ...]:
    """A key that is equal for similar candidates: it ignores clusters and small differences of the tile.

    Unless `both`, a tile and its mirror on swapped operands are similar: with many rows and columns they run alike.
    """
    if fields["schedule"] == "simt":
        return tuple(fields.items())
    m, n, k = fields["tile"]
    sides = m // WIDTH, n // WIDTH
    rest = (fields.get(x) for x in ("schedule", "split_reduction", "a_load", "b_load"))
    turned = fields.get("swap") if both else None
    return (*(sides if both else sorted(sides)), turned, k, fields.get("split_k", 1) > 1, *rest)


def _variants(
    spec: GemmSpec, fields: dict[str, Any], problem: Problem, device: Device
) -> Iterator[dict[str, Any]]:
    """A candidate's fields with other loads of unaligned operands, other rasters and triggers, and as stream-K."""
    made = _planned(spec, fields, problem, device)
    if made is None or not fields or fields.get("schedule") == "simt":
        return
    if fields.get("schedule") == "cooperative":
        yield from (_loaded(fields, x) for x in _unaligned_loads(spec, made, UNALIGNED_LOADS))
    whole = fields.get("schedule") == "cooperative" and fields.get("split_k", 1) == 1
    if whole and spec.tile == AUTO and math.prod(made.tiles) <= SHORT_WAVES * device.sms:
        # 333 x 777 x 555 takes 6.6 us without a producer warp, 8.1 with one (H200)
        alone = {name: fields[name] for name in ("tile", "swap")} | {"schedule": "multistage"}
        yield alone
        yield alone | {"ctas_per_sm": 2}
    if math.prod(made.tiles) > FEW_TILES and fields.get("split_reduction") != "launch":
        # also for one wave: sharing L2 cache lines between SMs is worth 9 % at 1023 x 1023 x 1023 (H200)
        for axis, group in RASTERS:
            yield fields | {"raster": [axis, group]}
    yield fields | {"trigger": "loads"}
    if fields.get("split_reduction") == "launch" and fields["split_k"] > FEW_SPLITS:
        yield fields | {"split_k": fields["split_k"] - 1}
    if whole:
        streamed = {name: v for name, v in fields.items() if name != "split_k"}
        yield streamed | {"scheduler": "stream_k"}


def _loaded(fields: dict[str, Any], loads: dict[str, str]) -> dict[str, Any]:
    """A candidate's fields with other loads, and a deeper tile if threads load."""
    m, n, k = fields["tile"]
    if any(x in THREAD_LOADS for x in loads.values()) and m + n <= SHIFTED:
        k = max(k, 2 * BLOCK_K)
    return fields | loads | {"tile": [m, n, k]}


def _shifts(loads: dict[str, str], problem: Problem) -> bool:
    """Whether threads shift only the larger operand, whose copy would be the most expensive."""
    wide = "a_load" if problem.a.bytes > problem.b.bytes else "b_load"
    return [name for name, x in loads.items() if x == "shift"] == [wide]


def _unaligned_loads(spec: GemmSpec, made: KernelPlan, loads: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Combinations of loads for operands that TMA does not load as they lie and whose load is unspecified."""
    unaligned = fields_of(made)
    names = [x for x in ("a_load", "b_load") if getattr(spec, x) == AUTO and x in unaligned]
    for combination in itertools.product(loads, repeat=len(names)):
        if names:
            yield dict(zip(names, combination, strict=True))


def _plain(fields: Fields) -> dict[str, Any]:
    """Fields as JSON has them."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}


def _planned(spec: GemmSpec, fields: Fields, problem: Problem, device: Device) -> KernelPlan | None:
    """The plan with more fields; None if the spec does not support them."""
    try:
        return plan(refined(spec, fields), problem, device)
    except (GemmError, TypeError):
        return None


def _kernels(made: KernelPlan) -> tuple[Any, ...]:
    """A key that is equal for plans with the same launches."""
    configs = tuple(step.config for step in made.steps)
    return configs, made.raster, made.clusters, made.swapped


def under(spec: GemmSpec, proposal: Proposal) -> GemmSpec:
    """The spec of a proposal."""
    return refined(spec, proposal.fields)
