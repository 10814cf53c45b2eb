# SPDX-License-Identifier: Apache-2.0
"""Measured time over predicted time of single kernels, from a GPU's record: of 16-bit operands and of fp8 operands.

Kernels differ in how well ptxas schedules instructions, banks and registers, which no rate counts.
`benchmarks.fit_cost` takes each kernel's mean error over the training problems on which it was measured, shrunk towards
1 if these are few. Kernels that were not measured have the factor 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.config.numbers import Number
from cutegemm.planning.candidates import TENSOR_CORE_SCHEDULES, Candidate
from cutegemm.planning.cost import REDUCTIONS, Column, Counts, Rows
from cutegemm.planning.seen import FEW_STAGES

# of 16 bits; of 8 with scales of blocks; with scales of blocks that a thread reads for each column; of 8, promoted; of
# 8, whose sums the tensor cores keep; of 8, promoted, whose epilogue reads a number for each row or column; of 16, with
# more than `FEW_STAGES`
KINDS = ("plain", "scaled", "scaled_columns", "promoted", "whole", "promoted_vectors", "deep")
PLAIN, SCALED, COLUMNS, PROMOTED, WHOLE_SUMS, VECTORS, DEEP = range(7)
# the index of any other kernel, which no record has
OTHER = len(KINDS)
# whose factor a kernel has that was not measured (`factor_of`)
PLAINER = np.array([PLAIN, SCALED, COLUMNS, PROMOTED, WHOLE_SUMS, PROMOTED, PLAIN, OTHER])
# above any extent of a tile, and above any number of a kernel of the first kind
RADIX = 1024.0
KIND_STEP = RADIX**3 * 2.0**16


class Known(NamedTuple):
    """Kernels as ascending numbers, and measured over predicted time of each; the last entry is a sentinel."""

    numbers: Column
    factors: Column


def name(x: Candidate, kind: str = KINDS[0]) -> str:
    """The name of a candidate's kernel of a kind: everything but the number of splits."""
    (m, n, k), (across, along) = x.tile, x.cluster
    return f"{kind} {m}x{n}x{k} {across}x{along} {x.schedule} {x.consumers} {x.reduction}"


def factor_of(kernel: str, factors: Mapping[str, float]) -> float:
    """The factor of a kernel by name; one that was not measured has that of the same without vectors or many stages."""
    plainer = kernel.replace(KINDS[VECTORS], KINDS[PROMOTED]).replace(KINDS[DEEP], KINDS[PLAIN])
    return factors.get(kernel, factors.get(plainer, 1.0))


@functools.lru_cache(8)
def known(device: Device) -> Known:
    """The kernels of a GPU's record."""
    found = [(np.inf, 1.0), *((_number(kernel), factor) for kernel, factor in device.kernels.items())]
    return Known(*np.array(sorted(found)).T)


@functools.cache
def _number(kernel: str) -> float:
    """The number of a kernel's name; a fit makes many devices of the same kernels."""
    kind, tile, cluster, schedule, consumers, reduction = kernel.split()
    extents = (int(x) for x in (*tile.split("x"), *cluster.split("x")))
    codes = TENSOR_CORE_SCHEDULES.index(schedule), int(consumers), REDUCTIONS.index(reduction)
    return float(_numbers(KINDS.index(kind), *extents, *codes))


def _numbers(kind: Number, m: Number, n: Number, k: Number, *rest: Number) -> Number:
    """A unique number for each kernel, from numbers or from columns of them."""
    across, along, schedule, consumers, reduction = rest
    how = ((across * 16 + along) * 4 + schedule) * 8 + consumers
    return kind * KIND_STEP + ((m * RADIX + n) * RADIX + k) * 2.0**16 + how * 8 + reduction


def kinds(counts: Counts) -> Column:
    """Which of `KINDS` each config's kernel is, by index."""
    promoted = counts.promoted > 0
    plain = PLAIN + (DEEP - PLAIN) * (counts.ring > FEW_STAGES)
    plain = np.where((counts.size == 2) & ~promoted, plain, OTHER)
    summed = PROMOTED + (VECTORS - PROMOTED) * (counts.vectors > 0)
    eight = np.where(counts.size == 1, np.where(promoted, summed, WHOLE_SUMS), plain)
    return np.where(counts.scaled > 0, np.where(counts.read > 0, COLUMNS, SCALED), eight)


def factors(device: Device, of: Rows, counts: Counts) -> Column:
    """Measured over predicted time of each config (`factor_of`); 1 if threads load, since those kernels differ."""
    numbers, each = known(device)
    tiles = of.m, of.n, of.k, of.across, of.along, of.schedule, of.consumers, of.reduction
    kernels, found, which = _numbers(PLAIN, *tiles), np.ones_like(of.m), kinds(counts)
    plainer = PLAINER[which]
    for kind, some in ((plainer, slice(None)), (which, which != plainer)):
        wanted = kind[some] * KIND_STEP + kernels[some]
        places = np.searchsorted(numbers, wanted)
        found[some] = np.where(numbers[places] == wanted, each[places], found[some])
    return np.where(counts.loaded == 0, found, 1.0)
