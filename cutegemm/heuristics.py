# SPDX-License-Identifier: Apache-2.0
"""The choices the planner makes when the spec leaves them open.

Tiles are ranked by a model of one wave: cycles of the tensor cores, of L2 and of DRAM for a CTA tile, times
waves, plus what a tile costs outside its mainloop. Constants were fitted to sweeps on an H200
(`benchmarks/NOTES.md`); the model only has to order candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutegemm import hardware as hw
from cutegemm.problem import Problem

# (tile m, tile n, cluster): what the planner considers; every one compiles without spills
CANDIDATES = (
    (128, 256, (2, 1)), (128, 256, (1, 1)), (256, 128, (2, 1)), (256, 128, (1, 1)),
    (128, 192, (2, 1)), (128, 192, (1, 1)), (128, 128, (2, 1)), (128, 128, (1, 1)),
    (128, 64, (1, 1)), (64, 256, (1, 1)), (64, 128, (1, 1)), (64, 64, (1, 1)), (64, 32, (1, 1)), (64, 16, (1, 1)),
)  # fmt: skip

TILE_CYCLES = 1_500  # per CTA tile: ring fill, first loads, epilogue not hidden
LAUNCH_CYCLES = 3_000  # per kernel, whatever its size
L2_BYTES_PER_CYCLE = 44  # per SM, delivered to shared memory by TMA
SMEM_BYTES_PER_CYCLE = 128  # per SM: 32 banks of 4 bytes
RELAYOUT_NS = 2_500  # per launch of a re-layout, beside its bytes


@dataclass(frozen=True)
class Choice:
    """A candidate with what the model thinks of it."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    cycles: float


def mma_cycles(tile: tuple[int, int, int]) -> float:
    """Cycles of one mainloop stage on the tensor cores; narrow tiles are bound by shared-memory reads.

    A wgmma m64nNk16 reads A (64 x 32 bytes) and B (N x 32 bytes) once each.
    """
    m, n, k = tile
    wgmmas = (m // hw.WGMMA_M) * (k / 16)
    compute = hw.WGMMA_M * n * 16 * 2 / hw.H200.mma_flops_per_cycle
    reads = (hw.WGMMA_M + n) * hw.WGMMA_K_BYTES / SMEM_BYTES_PER_CYCLE
    return wgmmas * max(compute, reads)


def tile_cycles(tile: tuple[int, int, int], cluster: tuple[int, int], k: int) -> float:
    """Cycles of one CTA tile: mainloop bound by the tensor cores or by L2, plus what is not hidden."""
    m, n, block_k = tile
    bytes_per_stage = (m / cluster[1] + n / cluster[0]) * block_k * 2
    stage = max(mma_cycles(tile), bytes_per_stage / L2_BYTES_PER_CYCLE)
    return math.ceil(k / block_k) * stage + TILE_CYCLES


def estimate(
    problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int], device: hw.Device
) -> float:
    """Cycles for the whole problem, never below the DRAM time of its operands."""
    tiles_m = math.ceil(problem.m / (tile[0] * cluster[0])) * cluster[0]
    tiles_n = math.ceil(problem.n / (tile[1] * cluster[1])) * cluster[1]
    tiles = tiles_m * tiles_n * problem.batch
    size = cluster[0] * cluster[1]
    slots = device.resident_clusters(size) * size
    waves = math.ceil(tiles / slots)
    dram = problem.min_bytes / device.dram_gbs * device.clock_ghz
    return max(waves * tile_cycles(tile, cluster, problem.k), dram) + LAUNCH_CYCLES


def rank_tiles(problem: Problem, device: hw.Device) -> list[Choice]:
    """Every candidate tile and cluster, fastest first by the model."""
    found = []
    for m, n, cluster in CANDIDATES:
        tile = (m, n, 64)
        found.append(Choice(tile, cluster, estimate(problem, tile, cluster, device)))
    return sorted(found, key=lambda choice: choice.cycles)


def raster_for(problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int]) -> tuple[str, int]:
    """Panels along M, about as tall as the CTAs of a wave are wide, so that a wave's operands are a square."""
    rows = math.ceil(problem.m / (tile[0] * cluster[0]))
    return "m", max(1, min(8, rows))
