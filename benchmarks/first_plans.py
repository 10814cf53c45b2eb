# SPDX-License-Identifier: Apache-2.0
"""Microseconds of the first plan of some shapes on an idle machine: `python -m benchmarks.first_plans`.

The tests count the function calls of the same plans instead (`tests/planning/test_why.py`).
"""

from __future__ import annotations

import json
import time

from cutegemm import GemmSpec, problem
from cutegemm.planning import planner
from cutegemm.planning.planner import plan

# the slowest plans: split-K, operands loaded by threads, swapped and unswapped operands with split-K
SHAPES = {
    "square": (4096, 4096, 4096),
    "few rows": (16, 4096, 4096),
    "split-K": (128, 128, 16384),
    "odd": (1023, 1023, 1023),
    "few odd rows": (19, 1029, 7109),
    "swapped or not": (216, 248, 2848),
    "swapped or not, few columns": (2088, 24, 7712),
    "swapped or not, small D": (56, 8, 9832),
}
MOST = 2.5e-3  # seconds that a plan may take on an idle machine


def seconds(shape: tuple[int, int, int]) -> float:
    """The least time of 60 unplanned problems, repeated for up to four seconds on a busy machine."""
    m, n, k = shape
    plan(GemmSpec(), problem(*shape))
    found: list[float] = []
    deadline = time.monotonic() + 4
    while not found or (min(found) > MOST and time.monotonic() < deadline):
        planner._planned.cache_clear()
        for more in range(1, 61):
            of = problem(m, n, k + 8 * more)
            start = time.process_time()
            plan(GemmSpec(), of)
            found.append(time.process_time() - start)
    return min(found)


if __name__ == "__main__":
    print(json.dumps({name: round(seconds(shape) * 1e6, 1) for name, shape in SHAPES.items()}))
