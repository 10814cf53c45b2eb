# SPDX-License-Identifier: Apache-2.0
"""`Request`: what every family's planner is handed, once spec and problem are known to agree."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.families import Family, of_schedule
from cutegemm.planning import checks
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec

# what a spec that leaves its epilogue open means, by whether the problem has a C
PLAIN = {with_c: linear_combination(with_c) for with_c in (False, True)}


@dataclass(frozen=True, kw_only=True)
class Request:
    """A spec for a problem on a device.

    Attributes:
        spec, problem, device: as asked.
        epilogue: the spec's, or the plain one where the spec leaves it open.
        reasons: what is known already, one line each.
        pinned: columns and depth that every tile must have (`invariance`); None where any will do.
    """

    spec: GemmSpec
    problem: Problem
    epilogue: Graph
    device: Device
    reasons: tuple[str, ...] = ()
    pinned: tuple[int | None, int | None] = (None, None)


def requested(spec: GemmSpec, problem: Problem, device: Device) -> tuple[Request, Family]:
    """The request that a spec and a problem make, and the family of kernels that serves it.

    Raises:
        PlanError: they do not agree.
    """
    epilogue = spec.epilogue if isinstance(spec.epilogue, Graph) else PLAIN[problem.c is not None]
    checks.check_epilogue(epilogue, problem)
    cuda_cores = checks.cuda_cores_reason(spec, problem)
    reasons = tuple(x for x in (device.note, cuda_cores) if x)
    asked = Request(spec=spec, problem=problem, epilogue=epilogue, device=device, reasons=reasons)
    return asked, of_schedule(spec.schedule if cuda_cores is None else "simt")
