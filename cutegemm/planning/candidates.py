# SPDX-License-Identifier: Apache-2.0
"""Candidates: what a tensor-core kernel can be, before anyone says which is best.

A `Candidate` is all that is chosen together; everything else of a kernel follows from it. `preferred` are those
worth ordering by time; `kinds` and `shapes` are all that could serve a spec, where none of the preferred does.
An `Order` (a model, a tuner, a database of measurements) puts candidates in the order in which they are tried.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from cutegemm.arch.device import Device
from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.planning import edges
from cutegemm.planning.cuts import given_splits, tiles_of
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, PINGPONG_CONSUMERS, TILE_N_STEP, GemmSpec, Tile

# elements: 128 bytes, one row of the 128-byte swizzle
BLOCK_K = 64
WIDTHS = (256, 224, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16)
# rows and cluster of tiles that consumers share
SHARED_SHAPES = ((128, (2, 1)), (128, (1, 1)), (256, (2, 1)), (256, (1, 1)), (64, (1, 1)), (64, (2, 1)))
SHARED_ELEMENTS = edges.LARGEST
# tiles of consumers that take turns
TURN_TILES = tuple((128, n) for n in (192, 176, 160, 144, 128, 96, 64)) + ((64, 128),)
TURN_CLUSTER = (2, 1)
# tiles of kernels without warp specialisation, beside the others
MULTISTAGE_TILES = ((64, 128),)
# the same of K so short that their ring holds most of it: loads are issued before the first product, and a producer
# warp would only be waited for (816 x 336 x 56 takes 2.35 us in 64 x 64 without one, 2.43 with; 333 x 777 x 555 5.9 and
# 7.2, but 16 x 2008 x 1368 5.9 and 4.6: H200)
SHORT_TILES = ((64, 64), (64, 32))
SHORT_K = 640

# rows and columns together up to which tiles that threads load are twice as deep (`deepened`): at 61 x 3537 x 12459
# 64 x 64 x 128 takes 61 us in two parts, 64 x 64 x 64 93 in eight; 451 x 65 x 3991 7.3 in 64 x 72 x 128, 8.4 so (H200)
SHIFTED = 136
# times faster that threads shift stages of twice the depth, each of which costs its barriers: 64 x 40 x 128 takes
# 23 us at 8191 x 33 x 2047 and 64 deep 31, 8 x 64 x 128 takes 16 us at 1 x 4097 x 4095 and 64 deep 20 (H200)
DEEP_SHIFT = 1.25
# times longer that they take where clusters add parts of K: 64 x 64 x 128 1.65 us a stage, 1.31 where a launch does, at
# 63 x 19 x 7343, 99 x 119 x 7045 and 103 x 95 x 1543 (H200)
CLUSTERED = 1.25

TENSOR_CORE_SCHEDULES = ("cooperative", "pingpong", "multistage")
# consumer warpgroups that share a tile, best first
TEAMS = (2, 3, 1)
# passes over a tile's rows that any number of accumulators allows: 24 of 16 columns are 192 a thread
MAX_PASSES = 24

# mainloop stages that must fit beside the buffer of parts that a cluster adds up
RING_STAGES = 5
# what a CTA of such a cluster sends into distributed shared memory
SUM_BYTES_PER_NS = 25.0
# where parts that no cluster adds up meet
ADDED = {"workspace": "in workspace", "launch": "by a launch", "atomic": "as they come"}
# of a kind of candidate, whatever its tile
NO_TILE = (0, 0, 0)


class Candidate(NamedTuple):
    """A kernel's tile, the CTAs that share operands, who computes, and into how many parts K is cut."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    schedule: str
    consumers: int
    splits: int = 1
    # of those parts, how many a cluster adds up; and how all are added (`KernelConfig.split_reduction`)
    depth: int = 1
    reduction: str = "none"

    @classmethod
    def of(cls, config: KernelConfig) -> Candidate:
        """The candidate that a kernel comes from."""
        schedule = "pingpong" if config.pingpong else "cooperative" if config.producers else "multistage"
        parts = config.splits, config.cluster_parts, "none" if config.streamed else config.split_reduction
        return cls(config.tile, config.cluster, schedule, config.consumers, *parts)

    @property
    def pingpong(self) -> bool:
        """Whether consumers take tiles in turn."""
        return self.schedule == "pingpong"

    @property
    def team(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    def tiles(self, problem: Problem) -> int:
        """CTA tiles of a problem, of all its products."""
        m, n, _ = self.tile
        return -(-problem.m // m) * -(-problem.n // n) * problem.batch

    def __str__(self) -> str:
        how = "" if self.schedule == "cooperative" else f", {self.schedule}"
        parts = "" if self.splits == 1 else f", K in {self.splits} parts"
        if self.reduction in ADDED:
            parts += f", {self.depth} a cluster" if self.depth > 1 else ""
            parts += f", added {ADDED[self.reduction]}"
        return f"tile {self.tile}, cluster {self.cluster}{how}{parts}"


class Ranked(NamedTuple):
    """A candidate in its place, with the reason in words, and the nanoseconds that an order predicts for it."""

    candidate: Candidate
    why: str
    ns: float | None = None


# (problem, device, accumulator columns per output column, candidates) -> the candidates, best first; one after another,
# so that those after the one that is taken cost nothing
Order = Callable[[Problem, Device, int, Sequence[Candidate]], Iterable[Ranked]]


def given_tile(spec: GemmSpec, tile: Tile, limits: Limits, halves: int = 1) -> Candidate:
    """What a spec that gives its tile means by the fields that it leaves open; `halves` as for `every`."""
    schedule = "cooperative" if spec.schedule not in TENSOR_CORE_SCHEDULES else spec.schedule
    team = _team(spec, schedule, tile.m // halves, limits)
    found = Candidate((tile.m, tile.n, tile.k), spec.plane or (1, 1), schedule, team)
    return cut(spec, found, given_splits(spec), limits)


def cut(spec: GemmSpec, whole: Candidate, parts: int, limits: Limits) -> Candidate:
    """A candidate with K in so many parts, added as the spec says.

    Where it leaves that open, in a cluster if one holds all of them; else a launch adds up the sums of clusters of as
    many as there can be.
    """
    if parts == 1:
        return whole._replace(depth=spec.depth or 1)
    room = limits.max_cluster // math.prod(whole.cluster)
    reduction = spec.split_reduction
    if reduction == AUTO:
        reduction = "cluster" if parts <= (spec.depth or room) else "launch"
        # how many CTAs share operands follows M, and the order of additions must not
        free = spec.batch_invariant is not True
        fits = max(x for x in range(1, room + 1) if parts % x == 0) if free else 1
    else:
        fits = 1
    depth = spec.depth or (parts if reduction == "cluster" else fits)
    return whole._replace(splits=parts, depth=depth, reduction=reduction)


@functools.lru_cache(256)
def preferred(
    spec: GemmSpec,
    limits: Limits,
    *,
    gates: int = 1,
    n_major: bool = False,
    gathers: bool = False,
    splits: tuple[int, ...] = (1,),
    short: bool = False,
    uneven: bool = False,
    shared: bool = False,
    vast: bool = False,
) -> tuple[Candidate, ...]:
    """The candidates that an order chooses among, for a spec that leaves its tile open.

    They follow from few facts of a problem and are remembered.

    Args:
        spec: whose given schedule, consumers, cluster and SMs are honoured.
        limits: of the architecture.
        gates: 2 where a tile holds equally many columns of two halves of B.
        n_major: whether B's rows are contiguous.
        gathers: whether the producer's threads load an operand, which leaves it no time for two consumers' turns.
        splits: numbers of parts of K (`splits_for`).
        short: whether K is short and D small (`short`).
        uneven: whether what tiles leave over is much (`edges.uneven`).
        shared: whether operands are worth sharing among four (`edges.shared`).
        vast: whether D has very many tiles (`edges.vast`).
    """
    together = "multistage" if spec.schedule == "multistage" else "cooperative"
    single = gathers or together == "multistage" or spec.sms == 1
    shapes = [
        (m, n, cluster, together) for m, cluster in SHARED_SHAPES for n in WIDTHS if m * n <= SHARED_ELEMENTS
    ]
    if uneven and not single:
        shapes += edges.shapes(WIDTHS)
        shapes += [(m, n, edges.TURNS_CLUSTER, "pingpong") for m, n in TURN_TILES]
    if shared and not single:
        shapes += edges.shared_shapes(WIDTHS)
    if vast and not single:
        shapes.append((*edges.VAST_TILE, edges.VAST_CLUSTER, together))
    if spec.schedule == "pingpong" or not gathers:
        shapes += [(m, n, (1, 1) if single else TURN_CLUSTER, "pingpong") for m, n in TURN_TILES]
    if not gathers:
        # no cluster shares lines that straddle those of L2: 7.2 us at 48 x 13760 x 504, predicted 5.1 (H200)
        tiles: tuple[tuple[int, int], ...] = () if shared and spec.schedule == AUTO else MULTISTAGE_TILES
        tiles += SHORT_TILES if short else ()
        shapes += [(m, n, (1, 1), "multistage") for m, n in tiles]
    least = edges.LEAST_PAIRED if shared else edges.LEAST_SLICED if uneven else SHARED_ELEMENTS
    seen = set()
    listed = []
    for m, n, own, schedule in shapes:
        cluster = spec.plane or own
        found = Candidate((m, n, BLOCK_K), cluster, schedule, _team(spec, schedule, m, limits))
        narrow = schedule != "pingpong" and cluster[0] > 1 and n % 32 and n < least
        split = m % (limits.mma_m * found.team) or not _whole(n, gates, n_major)
        if found in seen or narrow or split or (single and own != (1, 1)) or not _allowed(spec, found):
            continue
        seen.add(found)
        for parts in (x for x in splits if x == 1 or schedule == "cooperative"):
            chosen = cut(spec, found, parts, limits)
            fits = math.prod(cluster) * chosen.depth <= limits.max_cluster
            # parts that no cluster holds are as many as fill the SMs (`spread`), where their number is open
            held = chosen.reduction == "cluster" and _holds(found.tile, limits)
            if fits and (parts == 1 or isinstance(spec.split_k, int) or held):
                listed.append(chosen)
    return tuple(listed)


def short(problem: Problem, device: Device) -> bool:
    """Whether K is so short, and wider tiles, which read operands less often, leave more than half of the SMs idle."""
    (m, n), *_ = MULTISTAGE_TILES
    return problem.k <= SHORT_K and 2 * tiles_of(problem, m, n) < device.sms


def deepened(found: Sequence[Candidate], k: int) -> tuple[Candidate, ...]:
    """Candidates for a producer whose threads load: small tiles are twice as deep, for half the stages.

    Where half a stage holds all of K the other half would be loads of zeros: 157 x 11811 x 31 takes 6.7 us, 7.7 with it
    (H200).
    """
    depth = 2 * BLOCK_K
    if 2 * k <= BLOCK_K:
        return tuple(x._replace(tile=(*x.tile[:2], BLOCK_K // 2)) for x in found)
    return tuple(
        x._replace(tile=(*x.tile[:2], depth)) if sum(x.tile[:2]) <= SHIFTED and k > BLOCK_K else x
        for x in found
    )


def _holds(tile: tuple[int, int, int], limits: Limits) -> bool:
    """Whether what a cluster's CTA receives of a tile's parts leaves room for a ring worth its name."""
    m, n, k = tile
    return 4 * m * n + RING_STAGES * 2 * (m + n) * k <= limits.smem_bytes


def kinds(spec: GemmSpec, limits: Limits) -> Iterator[Candidate]:
    """Everything that could serve a spec beside its given fields, but for the tile: those here have `NO_TILE`."""
    cluster = spec.plane or (1, 1)
    schedules = TENSOR_CORE_SCHEDULES if spec.schedule not in TENSOR_CORE_SCHEDULES else (spec.schedule,)
    for schedule in schedules:
        for consumers in _teams(spec, schedule):
            found = cut(spec, Candidate(NO_TILE, cluster, schedule, consumers), given_splits(spec), limits)
            if _allowed(spec, found):
                yield found


def shapes(
    spec: GemmSpec, kind: Candidate, limits: Limits, elements: int, rows: int, gates: int = 1
) -> Iterator[tuple[int, int, range]]:
    """(columns, depth, passes over its rows) of tiles of at most so many elements, or of the given one.

    More than one pass of the consumers matters only where buffers must be filled.

    Args:
        elements: rows times columns that the consumers' registers hold.
        rows: of a pass of all consumers that share a tile.
        gates: 2 where a tile holds equally many columns of two halves of B.
    """
    if isinstance(spec.tile, Tile):
        m, n, k = spec.tile
        yield n, k, range(m // rows, m // rows + (m % rows == 0))
        return
    buffers = isinstance(spec.epilogue_stages, int) or isinstance(spec.input_stages, int)
    step, most = TILE_N_STEP * gates, MAX_PASSES if buffers else 1
    for k in (64, 48, 32, 16):
        for n in range(limits.mma_max_n // step * step, 0, -step):
            yield n, k, range(1, min(most, elements // (rows * n)) + 1)


def _teams(spec: GemmSpec, schedule: str) -> Iterable[int]:
    if schedule == "pingpong":
        return (PINGPONG_CONSUMERS,)
    return (spec.consumers,) if isinstance(spec.consumers, int) else TEAMS


def _team(spec: GemmSpec, schedule: str, rows: int, limits: Limits) -> int:
    """Consumer warpgroups of a tile: the given number, or the best that divides its rows."""
    return next(
        (x for x in _teams(spec, schedule) if rows % (limits.mma_m * x) == 0),
        next(iter(_teams(spec, schedule))),
    )


def has_given(spec: GemmSpec, candidate: Candidate) -> bool:
    """Whether a candidate that was made without asking a spec has the cluster, consumers and schedule that it gives."""
    shared = spec.plane in (None, candidate.cluster) and spec.consumers in (AUTO, candidate.consumers)
    return shared and _allowed(spec, candidate)


def _allowed(spec: GemmSpec, candidate: Candidate) -> bool:
    """Whether the given fields leave room for a candidate's schedule and cluster."""
    if spec.schedule not in (AUTO, candidate.schedule):
        return False
    if candidate.pingpong and (
        spec.consumers not in (AUTO, PINGPONG_CONSUMERS) or spec.scheduler == "per_tile"
    ):
        return False
    size = candidate.cluster[0] * candidate.cluster[1]
    if isinstance(spec.sms, int) and size > spec.sms and spec.plane is None:
        return False
    return size == 1 or candidate.schedule != "multistage"


def _whole(n: int, gates: int, n_major: bool) -> bool:
    """Whether B's columns of a tile, or of each half of a gated one, are whole rows of a 64-byte swizzle."""
    half = n // gates
    return n % (32 * gates if gates > 1 else 16) == 0 and (half % 32 == 0 or half < 64 or not n_major)
