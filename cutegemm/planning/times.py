# SPDX-License-Identifier: Apache-2.0
"""The model of a launch's time, of all candidates at once; NumPy is imported with it, not with the package.

The time of a mainloop stage on the tensor cores or from L2, times the stages of a tile, plus what a tile costs
outside its mainloop, times waves; never less than DRAM takes. The constants are the device's
(`arch.device.TimeModel`); the model only has to order candidates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutegemm.arch.device import Device
from cutegemm.config import SECTOR
from cutegemm.planning import boxes, threaded
from cutegemm.planning.candidates import BLOCK_K, SUM_BYTES_PER_NS, TENSOR_CORE_SCHEDULES, Candidate
from cutegemm.planning.cuts import deep
from cutegemm.planning.edges import straddles
from cutegemm.planning.left import STREAM_FILL, left_ns
from cutegemm.planning.pieces import widest
from cutegemm.planning.power import capped
from cutegemm.problems import Problem, round_up

# a value of every candidate
Column = NDArray[np.float64]

# bytes a row of an output's piece, below which its barriers are no longer hidden
NARROW_BYTES = 32
# of 16 bits that a warpgroup stores by itself, as lines of D begin off multiples of 16 bytes; and how many sectors of
# L2 a part of one counts for, of which a tile's row has two: what 11095 x 2589 x 23 and 3187 x 9609 x 37 take in tiles
# of 96, 128, 192 and 256 columns, 4 % off (H200)
LINE_STORE_NS = 0.173
PART_SECTORS = 2.5
# of a cluster's sum over parts of K, per work, beside its bytes
SUM_NS = 700.0
# shares of what L2 and memory deliver to other kernels that clusters with parts of K get (suite deep_k, H200)
HELD_L2 = 0.85
HELD_DRAM = 0.95
# `TimeModel.traffic` of deep K: 1024 x 1024 x 65536 takes 208 to 218 us in tiles of 128 x 256, 225 of 128 x 128 (H200)
DEEP_TRAFFIC = 0.06
# of parts that meet in workspace (the same): the fences and the atomic of a CTA that counts itself; what an SM writes
# or reads
COUNT_NS = 1000.0
PARTS_BYTES_PER_NS = 33.0
MEETINGS = ("launch", "workspace", "atomic")  # where parts meet that no cluster adds up
# of a launch of clusters of two, and of each doubling: CTAs wait for one another before they begin. 384^3 and 512^3 in
# tiles of 64 x 32, 333 x 777 x 555 in 64 x 64 (H200)
CLUSTER_NS = 180.0
# what memory takes longer where several clusters at once ask it for the same bytes of a streamed operand, and rows or
# columns of D up to which it is: 128 x 7168 x 16384 takes 80 us in 64 x 112, 64 in 64 x 128 whose pairs share them
# (H200)
ASKED_TWICE = 1.5
FEW_ROWS = 256
# extent along K up to which a pingpong kernel's mainloop keeps its speed
DEEP_K = 4096


def fastest_first(
    problem: Problem, device: Device, candidates: Sequence[Candidate]
) -> tuple[list[int], list[float]]:
    """(places of the candidates, fastest first (`ranked`); nanoseconds of each in its own place)."""
    if not candidates:
        return [], []
    of = Table.of(problem, device, candidates)
    times = estimates(problem, device, of)
    return ranked(of, times), times.tolist()


def ranked(of: Table, times: Column) -> list[int]:
    """Places of candidates, fastest first.

    Of those as fast whoever has no producer to wait for where there is one stage to load, then whoever takes fewest
    bytes from L2, then of parts of K whoever shares wide tiles of B among few rows (64 x 128 in clusters of 2 x 1
    takes 38.4 us at 128 x 4096 x 14336, its mirror image 39.7 on an H200), then whoever has fewest idle rows; then
    their order.
    """
    # stable, by the last key first
    alone = np.where((of.multistage > 0) & (of.stages <= 1), 0.0, 1.0)
    shared = np.where(of.left, of.m, 0.0)
    order: list[int] = np.lexsort((of.idle, shared, of.traffic, alone, times)).tolist()
    return order


@dataclass(frozen=True)
class Table:
    """Candidates as columns, and what the model works out of each for one problem.

    Attributes:
        m, n, depth: of the tile; splits: parts of K, held: those that a cluster adds up.
        left, counted: whether the others meet in a launch of their own, or in workspace; merged: added there as they
            come.
        pingpong, multistage: whether the schedule is that; clustered: how often the CTAs that share
            operands double, 1 in any cluster.
        repeats: clusters along D's shorter side, which read the same of the longer one's operand.
        ctas: that the launch has, clusters filled up.
        tiles: CTA tiles of the problem, clusters filled up; waves: of their parts on the device.
        stages: of a tile's mainloop.
        delivered: bytes that a stage of 16-bit operands takes from L2 for one CTA; a multicast slice crosses L2's
            port once for the cluster. astride: those of them in rows that straddle lines of L2.
        traffic: bytes that all CTAs take from L2.
        idle: rows of a tile whose warpgroups have no row of D.
        shifts_a, shifts_b: whether the producer's threads load that operand.
    """

    m: Column
    n: Column
    depth: Column
    splits: Column
    held: Column
    left: Column
    counted: Column
    merged: Column
    pingpong: Column
    multistage: Column
    clustered: Column
    repeats: Column
    tiles: Column
    ctas: Column
    waves: Column
    stages: Column
    delivered: Column
    astride: Column
    traffic: Column
    idle: Column
    shifts_a: Column
    shifts_b: Column

    @staticmethod
    def of(problem: Problem, device: Device, candidates: Sequence[Candidate]) -> Table:
        """The columns of some candidates, whose threads load whatever TMA cannot address."""
        shapes, clusters, schedules, _, parts, depths, meetings = zip(*candidates, strict=True)
        m, n, depth = _columns(shapes, 3)
        across, along = _columns(clusters, 2)
        splits, held = np.array(parts, dtype=np.float64), np.array(depths, dtype=np.float64)
        schedule, meeting = _places(schedules, TENSOR_CORE_SCHEDULES), _places(meetings, MEETINGS)
        left, counted, merged = (meeting == i for i in range(len(MEETINGS)))
        rows, cols = np.ceil(problem.m / (m * across)), np.ceil(problem.n / (n * along))
        whole = rows * cols * problem.batch
        works = whole * (splits / held)
        cluster = across * along * held
        sizes = np.arange(int(cluster.max()) + 1)
        resident = np.array([device.resident_clusters(max(int(x), 1)) for x in sizes], dtype=np.float64)
        stages = np.ceil(problem.k / (depth * splits))
        edges = _loaded_rows(problem, m, along, depth * splits) / along, n / across
        delivered = (edges[0] + edges[1]) * depth * 2
        straddling = sum(x * straddles(y) for x, y in zip(edges, (problem.a, problem.b), strict=True))
        ctas = works * cluster
        return Table(
            m, n, depth, splits, held, left, counted, merged, schedule == 1, schedule == 2,
            clustered=np.where(cluster > 1, np.maximum(1, np.log2(across * along)), 0),
            repeats=rows if problem.m <= problem.n else cols,
            tiles=whole * across * along,
            ctas=ctas,
            waves=np.ceil(works / resident[cluster.astype(np.intp)]),
            stages=stages,
            delivered=delivered,
            astride=straddling * depth * 2,
            traffic=ctas * stages * delivered,
            idle=np.maximum(0, m - round_up(problem.m, device.limits.mma_m)),
            shifts_a=np.full_like(m, problem.a.tma_reason() is not None),
            shifts_b=np.full_like(m, problem.b.tma_reason() is not None),
        )  # fmt: skip

    def loaded(self, places: Sequence[int], shifts_a: Column, shifts_b: Column) -> Table:
        """The candidates of these places, in this order, with such loads."""
        index = np.array(places, dtype=np.intp)
        columns = {name: column[index] for name, column in vars(self).items()}
        return Table(**(columns | {"shifts_a": shifts_a, "shifts_b": shifts_b}))


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> NDArray[np.float64]:
    """So many columns of rows of numbers; `np.array` takes 1.7 times as long."""
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.float64, count * len(rows))
    return flat.reshape(-1, count).T


def _places(words: Sequence[str], among: Sequence[str]) -> NDArray[np.intp]:
    """The place of each word among some, -1 of others; NumPy takes twice as long to compare text."""
    known = {x: i for i, x in enumerate(among)}
    return np.fromiter(map(known.get, words, itertools.repeat(-1)), np.intp, len(words))


def _loaded_rows(problem: Problem, m: Column, along: Column, depth: Column) -> Column:
    """Rows of A that a stage of each tile takes; `depth` of a stage times the parts of K."""
    if problem.m > boxes.MOST_ROWS:
        return m
    narrow = boxes.box_rows(problem, m, along, depth)
    return np.where(narrow > 0, narrow, m)


def estimates(problem: Problem, device: Device, of: Table) -> Column:
    """Nanoseconds of each candidate for the whole problem, its launch included."""
    fill = np.minimum(1.0, of.ctas / device.sms)
    held = np.where(of.held > 1, HELD_DRAM, 1.0)
    twice = (of.repeats > 1) & (min(problem.m, problem.n) <= FEW_ROWS)
    least = (
        problem.min_bytes * np.where(twice, ASKED_TWICE, 1.0) / (device.dram_gbs * fill**STREAM_FILL * held)
    )
    found: Column = np.maximum(_kernel_ns(problem, device, of), least) + _meet_ns(of)
    if of.left.any():
        found = np.where(of.left, left_ns(problem, device, of), found)
    return capped(found, problem, device.power, of) + device.time.launch


def _stage_ns(problem: Problem, device: Device, of: Table) -> Column:
    """One mainloop stage: bound by the tensor cores or by what L2 delivers to an SM."""
    time, lone = device.time, of.waves == 1
    # bytes per element of the tile: 1 for 128 x 256 in pairs
    delivered = of.delivered + (time.straddle - 1) * of.astride
    traffic = delivered / (of.m * of.n * of.depth / BLOCK_K)
    costs = DEEP_TRAFFIC if deep(problem, device) else time.traffic
    compute = time.mma * of.m * of.n * (of.depth / BLOCK_K) * (1 + costs * (traffic - 1))
    slower = 1 + time.turn_deep * max(0.0, math.log2(max(problem.k, 1) / DEEP_K))
    narrow = np.where(of.m == device.limits.mma_m, time.narrow, 1.0)
    compute = compute * np.where(of.pingpong, slower, narrow)
    factor = np.where(
        lone & of.pingpong,
        time.turn_lone,
        np.where(lone & of.multistage, time.multistage_lone, 1.0),
    )
    # of deep K L2 delivers no more to CTAs of one tile than to others (512 x 512 x 8192, 128 x 7168 x 16384, H200)
    whole = np.where(lone & (not deep(problem, device)), time.l2_lone, time.l2)
    rate = np.where(of.held > 1, HELD_L2 * time.l2, np.where(of.splits > 1, time.l2, whole))
    found: Column = factor * np.maximum(compute, delivered / rate)
    return found


def _kernel_ns(problem: Problem, device: Device, of: Table) -> Column:
    """Nanoseconds of the waves of tiles, as if device memory kept up."""
    time = device.time
    mainloop = of.stages * _stage_ns(problem, device, of)
    d_bytes = max((x.dtype.bytes for _, x in problem.outputs), default=2)
    columns = np.gcd(of.n.astype(np.intp), widest(d_bytes))
    # rows that the warpgroups of a tile store at once
    rows = np.where(of.pingpong, 64, 128)
    pieces = np.maximum(1, of.m // rows) * of.n / columns
    store = of.m * of.n * d_bytes / time.store
    reads = any(min(x.rows, x.cols) > 1 for _, x in problem.inputs)
    visible = (time.inputs + pieces * time.input_piece) * reads
    narrow = (columns * d_bytes < NARROW_BYTES) & (not reads)
    beside = np.maximum(mainloop + time.turn, pieces * time.piece + store)
    stored = pieces * time.piece + store
    by_lines = any(x.tma_reason() is not None for _, x in problem.outputs)
    if by_lines:
        lines = _lines_ns(of, d_bytes)
        stored = np.maximum(stored, lines / np.minimum(2, of.m // 64))
        # a warpgroup's mainloop and its stores, of which two take turns
        both = mainloop + time.turn + pieces * time.piece + lines
        beside = np.maximum(beside, np.where(lines > 0, both / 2, 0.0))
    turns = of.waves * (beside + visible + pieces * time.narrow_piece * narrow) + store
    shares = of.waves * (mainloop + (time.tile + _sum_ns(of)) + stored + time.shared * visible)
    start = CLUSTER_NS * of.clustered
    found: Column = start + np.where(of.pingpong, turns, shares)
    loaded = threaded.stage_ns(problem, device, of)
    if loaded is None:
        return found
    # what a warpgroup does with a tile hides the loads of the next; lines of D leave in no pieces (8191 x 33 x 2047
    # takes 16.0 us in 64 x 40 and 64 x 48, 18.2 in 64 x 64, H200)
    last = time.tile + _sum_ns(of) + store + (0.0 if by_lines else pieces * time.piece)
    first = np.where(of.splits > 1, 0.0, threaded.FIRST_NS)
    by_threads = first + np.maximum(found, of.waves * of.stages * loaded + last)
    return np.where(loaded > 0, by_threads, found)


def _lines_ns(of: Table, d_bytes: int) -> Column:
    """Nanoseconds of one warpgroup's stores of a tile of D whose lines begin off multiples of 16 bytes.

    None of a single wave, after which nothing is left to wait for them.
    """
    row = d_bytes * of.n + 2 * PART_SECTORS * SECTOR
    found: Column = np.where(of.waves > 1, of.m * row / 2 * LINE_STORE_NS, 0.0)
    return found


def _sum_ns(of: Table) -> Column:
    """Adding up the parts of K that the CTAs of a cluster hold: each sends and receives about a tile of fp32."""
    return np.where(of.held == 1, 0.0, SUM_NS + 4 * of.m * of.n / SUM_BYTES_PER_NS)


def _meet_ns(of: Table) -> Column:
    """Parts of K that meet in workspace: written by all SMs, read by one CTA a slice."""
    share = 4 * of.m * of.n / of.held / PARTS_BYTES_PER_NS
    # the last CTA reads every part, or one tile to which the others were added
    waits = of.waves * (share + COUNT_NS)
    counted, merged = waits + share * (of.splits / of.held), waits + COUNT_NS + share
    return np.where(of.counted, counted, np.where(of.merged, merged, 0.0))
