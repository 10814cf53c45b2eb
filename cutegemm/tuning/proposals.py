# SPDX-License-Identifier: Apache-2.0
"""What is worth measuring for a problem: the candidates that serve, best predicted first, no kernel and walk twice."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.arch.device import Device
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.planning.planner import KernelPlan, plan
from cutegemm.planning.why import predicted_us
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec

Fields = Mapping[str, Any]
# rows of D up to which operands are tried both ways
BOTH_WAYS = 256
# walks over the tiles that are tried for the candidates predicted best, and for how many of them
RASTERS = (("m", 4), ("m", 16), ("n", 8))
WALKED = 2


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
    spec: GemmSpec, problem: Problem, device: Device, most: int, first: Iterable[Fields] = ()
) -> list[Proposal]:
    """The model's own choice, then `first`, then the others by predicted time; `most` of them, no kernel twice.

    Args:
        spec: what is given; only what it leaves open is tried.
        problem, device: of the plans.
        most: how many at most.
        first: fields to try before the model's order, such as those of an expired entry.

    Raises:
        PlanError: the spec cannot serve the problem.
    """
    own = plan(spec, problem, device)
    found = [Proposal({}, own, predicted_us(own))]
    seen = {_what(own)}
    for fields in (*({**x} for x in first), *_by_time(spec, problem, device, own)):
        if len(found) >= most:
            break
        made = _planned(spec, fields, problem, device)
        if made is None or _what(made) in seen:
            continue
        seen.add(_what(made))
        found.append(Proposal(fields, made, predicted_us(made)))
    return found


def _by_time(spec: GemmSpec, problem: Problem, device: Device, own: KernelPlan) -> Iterator[dict[str, Any]]:
    """Fields of every candidate that serves, best predicted first, and the other walks of the best."""
    weighed = list(own.why.weighed)
    if spec.swap == AUTO and min(problem.m, problem.n) <= BOTH_WAYS:
        other = _planned(spec, {"swap": not own.swapped}, problem, device)
        weighed += [] if other is None else other.why.weighed
    for place, x in enumerate(sorted((x for x in weighed if x.serves), key=lambda x: x.us)):
        fields = {name: list(v) if isinstance(v, tuple) else v for name, v in x.fields}
        if fields:
            yield fields
        if fields and place < WALKED:
            for axis, group in RASTERS:
                yield fields | {"raster": [axis, group]}
            if fields["schedule"] == "cooperative" and fields["split_k"] == 1:
                streamed = {name: v for name, v in fields.items() if name != "split_k"}
                yield streamed | {"scheduler": "stream_k"}


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
    return dataclasses.replace(refined(spec, proposal.fields))
