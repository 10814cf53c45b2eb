# SPDX-License-Identifier: Apache-2.0
"""Which odd operands are copied first: whole plans beside one another, the copies' launch and time included.

A copy is one launch and two passes over an operand, but TMA then brings it, in clusters too. What threads load costs
every stage of every tile, which other tiles and more parts of K make up for: so each way has candidates of its own.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from cutegemm.planning import cuts
from cutegemm.planning.given import LOADING, gives
from cutegemm.planning.listed import listed
from cutegemm.planning.model import copies_ns
from cutegemm.planning.request import Request
from cutegemm.problems import Problem

# times faster that threads must be predicted than copies of all: of 246 plans of odd products the median is 7 % off
# what was measured (H200)
CLEARLY = 1.05


def open_to(asked: Request, problem: Problem, odd: Sequence[str]) -> bool:
    """Whether a request leaves open all that a way to load its odd operands would ask for, and has few tiles.

    Of several waves no law tells how much of what threads load a tile's epilogue hides: 333 x 50257 x 1023 takes 132 us
    with A copied in 128 x 192 and 130 in 192 x 128, a third less predicted for it (H200). Of few rows and deep K the
    parts decide, which the short rule reckons with (`model.cheapest_loads`).
    """
    spec = asked.spec
    if min(problem.m, problem.n) <= cuts.FEW and cuts.deep(problem, asked.device):
        return False
    if asked.epilogue.gated or spec.batch_invariant is True or not cuts.few(problem, asked.device, 0):
        return False
    if gives(spec, *LOADING):
        return False
    return all(x.unit_row or x.unit_col for x in (getattr(problem, name) for name in odd))


def cheapest(asked: Request, problem: Problem, odd: Sequence[str]) -> dict[str, str]:
    """How to load the operands that TMA cannot address, of the fastest whole plan.

    Args:
        odd: those operands, "a", "b" or both.
    """
    # imports NumPy
    import numpy as np

    from cutegemm.planning.times import Table, estimates

    device, spec = asked.device, asked.spec
    copied, loaded = (listed(spec, problem, device, 1, x) for x in (False, True))
    ways = [dict(zip(odd, x, strict=True)) for x in itertools.product(("relayout", "shift"), repeat=len(odd))]
    # the first way copies all; each of the others has all candidates whose threads load
    places = list(range(len(copied)))
    for _ in ways[1:]:
        places += range(len(copied), len(copied) + len(loaded))
    sizes = [len(copied), *(len(loaded) for _ in ways[1:])]
    shifts = [[way.get(name) == "shift" for way in ways] for name in "ab"]
    a, b = (np.repeat(np.array(x, dtype=np.float64), sizes) for x in shifts)
    of = Table.of(problem, device, copied + loaded).loaded(places, a, b)
    times = estimates(problem, device, of)
    times += np.repeat([copies_ns(problem, way, device) for way in ways], sizes)
    times[len(copied) :] *= CLEARLY
    ends = list(itertools.accumulate(sizes))
    return ways[bisect.bisect_right(ends, int(times.argmin()))]
