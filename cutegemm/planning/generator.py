# SPDX-License-Identifier: Apache-2.0
"""Every config that a class of problems allows, as arrays. NumPy is imported with it, not with the package.

A table follows from few facts (`Kind`) and is made once. Splits of K depend on the problem and are added for one whose
tiles are too few for the SMs. What a config implies (stages, stores, raster) is worked out for the few that are
predicted fastest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cutegemm.arch.device import Device
from cutegemm.arch.limits import Limits
from cutegemm.config import SECTOR, WIDEST_OF_FOUR
from cutegemm.families import of_schedule
from cutegemm.families.family import PLAIN_CONSUMERS
from cutegemm.planning.candidates import TENSOR_CORE_SCHEDULES as SCHEDULES
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.cost import (
    BY_LAUNCH,
    COOPERATIVE,
    IN_CLUSTER,
    MULTISTAGE,
    PINGPONG,
    Column,
    Rows,
)
from cutegemm.planning.epilogue import STAGING_BYTES
from cutegemm.problems import Problem
from cutegemm.spec import MAX_SPLITS, TILE_N_STEP

REDUCTIONS = ("none", "cluster", "launch")
# CTAs along M and N that share operands
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
# schedule, consumers and rows: whole instructions of each warpgroup
TEAMS = (
    (COOPERATIVE, 1, 64),
    (COOPERATIVE, 1, 128),
    (COOPERATIVE, 2, 128),
    (COOPERATIVE, 2, 256),
    (COOPERATIVE, 3, 192),
    (PINGPONG, 2, 64),
    (PINGPONG, 2, 128),
    (MULTISTAGE, 1, 64),
    (MULTISTAGE, 2, 128),
)
# elements along K of a stage, and rows and columns together up to which it may be the deeper one: a ring of larger
# stages has too few of them
DEPTHS = (64, 128)
DEEP_EDGES = 192
# stages with which loads overlap the mainloop
LEAST_STAGES = 3
# k tiles of a split, and splits that a cluster adds up
LEAST_STEPS = 3
HELD = (4, 8)
# waves of tiles from which on K is not split, and waves that splits may fill
SPLIT_WAVES = 1.5
FILLED_WAVES = (1, 2)
# columns from which on those of a tile of row-major D or of a row-major B are whole pieces of a swizzle
NARROW_COLUMNS = 64


# place of the columns that splits change
SPLITS = Rows._fields.index("splits")


class Kind(NamedTuple):
    """What a table follows from.

    Attributes:
        limits: of the architecture.
        plain: whether the epilogue leaves registers free (`config.registers.plain`).
        a_k, b_k: whether A and B are contiguous along K; d_row: whether D is along its rows.
        gates, halves: columns and rows of accumulators per output column and row.
        bytes: of an operand's element.
    """

    limits: Limits
    plain: bool
    a_k: bool
    b_k: bool
    d_row: bool
    gates: int = 1
    halves: int = 1
    bytes: int = 2


@functools.lru_cache(64)
def table(kind: Kind) -> Rows:
    """All configs without splits of K."""
    widths = range(TILE_N_STEP, kind.limits.mma_max_n + 1, TILE_N_STEP)
    flat = (
        (m, n, k, across, along, schedule, consumers)
        for (schedule, consumers, m), n, k, (across, along) in itertools.product(
            TEAMS, widths, DEPTHS, CLUSTERS
        )
    )
    columns = np.array(list(flat), dtype=np.float64).T
    columns = columns[:, _fits(kind, *columns)]
    one = np.ones(columns.shape[1])
    m, n, k, across, along, schedule, consumers = columns
    return Rows(m, n, k, across, along, schedule, consumers, one, one, np.zeros_like(one))


def _fits(
    kind: Kind,
    m: Column,
    n: Column,
    k: Column,
    across: Column,
    along: Column,
    schedule: Column,
    consumers: Column,
) -> Column:
    """Which configs registers, shared memory, swizzles and multicast allow."""
    limits, pingpong = kind.limits, schedule == PINGPONG
    team = np.where(pingpong, 1, consumers)
    most = np.zeros_like(m)
    for code, count in {(x, y) for x, y, _ in TEAMS}:
        most = np.where((schedule == code) & (consumers == count), _most(kind, code, count), most)
    fits = m * n / (team * limits.warpgroup) <= most
    fits &= (consumers < 3) | (n <= WIDEST_OF_FOUR) | (n == limits.mma_max_n)
    fits &= LEAST_STAGES * (m + n) * k * kind.bytes + consumers * STAGING_BYTES <= limits.smem_bytes
    fits &= (k == DEPTHS[0]) | ((m + n <= DEEP_EDGES) & ~pingpong)
    fits &= (m % (limits.mma_m * team * kind.halves) == 0) & (n % (TILE_N_STEP * kind.gates) == 0)
    rows, cols = m / kind.halves, n / kind.gates
    # whole groups of eight rows for each CTA that shares a multicast
    fits &= (rows if kind.a_k else k) % (8 * along) == 0
    fits &= (cols if kind.b_k else k) % (8 * across) == 0
    fits &= (across * along == 1) | (schedule != MULTISTAGE)
    if not kind.b_k:
        fits &= (cols % 16 == 0) & ((cols % 32 == 0) | (cols < NARROW_COLUMNS))
    if kind.d_row:
        fits &= (cols * 2 % SECTOR == 0) | (cols <= NARROW_COLUMNS)
    found: Column = fits
    return found


def _most(kind: Kind, schedule: float, consumers: int) -> int:
    """Accumulators that a thread holds at most."""
    roles = of_schedule(SCHEDULES[int(schedule)]).roles
    most = roles.turns[False] if schedule == PINGPONG else roles.most(consumers, laden=False)
    if consumers == PLAIN_CONSUMERS and kind.plain:
        return max(most, roles.plain_accumulators)
    return most


def split(problem: Problem, device: Device, of: Rows) -> Rows:
    """The configs, and those of few tiles with K split so that clusters or the next launch add up the sums."""
    planes = np.ceil(problem.m / (of.m * of.across)) * np.ceil(problem.n / (of.n * of.along)) * problem.batch
    resident = device.sms // (of.across * of.along)
    steps = np.ceil(problem.k / of.k)
    # sums of K are added by the consumers of a cooperative kernel
    few = (of.schedule == COOPERATIVE) & (planes < SPLIT_WAVES * resident) & (steps >= 2 * LEAST_STEPS)
    # what splits fill needs no clusters of four in a row and no fine steps of wide columns
    few &= (np.maximum(of.across, of.along) <= 2) & ((of.n % 16 == 0) | (of.n <= NARROW_COLUMNS))
    if not few.any():
        return of
    flat = np.array(of)[:, few]
    base = Rows(*flat)
    planes, resident, steps = planes[few], resident[few], steps[few]
    size = base.across * base.along
    # what a CTA receives of the others' sums lies beside its ring
    sums = 4 * base.m * base.n + LEAST_STAGES * (base.m + base.n) * base.k * problem.a.dtype.bytes
    added = (sums <= device.limits.smem_bytes) & (planes * size * HELD[0] <= device.sms)
    found = [np.array(of)]
    for held in HELD if added.any() else ():
        most = np.minimum(device.limits.max_cluster, device.sms / planes)
        fits = added & (size * held <= most) & (steps >= LEAST_STEPS * held)
        found.append(_with(flat, fits, np.full_like(steps, held), held, IN_CLUSTER))
    seen = np.ones_like(steps)
    for waves in FILLED_WAVES:
        most = np.minimum(np.minimum(waves * resident // planes, steps // LEAST_STEPS), MAX_SPLITS)
        parts = np.ceil(steps / np.ceil(steps / np.maximum(most, 1)))
        found.append(_with(flat, parts != seen, parts, 1, BY_LAUNCH))
        seen = parts
    return Rows(*np.concatenate(found, axis=1))


def _with(flat: Column, fits: Column, parts: Column, held: int, reduction: int) -> Column:
    """Some configs, as columns one above the other, with splits."""
    some = flat[:, fits]
    some[SPLITS], some[SPLITS + 1], some[SPLITS + 2] = parts[fits], held, reduction
    return some


def candidate(of: Rows, place: int) -> Candidate:
    """One of the rows as a candidate."""
    m, n, k, across, along, schedule, consumers, splits, held, reduction = (int(x[place]) for x in of)
    how = SCHEDULES[schedule], consumers, splits, held, REDUCTIONS[reduction]
    return Candidate((m, n, k), (across, along), *how)


def rows(candidates: Sequence[Candidate]) -> Rows:
    """Candidates as columns."""
    flat = [
        (
            *x.tile,
            *x.cluster,
            SCHEDULES.index(x.schedule),
            x.consumers,
            x.splits,
            x.depth,
            REDUCTIONS.index(x.reduction),
        )
        for x in candidates
    ]
    return Rows(*np.array(flat, dtype=np.float64).T)
