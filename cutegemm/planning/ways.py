# SPDX-License-Identifier: Apache-2.0
"""Which way round a product is planned where no rule of few rows speaks: as given, or swapped as predicted faster.

A tile's rows come in steps of 64 and its columns in steps of 8 to 32, so that a short side of D is padded less along
columns: 184 rows are 256 in tiles of 128 and 192 columns in two of 96. Where both sides are long neither way differs.
"""

from __future__ import annotations

import math

from cutegemm.arch.device import Device
from cutegemm.planning import swap
from cutegemm.planning.choose import Chosen
from cutegemm.planning.model import predicted_ns
from cutegemm.planning.request import Request
from cutegemm.spec import AUTO

# D's shorter side up to which both ways are weighed
SHORT_SIDE = 256
# times faster that the other way must be predicted: what is measured of tiles that are predicted alike spreads as much
# (sampled shapes, H200)
CLEARLY = 1.05
# times D's elements that tiles of a plan must have, for another way to pad less: weighing it takes as long again
PADDED = 1.1
# fields that say how the planner should cut D, or whose meaning depends on the way round
OTHERS = ("scheduler", "sms", "ctas_per_sm", "batch_invariant")


def open_to(asked: Request, made: Chosen) -> bool:
    """Whether both ways are worth weighing: nothing given, TMA loads both operands, one side short, tiles padded.

    Few rows have rules of their own (`swap.wanted`, `narrow`).
    """
    spec, problem = asked.spec, asked.problem
    few = problem.m <= swap.MOST_ROWS and problem.m < problem.n
    if few or min(problem.m, problem.n) > SHORT_SIDE or asked.epilogue.gated:
        return False
    if any(getattr(spec, name) != AUTO for name in ("swap", *swap.SHAPING, *OTHERS)):
        return False
    if problem.a.tma_reason() is not None or problem.b.tma_reason() is not None:
        return False
    m, n, _ = made.config.tile
    return math.prod(made.grid.tiles) * m * n > PADDED * problem.m * problem.n * problem.batch


def clearly(other: Chosen, made: Chosen, device: Device) -> bool:
    """Whether a choice is predicted faster than another by more than predictions of likes differ."""
    return _ns(other, device) * CLEARLY < _ns(made, device)


def _ns(x: Chosen, device: Device) -> float:
    """Nanoseconds that the model predicts, if it was not the order that made the choice."""
    return predicted_ns(x.setting.problem, device, x.ranked.candidate) if x.ranked.ns is None else x.ranked.ns
