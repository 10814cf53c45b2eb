# SPDX-License-Identifier: Apache-2.0
"""What a mainloop stage costs whose operands the producer's threads load: lines that TMA cannot address."""

from __future__ import annotations

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, CLUSTERED, DEEP_SHIFT
from cutegemm.planning.columns import Column, Table
from cutegemm.problems import Problem


def stage_ns(problem: Problem, device: Device, of: Table) -> Column | None:
    """Nanoseconds of a stage of each candidate for the producer's threads; None where TMA loads both operands."""
    a, b = (x.tma_reason() is not None for x in (problem.a, problem.b))
    if not (a or b):
        return None
    deep = np.where(of.depth > BLOCK_K, DEEP_SHIFT, 1.0)
    slower = np.where(of.held > 1, CLUSTERED, 1.0)
    size = max(problem.a.dtype.bytes, problem.b.dtype.bytes)
    found: Column = slower * (of.m * a + of.n * b) * of.depth * size / (deep * device.time.shift)
    return found
