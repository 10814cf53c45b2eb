# SPDX-License-Identifier: Apache-2.0
"""The model of time of CUDA-core kernels.

The time of a tile's k tiles on an SM, times the CTAs of the busiest SM, plus what a launch costs outside its mainloop;
never less than DRAM takes. A k tile takes its instructions' issue slots in a quarter of the SM, or what its warps move
through shared memory, whichever is more: loads of four elements return 128 bytes a clock, although lanes share
addresses, so that a thread's 8 x 8 is bound by them and its 16 x 8 is not. The constants are the device's
(`arch.device.CoreModel`), fitted by `benchmarks.fit --cores`.
"""

from __future__ import annotations

import math

from cutegemm.arch.device import CoreModel, Device
from cutegemm.config import SimtTile
from cutegemm.config.simt import FOUR
from cutegemm.planning.simt_vectors import along_k, loads
from cutegemm.problems import Problem

# quarters of an SM, each with an issue slot a clock
QUARTERS = 4
WARP = 32
# issue slots of a load from global memory with the two that move its 64-bit address, and of a k tile besides
LOAD_SLOTS, TILE_SLOTS = 3, 16
# lines of the cache that elements of one row touch in a load, on average: rows begin anywhere
STRADDLE = 1.5
# how sharply the greater of two bounds outweighs the other
SHARPNESS = 6


def tiles_of(problem: Problem, x: SimtTile) -> int:
    """Output tiles."""
    return math.ceil(problem.m / x.tile[0]) * math.ceil(problem.n / x.tile[1]) * problem.batch


def estimate(problem: Problem, x: SimtTile, device: Device) -> float:
    """Nanoseconds for the whole problem."""
    cores = device.cores
    # CTAs of a cluster stand on different SMs, and an SM takes as many of other clusters as it has room for
    busiest = math.ceil(tiles_of(problem, x) / device.resident_clusters(x.split))
    turns, rest = divmod(busiest, x.residents)
    steps = math.ceil(problem.k / x.split / x.tile[2])
    work = _work(x, problem)
    mainloop = turns * _step(x, work, x.residents, cores) + (_step(x, work, rest, cores) if rest else 0.0)
    mainloop = steps * mainloop + busiest * cores.cta / x.residents
    shared = (cores.meet if x.split * x.slices > 1 else 0.0) + cores.doubling * math.log2(x.split)
    return max(mainloop, problem.min_bytes / device.dram_gbs) + shared + cores.launch


def _work(x: SimtTile, problem: Problem) -> tuple[float, float]:
    """Of a CTA's k tile: issue slots of a quarter of its warps, and 128 bytes that all move through shared memory."""
    (tile_m, tile_n, depth), (own_m, own_n) = x.tile, x.thread_tile
    own_k = depth / x.slices
    slots = own_k * (own_m * own_n + own_m / x.group + own_n / FOUR) + TILE_SLOTS
    moved = own_k * (own_m + own_n)
    vectors = loads(x, problem) or (1, 1)
    for rows, vector, deep in zip((tile_m, tile_n), vectors, along_k(problem), strict=True):
        each = rows * depth / (x.threads * vector)
        # a prefetch has an address of its own
        slots += LOAD_SLOTS * each * (2 if x.ahead else 1)
        if not x.staged:
            moved += each * vector
        elif x.in_runs(rows, vector, deep):
            slots += each / FOUR
            moved += each * (1 + STRADDLE * WARP / min(depth, WARP))
        else:
            slots += each * (vector if deep else max(1.0, vector / FOUR))
            moved += 2 * each * vector
    return x.warps / QUARTERS * slots, x.warps * moved


def _step(x: SimtTile, work: tuple[float, float], together: int, cores: CoreModel) -> float:
    """Nanoseconds of one k tile of each of an SM's CTAs, `together` of them."""
    warps = together * x.warps
    # a warp waits for its own last instruction now and then, which others of its quarter fill
    waits = cores.lone if warps <= QUARTERS else cores.paired if warps <= 2 * QUARTERS else 1.0
    slots, moved = work[0] * waits, work[1] * cores.shared
    time: float = together * cores.slot * (slots**SHARPNESS + moved**SHARPNESS) ** (1 / SHARPNESS)
    if not x.staged:
        return time * cores.ring
    alone = cores.alone_ahead if x.ahead else cores.alone
    return max(time + (alone if together == 1 else 0.0), cores.l2 if x.ahead else cores.dram)
