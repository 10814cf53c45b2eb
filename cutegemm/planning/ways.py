# SPDX-License-Identifier: Apache-2.0
"""Which way round a product is planned where no rule of few rows speaks: as given, or swapped as predicted faster.

A tile's rows come in steps of 64 and its columns in steps of 8 to 32, so that a short side of D is padded less along
columns: 184 rows are 256 in tiles of 128 and 192 columns in two of 96. Where tiles are few and long both ways differ
by what is left over in their last wave, too; elsewhere neither way differs.
"""

from __future__ import annotations

import math

from cutegemm.arch.device import Device
from cutegemm.planning import edges, swap
from cutegemm.planning.choose import Chosen
from cutegemm.planning.given import SHAPING, WALKING, gives
from cutegemm.planning.model import predicted_ns
from cutegemm.planning.request import Request

# D's shorter side up to which both ways are weighed
SHORT_SIDE = 256
# times faster that the other way must be predicted: what is measured of tiles that are predicted alike spreads as much
# (sampled shapes, H200)
CLEARLY = 1.05
# times D's elements that tiles of a plan must have, for another way to pad less: weighing it takes as long again
PADDED = 1.1
# share of the SMs' time below which another way may leave less idle: 14344 x 504 x 27288 takes 702 us in 128 x 256,
# 608 swapped in 128 x 224; 320 x 744 x 28704 35.7 in 64 x 192, 32.0 swapped in 128 x 160 (H200)
FULL = 0.93


def open_to(asked: Request, made: Chosen) -> bool:
    """Whether both ways are worth weighing: nothing given, TMA loads both operands, tiles padded or SMs idle.

    Few rows have rules of their own (`swap.wanted`, `narrow`).
    """
    spec, problem = asked.spec, asked.problem
    few = problem.m <= swap.MOST_ROWS and problem.m < problem.n
    if few or asked.epilogue.gated:
        return False
    if spec.batch_invariant is True or gives(spec, "swap", *SHAPING, *WALKING):
        return False
    if problem.a.tma_reason() is not None or problem.b.tma_reason() is not None:
        return False
    elements, size = problem.m * problem.n * problem.batch, math.prod(made.config.tile[:2])
    if min(problem.m, problem.n) <= SHORT_SIDE and math.prod(made.grid.tiles) * size > PADDED * elements:
        return True
    slots = math.ceil(made.grid.waves) * asked.device.sms * size
    return edges.uneven(problem, asked.device) and elements * made.config.splits < FULL * slots


def clearly(other: Chosen, made: Chosen, device: Device) -> bool:
    """Whether a choice is predicted faster than another by more than predictions of likes differ."""
    return _ns(other, device) * CLEARLY < _ns(made, device)


def _ns(x: Chosen, device: Device) -> float:
    """Nanoseconds that the model predicts, if it was not the order that made the choice."""
    return predicted_ns(x.setting.seen, device, x.ranked.candidate) if x.ranked.ns is None else x.ranked.ns
