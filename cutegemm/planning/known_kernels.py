# SPDX-License-Identifier: Apache-2.0
"""What single kernels take over what the rates of the cost model say, as a GPU's record has it.

Code of one tile schedules its instructions, banks and registers better than that of another, which no rate counts.
`benchmarks.fit_cost` takes the mean error of each kernel over the training problems that it was measured on, shrunk
towards none where these are few. A kernel that nobody measured takes what the rates say.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import TENSOR_CORE_SCHEDULES, Candidate
from cutegemm.planning.cost import REDUCTIONS, Column, Counts, Rows

# bytes of an element of the operands whose kernels are known
BYTES = 2
# beyond any value of a kernel's number
RADIX = 1024.0


class Known(NamedTuple):
    """Kernels as ascending numbers, and what each takes over what is predicted; the last is no kernel."""

    numbers: Column
    factors: Column


def name(x: Candidate) -> str:
    """A candidate's kernel: all but how many splits there are."""
    (m, n, k), (across, along) = x.tile, x.cluster
    return f"{m}x{n}x{k} {across}x{along} {x.schedule} {x.consumers} {x.reduction}"


@functools.lru_cache(8)
def known(device: Device) -> Known:
    """The kernels of a GPU's record."""
    found = [(np.inf, 1.0)]
    for kernel, factor in device.kernels.items():
        tile, cluster, schedule, consumers, reduction = kernel.split()
        extents = [int(x) for x in (*tile.split("x"), *cluster.split("x"))]
        codes = TENSOR_CORE_SCHEDULES.index(schedule), int(consumers), REDUCTIONS.index(reduction)
        columns = np.array([*extents, *codes], dtype=np.float64)[:, None]
        found.append((float(_numbers(*columns)[0]), factor))
    return Known(*np.array(sorted(found)).T)


def _numbers(
    m: Column, n: Column, k: Column, across: Column, along: Column, schedule: Column, consumers: Column,
    reduction: Column,
) -> Column:  # fmt: skip
    """One exact number of each kernel."""
    how = ((across * 16 + along) * 4 + schedule) * 8 + consumers
    return ((m * RADIX + n) * RADIX + k) * 2.0**16 + how * 8 + reduction


def factors(device: Device, of: Rows, counts: Counts) -> Column:
    """What each config takes over what is predicted; one where threads load, whose kernels are others."""
    numbers, each = known(device)
    wanted = _numbers(of.m, of.n, of.k, of.across, of.along, of.schedule, of.consumers, of.reduction)
    places = np.searchsorted(numbers, wanted)
    found: Column = np.where((numbers[places] == wanted) & (counts.loaded == 0), each[places], 1.0)
    return found
