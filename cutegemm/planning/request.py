# SPDX-License-Identifier: Apache-2.0
"""`Request`: what every family's planner is handed, once spec and problem are known to agree."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.device import Device
from cutegemm.epilogue.graph import Graph
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec


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
