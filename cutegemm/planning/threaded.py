# SPDX-License-Identifier: Apache-2.0
"""What a mainloop stage costs whose operands the producer's threads load: lines that TMA cannot address."""

from __future__ import annotations

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, CLUSTERED, DEEP_SHIFT
from cutegemm.planning.columns import Column, Table
from cutegemm.problems import Problem

# until the first words are shifted, which nothing hides: 18 kernels of whole K take 0.3 to 1.6 us longer than predicted
# without it (449 x 1387 x 33, 55 x 6299 x 203, 1017 x 683 x 17, 1791 x 53 x 121, H200)
FIRST_NS = 700.0


def stage_ns(problem: Problem, device: Device, of: Table) -> Column | None:
    """Nanoseconds of a stage of each candidate for the producer's threads; 0 where TMA loads both operands.

    None where it does for all candidates.
    """
    if not (of.shifts_a.any() or of.shifts_b.any()):
        return None
    deep = np.where(of.depth > BLOCK_K, DEEP_SHIFT, 1.0)
    slower = np.where(of.held > 1, CLUSTERED, 1.0)
    size = max(problem.a.dtype.bytes, problem.b.dtype.bytes)
    found: Column = (
        slower * (of.m * of.shifts_a + of.n * of.shifts_b) * of.depth * size / (deep * device.time.shift)
    )
    return found
