# SPDX-License-Identifier: Apache-2.0
"""Which tile a CUDA-core kernel gets, and how its K is shared out: a model over a short list of tiles.

The time of a tile's k tiles on an SM, times the CTAs of the busiest SM, plus what a launch costs outside its
mainloop; never less than DRAM takes. K is cut where tiles are too few to occupy every SM. Cuts depend on the
problem and the device alone, so equal calls give equal bits.
"""

from __future__ import annotations

import dataclasses
import math

from cutegemm.arch.device import Device
from cutegemm.config import SimtTile
from cutegemm.problems import Problem

# multiply-adds an SM does per clock: 32 lanes in each of four quarters
FMA_PER_CLOCK = 128
# GHz
CLOCK = 1.98
# ns of a launch outside its mainloop, and of the meeting of shared sums
LAUNCH_NS = 2_500.0
SHARE_NS = 1_500.0
# ns more for every doubling of the CTAs that share a tile
DOUBLING_NS = 400.0
# ns of a CTA's first tile and its store, which the SM's other CTAs hide in part
CTA_NS = 1_500.0
# ns that a k tile of a staged CTA, which is one tile ahead, takes at least: DRAM's answer, or L2's after a prefetch
DRAM_NS = 850.0
L2_NS = 450.0
# ns of a k tile between its last multiply-add and the next tile's first, where no other CTA fills them; the same after
# a prefetch
ALONE_NS = 300.0
AHEAD_ALONE_NS = 150.0
# bytes of the elements that a ring can take: cp.async does not convert
RING_BYTES = 4
# CTAs that share an output tile
SPLITS = (1, 2, 4, 8)
# warps of an SM -> share of its clocks that they keep busy
BUSY = ((4, 0.65), (8, 0.9), (12, 1.0))
# accumulators of a thread that leave room for a gated pair's
PAIRED_VALUES = 64

# Tile -> share of the SM's multiply-adds that it reaches where nothing else holds it up. Of staged tiles the share that
# multiply-adds have of their loop's issue slots; of the two of 128 x 128, and of the others, what they reach on an H200
# (`benchmarks/probes/simt_tiles.py`). Larger tiles first among equals.
TILES = {
    SimtTile(tile=(128, 128, 8), thread_tile=(16, 8), lanes_m=4, staged=True, residents=2): 0.98,
    SimtTile(tile=(128, 128, 8), staged=True, residents=2): 0.72,
    SimtTile(tile=(64, 128, 16), staged=True, slices=2, residents=2): 0.85,
    SimtTile(tile=(64, 64, 16), staged=True, slices=4, residents=2): 0.83,
    SimtTile(tile=(64, 64, 32), thread_tile=(8, 16), staged=True, slices=8, ahead=4): 0.98,
    SimtTile(tile=(64, 64, 32), staged=True, slices=8): 0.83,
    SimtTile(tile=(64, 16, 32), thread_tile=(8, 4), slices=8, stages=6, residents=2): 0.30,
    SimtTile(tile=(16, 64, 32), thread_tile=(4, 8), lanes_m=4, slices=8, stages=6, residents=2): 0.30,
}


def choose(problem: Problem, device: Device, *, pairs: bool = False, invariant: bool = False) -> SimtTile:
    """The tile and the cut of K that the model finds fastest; `pairs` and `invariant` as for `weigh`."""
    return min(weigh(problem, device, pairs=pairs, invariant=invariant), key=lambda pair: pair[0])[1]


def weigh(
    problem: Problem, device: Device, *, pairs: bool = False, invariant: bool = False
) -> list[tuple[float, SimtTile]]:
    """(nanoseconds, tile) of every tile and cut of K that may serve, larger tiles and fewer cuts first.

    Args:
        pairs: whether the epilogue takes gated pairs. Of 16-bit operands those are not cut along K, nor shared out: a
            thread's accumulators, single elements in flight and the sum's addresses do not fit its registers.
        invariant: whether the order of additions must not depend on M: every product is added by one thread.
    """
    found = []
    whole = invariant or (pairs and problem.a.dtype.bytes != RING_BYTES)
    for tile, rate in TILES.items():
        if (whole and tile.slices > 1) or (pairs and math.prod(tile.thread_tile) > PAIRED_VALUES):
            continue
        for split in (1,) if whole else SPLITS:
            x = dataclasses.replace(tile, split=split)
            serves = tile.staged or problem.a.dtype.bytes == RING_BYTES
            if serves and (split == 1 or _may_split(problem, x, device)):
                found.append((estimate(problem, x, rate, device), x))
    return found


def _may_split(problem: Problem, x: SimtTile, device: Device) -> bool:
    """Whether half the cut leaves room on the SMs, and every CTA's part of K fills its ring."""
    room = tiles_of(problem, x) * x.split // 2 < device.sms * x.residents
    return room and problem.k >= x.split * x.tile[2] * x.stages


def tiles_of(problem: Problem, x: SimtTile) -> int:
    """Output tiles."""
    return math.ceil(problem.m / x.tile[0]) * math.ceil(problem.n / x.tile[1]) * problem.batch


def estimate(problem: Problem, x: SimtTile, rate: float, device: Device) -> float:
    """Nanoseconds for the whole problem; `rate` is the tile's in `TILES`."""
    # CTAs of a cluster stand on different SMs, and an SM takes as many of other clusters as it has room for
    busiest = math.ceil(tiles_of(problem, x) / device.resident_clusters(x.split))
    turns, rest = divmod(busiest, x.residents)
    steps = math.ceil(problem.k / x.split / x.tile[2])
    mainloop = steps * (turns * _step(x, x.residents, rate) + (_step(x, rest, rate) if rest else 0.0))
    mainloop += busiest * CTA_NS / x.residents
    shared = (SHARE_NS if x.split * x.slices > 1 else 0.0) + DOUBLING_NS * math.log2(x.split)
    return max(mainloop, problem.min_bytes / device.dram_gbs) + shared + LAUNCH_NS


def _step(x: SimtTile, together: int, rate: float) -> float:
    """Nanoseconds of one k tile of each of an SM's CTAs, `together` of them."""
    clocks = together * x.tile[0] * x.tile[1] * x.tile[2] / (FMA_PER_CLOCK * rate)
    busy = next((share for most, share in BUSY if together * x.warps <= most), 1.0)
    time = clocks / CLOCK / busy
    if x.staged:
        alone = AHEAD_ALONE_NS if x.ahead else ALONE_NS
        time = max(time + (alone if together == 1 else 0.0), L2_NS if x.ahead else DRAM_NS)
    return time
