# SPDX-License-Identifier: Apache-2.0
"""The choices the planner makes when the spec leaves them open.

Tiles are ranked by a model of a launch: the time of a mainloop stage on the tensor cores or from L2, times
the stages of a tile, plus what a tile costs outside its mainloop, times waves; never less than DRAM takes.
Constants were fitted to sweeps on an H200 under its power cap (`benchmarks/NOTES.md`); the model only has to
order candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm import hardware as hw
from cutegemm.problem import Problem

BLOCK_K = 64  # elements: 128 bytes, one row of the 128-byte swizzle

MMA_NS = 775 / (128 * 256)  # of one stage, per element of the tile: a 128 x 256 tile takes 775 ns
NARROW = 1.05  # factor on MMA_NS where one warpgroup of 64 rows computes alone
TRAFFIC = 0.02  # of MMA_NS per extra unit of operand traffic: power spent on moving data lowers the clock
L2_BYTES_PER_NS = 73.0  # per SM, delivered by TMA while every SM loads
TILE_NS = 300.0  # per tile: the ring's first fill and the accumulators' turn
PIECE_NS = 120.0  # per piece of the epilogue's store: its barriers
STORE_BYTES_PER_NS = 40.0  # per SM: the epilogue, which the mainloop does not hide
LAUNCH_NS = 2_500.0  # per kernel
TURN_NS = 100.0  # per tile of a pingpong kernel: one mainloop follows the other, the epilogue runs beside it
TURN_DEEP = 0.01  # slowdown of its mainloop for every doubling of K beyond 4096, where epilogues are rare
INPUT_NS = 900.0  # per tile of a pingpong kernel that reads matrices: what the other's mainloop does not hide
INPUT_PIECE_NS = 130.0  # the same per piece
NARROW_PIECE_NS = 80.0  # the same per piece of less than NARROW_BYTES a row, without inputs
NARROW_BYTES = 32
SHARED_FACTOR = 2.0  # on what inputs cost where the consumers share a tile, so that nothing hides an epilogue

RELAYOUT_NS = 4_800.0  # per re-layout launch, beside its bytes
GATHER_NS = 0.58  # per element that a producer warpgroup gathers into a stage

WIDTHS = (256, 224, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16)
SHAPES = (
    (128, (2, 1)),
    (128, (1, 1)),
    (256, (2, 1)),
    (256, (1, 1)),
    (64, (1, 1)),
    (64, (2, 1)),
)  # rows, cluster
TURN_TILES = tuple((128, n) for n in (192, 176, 160, 144, 128, 96, 64)) + ((64, 128),)  # of pingpong kernels


@dataclass(frozen=True)
class Choice:
    """A candidate with what the model thinks of it."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    ns: float
    pingpong: bool = False


def stage_ns(tile: tuple[int, int, int], cluster: tuple[int, int]) -> float:
    """One mainloop stage: bound by the tensor cores or by what L2 delivers to an SM.

    A multicast slice crosses L2's port once for the cluster.
    """
    m, n, k = tile
    delivered = (m / cluster[1] + n / cluster[0]) * k * 2
    traffic = delivered / (m * n * k / BLOCK_K)  # bytes per element of the tile: 1 for 128 x 256 in pairs
    compute = MMA_NS * m * n * (k / BLOCK_K) * (NARROW if m == hw.WGMMA_M else 1.0)
    return max(compute * (1 + TRAFFIC * (traffic - 1)), delivered / L2_BYTES_PER_NS)


