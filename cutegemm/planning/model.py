# SPDX-License-Identifier: Apache-2.0
"""In which order a kernel's clusters take D's tiles."""

from __future__ import annotations

import math

from cutegemm.planning.candidates import Candidate
from cutegemm.problems import Problem

# clusters across a panel of the walk, and of wide tiles by turns
PANEL = 8
TURNS_PANEL = 4
# columns of a tile, and rows of a cluster's, that make it wide
WIDE = 160
PAIR_ROWS = 256
# the tile of kernels without a producer whose panels lie along N, so that other SMs share lines of L2, and K up to
# which they do: at 1024 x 1024 x 65536 they take 295 us, along M 226 (H200)
WALKED = (64, 128, 64)
WALKED_K = 2048


def raster_for(problem: Problem, found: Candidate) -> tuple[str, int]:
    """Panels of eight clusters along M (or all there are): measured best or within 1 % on large products.

    In tiles of 128 x 256 that two consumers share, in pairs, panels of four take 0.3 to 2.5 % longer on all of nine
    products of 350 us and more (H200), 0.4 to 4 % on five (H100), and panels of sixteen or along N as long. Where
    consumers take turns on wide tiles in pairs it is panels of four: 8191^3 takes 1,601 us in 128 x 192, in panels of
    eight 1,654 and of sixteen 1,698; 8 x 2048 x 2048 x 1024 in 128 x 160 101 and 110 (H200).
    """
    short = problem.k <= WALKED_K and problem.batch == 1
    if short and found.schedule == "multistage" and found.tile == WALKED:
        # 1000 x 1001 x 1003 takes 10.1 us, along M 11.1; 1023^3 10.9 and 11.9 (H200)
        return "n", max(1, min(PANEL, math.ceil(problem.n / found.tile[1])))
    rows = found.tile[0] * found.cluster[0]
    wide = found.tile[1] >= WIDE and rows >= PAIR_ROWS
    panel = TURNS_PANEL if wide and found.schedule == "pingpong" else PANEL
    return "m", max(1, min(panel, math.ceil(problem.m / rows)))
