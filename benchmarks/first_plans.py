# SPDX-License-Identifier: Apache-2.0
"""Microseconds of the first plans of some shapes on a quiet machine: `python -m benchmarks.first_plans`.

The tests count the function calls of the same plans instead (`tests/planning/test_why.py`).
"""

from __future__ import annotations

import json
import time

from cutegemm import GemmSpec, problem
from cutegemm.planning import planner
from cutegemm.planning.planner import plan

# what takes a plan longest: parts of K, operands that threads load, both ways round weighed with parts of K
SHAPES = {
    "square": (4096, 4096, 4096),
    "few rows": (16, 4096, 4096),
    "parts of K": (128, 128, 16384),
    "odd": (1023, 1023, 1023),
    "few odd rows": (19, 1029, 7109),
    "both ways": (216, 248, 2848),
    "both ways, few columns": (2088, 24, 7712),
    "both ways, a small D": (56, 8, 9832),
}
MOST = 2.5e-3  # seconds that one may take where nothing else runs


def seconds(shape: tuple[int, int, int]) -> float:
    """The best of 60 problems that were never planned, or of as many as four seconds allow where others keep the
    machine busy."""
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
