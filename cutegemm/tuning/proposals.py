# SPDX-License-Identifier: Apache-2.0
"""The candidates of a problem that are worth measuring, best predicted first; no kernel and raster twice."""

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
from cutegemm.planning.candidates import BLOCK_K, SHIFTED
from cutegemm.planning.planner import KernelPlan, plan
from cutegemm.planning.why import fields_of, predicted_us
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec

Fields = Mapping[str, Any]
# rows of D up to which operands are tried both ways
BOTH_WAYS = 256
# ways in for an operand that TMA cannot address, tried for the candidates predicted best
ODD_LOADS = ("relayout", "shift", "cp_async", "gather")
LIKELY_LOADS = ODD_LOADS[:2]
# rows or columns within which tiles are alike
WIDTH = 64
# candidates beside them whose larger operand is shifted
LOADED = 3
# rasters that are tried for the candidates predicted best
RASTERS = (("m", 4), ("m", 16), ("n", 8), ("m", 8))
# tiles up to which no raster differs from another
FEW_TILES = 8
# tiles an SM up to which kernels without a producer warp are tried
SHORT_WAVES = 2
# parts of K beyond which one less is tried
FEW_PARTS = 8
# problems whose candidates are remembered from one batch to the next: each is weighed in some 50 ms
REMEMBERED = 512
# how many of those have their variants tried, and after how many candidates
VARIED, PLAIN_FIRST = 2, 6


@dataclass(frozen=True)
class Proposal:
    """Fields of a spec to measure, beside those that are given, and the plan that they make.

    Attributes:
        fields: plain data; {} is the model's own choice.
        plan: under the spec with these fields.
        us: predicted.
    """

    fields: Fields
    plan: KernelPlan
    us: float

    @property
    def name(self) -> str:
        """The fields as JSON, by which a trial is kept."""
        return name_of(self.fields)


def name_of(fields: Fields) -> str:
    """Fields as JSON."""
    return json.dumps(dict(fields), sort_keys=True)


def proposals(
    spec: GemmSpec,
    problem: Problem,
    device: Device,
    most: int,
    first: Iterable[Fields] = (),
    seeds: Iterable[Fields] = (),
) -> list[Proposal]:
    """The model's own choice, `first`, `seeds`, variants of `first`, then the others; `most` of them, no kernel twice.

    The others come by predicted time; after the first few of them, variants of the best two: other ways to load, other
    rasters, stream-K.

    Args:
        spec: what is given; only what it leaves open is tried.
        problem, device: of the plans.
        most: how many at most.
        first: fields to try before the model's order, such as those of an expired entry.
        seeds: fields that were measured well elsewhere; those that do not serve are passed over.

    Raises:
        PlanError: the spec cannot serve the problem.
    """
    own = plan(spec, problem, device)
    found = [Proposal({}, own, predicted_us(own))]
    seen = {_what(own)}
    known = [{**x} for x in first]
    varied = (y for x in known for y in _variants(spec, x, problem, device))
    for fields in itertools.chain(known, seeds, varied, _by_time(spec, problem, device, own)):
        if len(found) >= most:
            break
        made = _planned(spec, fields, problem, device)
        if made is None or _what(made) in seen or not invariance.keeps(own, made):
            continue
        seen.add(_what(made))
        found.append(Proposal(fields, made, predicted_us(made)))
    return found


def explicit(spec: GemmSpec, proposal: Proposal) -> dict[str, Any]:
    """A proposal's fields, so that they name the same kernel under any model: the model's own choice in full.

    Where its fields do not say all of a kernel, they stay {}: whatever the model chooses.
    """
    made = proposal.plan
    if proposal.fields:
        return {**proposal.fields}
    given = spec.given()
    fields: dict[str, Any] = {
        name: list(v) if isinstance(v, tuple) else v
        for name, v in fields_of(made).items()
        if name not in given
    }
    again = _planned(spec, fields, made.problem, made.device)
    return fields if again is not None and _what(again) == _what(made) else {}


