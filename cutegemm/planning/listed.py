# SPDX-License-Identifier: Apache-2.0
"""The candidates that are weighed for a product, from what `candidates` makes of a few facts of it."""

from __future__ import annotations

import functools

from cutegemm.arch.device import Device
from cutegemm.planning import candidates, cuts, edges, spread
from cutegemm.planning.candidates import Candidate
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec


# a plan may ask twice: which operands are copied (`whole`), then what it chooses among
@functools.lru_cache(8)
def listed(
    spec: GemmSpec, problem: Problem, device: Device, gates: int, gathers: bool
) -> tuple[Candidate, ...]:
    """The candidates for a spec that leaves its tile open.

    Args:
        gates: accumulator columns per output column.
        gathers: whether the producer's threads load an operand.
    """
    deep = cuts.deep(problem, device)
    found = candidates.preferred(
        spec,
        device.limits,
        gates=gates,
        n_major=problem.b.unit_col,
        gathers=gathers,
        splits=cuts.splits_for(spec, problem, device, gathers),
        short=candidates.short(problem, device),
        uneven=edges.uneven(problem, device),
        shared=not deep and edges.shared(problem, device),
        vast=edges.vast(problem, device),
    )
    if gathers:
        found = candidates.deepened(found, problem.k)
    return found + tuple(spread.spread(spec, problem, device, found, gathers=gathers, fits=gates == 1))
