# SPDX-License-Identifier: Apache-2.0
"""The model of a launch's time, of all candidates at once; NumPy is imported with it, not with the package.

The time of a mainloop stage on the tensor cores or from L2, times the stages of a tile, plus what a tile costs
outside its mainloop, times waves; never less than DRAM takes. The constants are the device's
(`arch.device.TimeModel`); the model only has to order candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cutegemm.arch.device import Device
from cutegemm.planning import boxes
from cutegemm.planning.candidates import BLOCK_K, Candidate
from cutegemm.planning.operands import L2_LINE
from cutegemm.planning.pieces import epilogue_columns
from cutegemm.problems import Operand, Problem

# a value of every candidate
Column = NDArray[np.float64]

# bytes a row of an output's piece, below which its barriers are no longer hidden
NARROW_BYTES = 32
# of a cluster's sum over parts of K, per work; bytes that a CTA sends into distributed shared memory meanwhile
SUM_NS = 700.0
SUM_BYTES_PER_NS = 25.0
# what L2 was seen to deliver to an SM whose cluster holds parts of K (128 x 128 x 16384 to 640 x 384 x 24576, H200)
SPLIT_L2_BYTES_PER_NS = 50.0
# bandwidth falls by this power of the share of SMs that stream: 0.94 of it with 107 CTAs at 128 x 10240 x 8192, 0.82
# with 64 at 128 x 8192 x 28672, where 128 CTAs have all (H200)
STREAM_FILL = 0.28
# extent along K up to which a pingpong kernel's mainloop keeps its speed
DEEP_K = 4096


def fastest_first(
    problem: Problem, device: Device, candidates: Sequence[Candidate]
) -> tuple[list[int], list[float]]:
    """(places of the candidates, fastest first; nanoseconds of each in its own place).

    Among those that memory bounds alike the one that takes fewest bytes from L2 is first; then they keep their own
    order.
    """
    if not candidates:
        return [], []
    of = Table.of(problem, device, candidates)
    times = estimates(problem, device, of)
    # stable, by the last key first
    order: list[int] = np.lexsort((of.traffic, times)).tolist()
    return order, times.tolist()


@dataclass(frozen=True)
class Table:
    """Candidates as columns, and what the model works out of each for one problem.

    Attributes:
        m, n, depth: of the tile; splits: parts of K.
        pingpong, multistage: whether the schedule is that.
        ctas: that the launch has, clusters filled up.
        works: cluster tiles of the problem; waves: of them on the device.
        stages: of a tile's mainloop.
        delivered: bytes that a stage of 16-bit operands takes from L2 for one CTA; a multicast slice crosses L2's
            port once for the cluster.
        traffic: bytes that all CTAs take from L2.
    """

    m: Column
    n: Column
    depth: Column
    splits: Column
    pingpong: Column
    multistage: Column
    ctas: Column
    waves: Column
    stages: Column
    delivered: Column
    traffic: Column

    @staticmethod
    def of(problem: Problem, device: Device, candidates: Sequence[Candidate]) -> Table:
        """The columns of some candidates."""
        rows = [
            (*x.tile, *x.cluster, x.splits, x.schedule == "pingpong", x.schedule == "multistage")
            for x in candidates
        ]
        m, n, depth, across, along, splits, pingpong, multistage = np.array(rows, dtype=np.float64).T
        works = np.ceil(problem.m / (m * across)) * np.ceil(problem.n / (n * along)) * problem.batch
        cluster = across * along * splits
        sizes = np.arange(int(cluster.max()) + 1)
        resident = np.array([device.resident_clusters(max(int(x), 1)) for x in sizes], dtype=np.float64)
        stages = np.ceil(problem.k / (depth * splits))
        delivered = (
            (_loaded_rows(problem.m, m, along) / along * _lines(problem.a) + n / across * _lines(problem.b))
            * depth
            * 2
        )
        ctas = works * cluster
        return Table(
            m, n, depth, splits, pingpong > 0, multistage > 0,
            ctas=ctas,
            waves=np.ceil(works / resident[cluster.astype(np.intp)]),
            stages=stages,
            delivered=delivered,
            traffic=ctas * stages * delivered,
        )  # fmt: skip


def _loaded_rows(rows: int, m: Column, along: Column) -> Column:
    """Rows of A that a stage of each tile takes."""
    if not boxes.NARROW_TILES:
        return m
    pairs = zip(m.astype(int).tolist(), along.astype(int).tolist(), strict=True)
    return np.array(
        [boxes.box_rows(rows, tile, sharers) or tile for tile, sharers in pairs], dtype=np.float64
    )


def estimates(problem: Problem, device: Device, of: Table) -> Column:
    """Nanoseconds of each candidate for the whole problem, its launch included."""
    fill = np.minimum(1.0, of.ctas / device.sms)
    least = problem.min_bytes / (device.dram_gbs * fill**STREAM_FILL)
    found: Column = np.maximum(_kernel_ns(problem, device, of), least) + device.time.launch
    return found


def _stage_ns(problem: Problem, device: Device, of: Table) -> Column:
    """One mainloop stage: bound by the tensor cores or by what L2 delivers to an SM."""
    time, lone = device.time, of.waves == 1
    # bytes per element of the tile: 1 for 128 x 256 in pairs
    traffic = of.delivered / (of.m * of.n * of.depth / BLOCK_K)
    compute = time.mma * of.m * of.n * (of.depth / BLOCK_K) * (1 + time.traffic * (traffic - 1))
    deep = 1 + time.turn_deep * max(0.0, math.log2(max(problem.k, 1) / DEEP_K))
    narrow = np.where(of.m == device.limits.mma_m, time.narrow, 1.0)
    compute = compute * np.where(of.pingpong, deep, narrow)
    factor = np.where(
        lone & of.pingpong,
        time.turn_lone,
        np.where(lone & of.multistage, time.multistage_lone, 1.0),
    )
    rate = np.where(of.splits > 1, SPLIT_L2_BYTES_PER_NS, np.where(lone, time.l2_lone, time.l2))
    found: Column = factor * np.maximum(compute, of.delivered / rate)
    return found


def _kernel_ns(problem: Problem, device: Device, of: Table) -> Column:
    """Nanoseconds of the waves of tiles, as if device memory kept up."""
    time = device.time
    mainloop = of.stages * _stage_ns(problem, device, of)
    d_bytes = max((x.dtype.bytes for _, x in problem.outputs), default=2)
    columns = np.array([epilogue_columns(int(n), d_bytes) for n in of.n], dtype=np.float64)
    # rows that the warpgroups of a tile store at once
    rows = np.where(of.pingpong, 64, 128)
    pieces = np.maximum(1, of.m // rows) * of.n / columns
    store = of.m * of.n * d_bytes / time.store
    reads = any(min(x.rows, x.cols) > 1 for _, x in problem.inputs)
    visible = (time.inputs + pieces * time.input_piece) * reads
    narrow = (columns * d_bytes < NARROW_BYTES) & (not reads)
    beside = np.maximum(mainloop + time.turn, pieces * time.piece + store)
    turns = of.waves * (beside + visible + pieces * time.narrow_piece * narrow) + store
    alone = mainloop + (time.tile + _sum_ns(of))
    shares = of.waves * (alone + pieces * time.piece + store + time.shared * visible)
    return np.where(of.pingpong, turns, shares)


def _sum_ns(of: Table) -> Column:
    """Adding up the parts of K that the CTAs of a cluster hold: each sends and receives about a tile of fp32."""
    return np.where(of.splits == 1, 0.0, SUM_NS + 4 * of.m * of.n / SUM_BYTES_PER_NS)


def _lines(operand: Operand) -> float:
    """L2 lines that a 128-byte row of a box touches on average; a copy's rows begin at whole lines."""
    leading = operand.strides[0] if operand.unit_col else operand.strides[1]
    straddles = operand.tma_reason() is None and leading * operand.dtype.bytes % L2_LINE
    return 2.0 if straddles else 1.0