def estimate(
    problem: Problem,
    tile: tuple[int, int, int],
    cluster: tuple[int, int],
    device: hw.Device,
    pingpong: bool = False,
) -> float:
    """Nanoseconds for the whole problem."""
    across_m = math.ceil(problem.m / (tile[0] * cluster[0]))
    across_n = math.ceil(problem.n / (tile[1] * cluster[1]))
    waves = math.ceil(across_m * across_n * problem.batch / device.resident_clusters(cluster[0] * cluster[1]))
    stages = math.ceil(problem.k / tile[2])
    d_bytes = max((x.dtype.bytes for _, x in problem.outputs), default=2)
    rows = 64 if pingpong else 128  # that the warpgroups of a tile store at once
    pieces = max(1, tile[0] // rows) * tile[1] / epilogue_columns(tile[1], d_bytes)
    store = tile[0] * tile[1] * d_bytes / STORE_BYTES_PER_NS
    reads = any(min(x.rows, x.cols) > 1 for _, x in problem.inputs)
    visible = (INPUT_NS + pieces * INPUT_PIECE_NS) * reads
    if pingpong:
        narrow = epilogue_columns(tile[1], d_bytes) * d_bytes < NARROW_BYTES and not reads
        mainloop = stages * turn_ns(tile, cluster, problem.k) + TURN_NS
        beside = max(mainloop, pieces * PIECE_NS + store)
        total = waves * (beside + visible + pieces * NARROW_PIECE_NS * narrow) + store
    else:
        mainloop = stages * stage_ns(tile, cluster) + TILE_NS
        total = waves * (mainloop + pieces * PIECE_NS + store + SHARED_FACTOR * visible)
    return max(total, problem.min_bytes / device.dram_gbs) + LAUNCH_NS


def turn_ns(tile: tuple[int, int, int], cluster: tuple[int, int], k: int) -> float:
    """One mainloop stage of a pingpong kernel."""
    m, n, depth = tile
    slowdown = 1 + TURN_DEEP * max(0.0, math.log2(max(k, 1) / 4096))
    delivered = (m / cluster[1] + n / cluster[0]) * depth * 2
    return max(MMA_NS * m * n * (depth / BLOCK_K) * slowdown, delivered / L2_BYTES_PER_NS)


def epilogue_columns(columns: int, element_bytes: int) -> int:
    """EPI_N: the widest piece of at most 128 bytes a row that divides a tile's output columns."""
    return next(n for n in (64, 32, 16) if columns % n == 0 and n * element_bytes <= 128)


def rank_tiles(problem: Problem, device: hw.Device, gates: int = 1) -> list[Choice]:
    """Every candidate tile and cluster, fastest first by the model; larger tiles first among equals.

    `gates` is 2 where a tile holds equally many columns of two halves of B.
    """
    shapes = [(m, n, cluster, False) for m, cluster in SHAPES for n in WIDTHS]
    shapes = [x for x in shapes if x[0] * x[1] <= 128 * 256 and (x[2] == (1, 1) or x[1] % 32 == 0)]
    shapes += [(m, n, (2, 1), True) for m, n in TURN_TILES]
    found = [
        Choice((m, n, BLOCK_K), cluster, estimate(problem, (m, n, BLOCK_K), cluster, device, turns), turns)
        for m, n, cluster, turns in shapes
        if _whole(n, gates, problem.b.unit_col)
    ]
    return sorted(found, key=lambda choice: choice.ns)


def _whole(n: int, gates: int, n_major: bool) -> bool:
    """Whether B's columns of a tile, or of each half of a gated one, are whole rows of the 128-byte swizzle."""
    half = n // gates
    return n % (32 * gates if gates > 1 else 16) == 0 and (half % 64 == 0 or half < 64 or not n_major)


def cheaper_load(problem: Problem, name: str, device: hw.Device) -> str:
    """How to load an operand that TMA cannot address: "relayout" or "gather".

    A re-layout is a launch and two passes over the operand; gathering costs every stage of every tile, and
    pays only where there are few of either.
    """
    operand = getattr(problem, name)
    size = operand.rows * operand.cols * operand.batch * operand.dtype.bytes
    relayout = RELAYOUT_NS + 2 * size / device.dram_gbs
    tiles = math.ceil(problem.m / 64) * math.ceil(problem.n / 64) * problem.batch
    stages = math.ceil(tiles / device.sms) * math.ceil(problem.k / BLOCK_K)
    return "gather" if stages * 64 * BLOCK_K * GATHER_NS < relayout else "relayout"


def raster_for(problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int]) -> tuple[str, int]:
    """Panels of eight clusters along M (or all there are): measured best or within 1 % on large squares."""
    rows = math.ceil(problem.m / (tile[0] * cluster[0]))
    return "m", max(1, min(8, rows))