def _by_time(spec: GemmSpec, problem: Problem, device: Device, own: KernelPlan) -> Iterator[dict[str, Any]]:
    """Fields of every candidate that serves, best predicted first, and after a few the variants of the best."""
    plain = [
        {name: list(v) if isinstance(v, tuple) else v for name, v in fields}
        for fields in _ranked(spec, problem, device, own.swapped)
    ]
    for place, fields in enumerate(plain):
        if place == PLAIN_FIRST:
            # whose threads load share no operand with other CTAs
            alone = [x for x in plain if x["schedule"] == "cooperative" and x["cluster"] == [1, 1]]
            likely = list(_odd_loads(spec, own, LIKELY_LOADS))
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
    """Fields of the candidates that serve, best predicted first; `swapped` is whether the model's choice is."""
    weighed = list(plan(spec, problem, device).why.weighed)
    if spec.swap == AUTO and min(problem.m, problem.n) <= BOTH_WAYS:
        other = _planned(spec, {"swap": not swapped}, problem, device)
        weighed += [] if other is None else other.why.weighed
    served = sorted((x for x in weighed if x.serves and x.fields), key=lambda x: x.us)
    # a plan that weighed both ways lists both
    found = list(dict.fromkeys(x.fields for x in served))
    first = {_kind(dict(x)): x for x in reversed(found)}
    return sorted(found, key=lambda x: first[_kind(dict(x))] != x)


def _kind(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """What is alike in candidates of which the second teaches little: all but fine steps of the tile and clusters."""
    if fields["schedule"] == "simt":
        return tuple(fields.items())
    m, n, k = fields["tile"]
    rest = (fields.get(x) for x in ("schedule", "swap", "split_reduction", "a_load", "b_load"))
    return (m // WIDTH, n // WIDTH, k, fields.get("split_k", 1) > 1, *rest)


def _variants(
    spec: GemmSpec, fields: dict[str, Any], problem: Problem, device: Device
) -> Iterator[dict[str, Any]]:
    """A candidate's fields with other loads of what TMA cannot address, other rasters and triggers, and as stream-K."""
    made = _planned(spec, fields, problem, device)
    if made is None or not fields or fields.get("schedule") == "simt":
        return
    if fields.get("schedule") == "cooperative":
        yield from (_loaded(fields, x) for x in _odd_loads(spec, made, ODD_LOADS))
    whole = fields.get("schedule") == "cooperative" and fields.get("split_k", 1) == 1
    if whole and spec.tile == AUTO and math.prod(made.tiles) <= SHORT_WAVES * device.sms:
        # 333 x 777 x 555 takes 6.6 us without a producer warp, 8.1 with one (H200)
        alone = {name: fields[name] for name in ("tile", "swap")} | {"schedule": "multistage"}
        yield alone
        yield alone | {"ctas_per_sm": 2}
    if math.prod(made.tiles) > FEW_TILES and fields.get("split_reduction") != "launch":
        # of one wave, too: which SMs share lines of L2 is worth 9 % at 1023 x 1023 x 1023 (H200)
        for axis, group in RASTERS:
            yield fields | {"raster": [axis, group]}
    yield fields | {"trigger": "loads"}
    if fields.get("split_reduction") == "launch" and fields["split_k"] > FEW_PARTS:
        # a part less to add up
        yield fields | {"split_k": fields["split_k"] - 1}
    if whole:
        streamed = {name: v for name, v in fields.items() if name != "split_k"}
        yield streamed | {"scheduler": "stream_k"}


def _loaded(fields: dict[str, Any], loads: dict[str, str]) -> dict[str, Any]:
    """A candidate's fields with other loads, and a tile as deep as suits threads that load (`candidates.deepened`)."""
    m, n, k = fields["tile"]
    if any(x in THREAD_LOADS for x in loads.values()) and m + n <= SHIFTED:
        k = max(k, 2 * BLOCK_K)
    return fields | loads | {"tile": [m, n, k]}


def _shifts(loads: dict[str, str], problem: Problem) -> bool:
    """Whether threads shift the operand of more bytes, and no other: a copy of it would cost most."""
    wide = "a_load" if problem.a.bytes > problem.b.bytes else "b_load"
    return [name for name, x in loads.items() if x == "shift"] == [wide]


def _odd_loads(spec: GemmSpec, made: KernelPlan, ways: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Ways to load operands that TMA does not load as they lie and whose load is open."""
    odd = fields_of(made)
    names = [name for name in ("a_load", "b_load") if getattr(spec, name) == AUTO and name in odd]
    for loads in itertools.product(ways, repeat=len(names)):
        if names:
            yield dict(zip(names, loads, strict=True))


def _planned(spec: GemmSpec, fields: Fields, problem: Problem, device: Device) -> KernelPlan | None:
    """The plan under more fields; None where there is none."""
    try:
        return plan(refined(spec, fields), problem, device)
    except (GemmError, TypeError):
        return None


def _what(made: KernelPlan) -> tuple[Any, ...]:
    """What makes two plans the same to a GPU."""
    configs = tuple(step.config for step in made.steps)
    return configs, made.raster, made.clusters, made.swapped


def under(spec: GemmSpec, proposal: Proposal) -> GemmSpec:
    """The spec that asks for a proposal."""
    return refined(spec, proposal.fields)
