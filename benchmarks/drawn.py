# SPDX-License-Identifier: Apache-2.0
"""Random problems: extents drawn log-uniformly from fixed seeds. All are training data.

Two seeds used to judge the cost model, until planner rules were made for their problems. `fresh_draws` replaced them.
"""

from __future__ import annotations

import math
import random

Shape = tuple[int, int, int]  # M, N, K

COUNT = 40
ROWS = (8, 16_384)  # bounds of M and of N
DEPTH = (16, 32_768)  # bounds of K
STEP = 8  # extents are odd or multiples of this
LEAST_FLOPS = 10_000_000
MOST_BYTES = 4 << 30  # of A, B and D together, 2 bytes an element
EVEN_SEED, ODD_SEED, SAMPLED_SEED = 20_261_122, 20_261_123, 20_261_124


def shapes(seed: int, odd: bool, count: int = COUNT) -> list[Shape]:
    """Random shapes, without those that are too small or too large.

    `random.Random.random` gives the same numbers in every version of Python.

    Args:
        seed: of the random numbers.
        odd: whether every extent is odd; otherwise all are multiples of `STEP`.
        count: number of shapes.
    """
    draw = random.Random(seed)

    def extent(low: int, high: int) -> int:
        value = math.exp(math.log(low) + draw.random() * (math.log(high) - math.log(low)))
        if odd:
            return min(high - 1, int(value) | 1)
        return max(low, min(high, STEP * round(value / STEP)))

    found: list[Shape] = []
    while len(found) < count:
        m, n, k = extent(*ROWS), extent(*ROWS), extent(*DEPTH)
        large = 2 * (m * k + k * n + m * n) > MOST_BYTES
        if 2 * m * n * k >= LEAST_FLOPS and not large and (m, n, k) not in found:
            found.append((m, n, k))
    return found
