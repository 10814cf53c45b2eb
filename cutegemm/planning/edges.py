# SPDX-License-Identifier: Apache-2.0
"""Candidates beside the usual ones: for what tiles leave over, and for operands that are seldom read.

Where the largest tile has few waves, a tile a little narrower or taller may save one, or a seventh of the padding. So
more of them are weighed there, if the tensor cores work for so long that beginning and end count for little. Where rows
of operands straddle lines of L2, and of very deep K, clusters of four and eight are. Of a vast D the largest tile that
registers hold is, as the power that bytes take is taken from the tensor cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning.operands import L2_LINE
from cutegemm.problems import Operand, Problem

# elements of the largest tile of two consumers; extent along K of a stage, as `TimeModel.mma` counts
LARGEST = 128 * 256
STAGE_K = 64
# D's shorter side up to which the other operand streams: one that several clusters ask for at once takes longer than
# what is left over (256 x 6144 x 4096 24.3 us in 128 x 96 in pairs along M, 27.3 along N, H200)
STREAMED_SIDE = 256
# waves of it at most, and nanoseconds of the tensor cores at least
FEW_WAVES = 2
LONG_NS = 15_000.0
# columns beside the usual ones: 6488 x 976 x 3320 takes 70.6 us in 128 x 208 in pairs, 76.8 in 128 x 224 (H200)
WIDTHS = (240, 208)
LEAST_COLUMNS = 96
# columns from which on a tile in clusters need not have whole groups of 32: 2680 x 1056 x 2928 takes 26.7 us in
# 128 x 176 in pairs, 30.8 in 128 x 192 (H200)
LEAST_SLICED = 112
# rows and clusters, also along N: 128 x 96 takes 121 us so at 2632 x 544 x 23440, 155 along M (H200)
SHAPES = ((128, (2, 1)), (128, (1, 1)), (128, (1, 2)), (256, (1, 2)))
# clusters of consumers that take turns: 13584 x 376 x 1896 takes 37.5 us swapped in 128 x 176 so, 39.4 in 128 x 192 in
# 2 x 2 and 39.7 in pairs along M (H200)
TURNS_CLUSTER = (1, 4)
# of 160 accumulators a thread: 448 x 10400 x 3432 takes 59.6 us so in 1 x 2, 63.1 in two waves of 128 x 160 (H200)
TALL = (256, 160)
TALL_CLUSTERS = ((2, 1), (1, 1), (1, 2))
# clusters of small tiles that share operands of rows that straddle lines of L2: of D's shorter side all CTAs ask for
# the same lines at once. 8720 x 168 x 440 takes 6.4 us swapped in 192 x 80 in 1 x 4, 7.2 in pairs along N;
# 48 x 13760 x 504 6.4 in 64 x 128 in 1 x 4, 7.1 alone; 96 x 3336 x 1432 6.3 swapped in 64 x 48 in 2 x 2, 9.0 in 64 x 64
# in pairs; 6648 x 176 x 3568 20.0 in 128 x 96 in 2 x 2, 23.3 in 64 x 192 in pairs (H200)
SHARED_SHAPES = (
    (64, (1, 2), 16),
    (128, (1, 2), 32),
    *((m, x, 32) for m in (64, 128) for x in ((2, 2), (1, 4), (4, 1))),
    (192, (1, 4), 64),
)
MOST_SHARED = 128
# K from which on that is worth their launch
SHARED_K = 256
# columns from which on pairs along M need not have whole groups of 32
LEAST_PAIRED = 48
# rows of tiles for which that holds of parts of K, too: 112 x 1008 x 5024 takes 8.2 us in 64 x 80 in 2 x 2, 9.0 in
# 64 x 96, 152 x 512 x 6288 7.3 swapped and 7.8, 248 x 80 x 3808 5.0 in 2 x 1 and 6.0, 328 x 72 x 10408 7.4 in 64 x 48
# and 8.1 in 64 x 64; of more rows 5088 x 152 x 22264 79.4 in 256 x 80, 77.9 in 128 x 160 (H200)
SLICED_ROWS = 64
# columns whose multiples clusters of so many CTAs along M share
SLICES = {1: 16, 2: 16, 4: 32}
# clusters of eight with parts of K, from which K on, and elements of their tiles at most, which read operands often:
# 256 x 256 x 32768 takes 14.2 us so and 14.6 in fours, 320 x 744 x 28704 29.8 and 30.5, 512 x 512 x 8192 12.8 and 12.5
# (H200)
EIGHTS = ((2, 4), (4, 2))
EIGHTS_K = 16_384
EIGHT_ELEMENTS = 64 * 192
# the tile of most rows and columns whose sums fit in the registers of two consumers, its cluster, and waves of it from
# which on bytes count for more than what is left over: 16384^3 takes 12,438 us so and 12,842 in 128 x 256 in pairs,
# 8192 x 57344 x 8192 10,873 and 11,010; 8192 x 10240 x 8192, of 13 waves, 2,018 and 1,993 (H200)
VAST_TILE = (256, 192)
VAST_CLUSTER = (1, 2)
VAST_WAVES = 36


def vast(problem: Problem, device: Device) -> bool:
    """Whether D has so many of the largest tiles that reading operands less often is worth one more wave."""
    m, n = VAST_TILE
    return -(-problem.m // m) * -(-problem.n // n) * problem.batch >= VAST_WAVES * device.sms


def eights(problem: Problem) -> Iterator[tuple[tuple[int, int], int]]:
    """Clusters of eight for parts of K, and the depth of their stages."""
    if problem.k >= EIGHTS_K:
        yield from ((x, STAGE_K) for x in EIGHTS)


def uneven(problem: Problem, device: Device) -> bool:
    """Whether a product is long and of few waves of the largest tile, so that what tiles leave over is much."""
    elements = problem.m * problem.n * problem.batch
    if min(problem.m, problem.n) <= STREAMED_SIDE:
        return False
    ns = device.time.mma * elements * (problem.k / STAGE_K) / device.sms
    return elements <= FEW_WAVES * device.sms * LARGEST and ns >= LONG_NS


def shared(problem: Problem, device: Device) -> bool:
    """Whether operands are worth sharing among four: of one wave, whose rows straddle lines of L2, and of some K."""
    if problem.k < SHARED_K:
        return False
    few = problem.m * problem.n * problem.batch <= device.sms * LARGEST
    return few and (straddles(problem.a) or straddles(problem.b))


def straddles(operand: Operand) -> bool:
    """Whether 128-byte rows of a box lie across two lines of L2; a copy's rows begin at whole lines."""
    leading = operand.strides[0] if operand.unit_col else operand.strides[1]
    return operand.tma_reason() is None and leading * operand.dtype.bytes % L2_LINE != 0


def shared_shapes(widths: Sequence[int]) -> Iterator[tuple[int, int, tuple[int, int], str]]:
    """Rows, columns, cluster and schedule of tiles whose clusters take their operands from L2 seldom."""
    for m, cluster, least in SHARED_SHAPES:
        for n in widths:
            if least <= n <= MOST_SHARED and n % SLICES[cluster[0]] == 0:
                yield m, n, cluster, "cooperative"


def shapes(widths: Sequence[int]) -> Iterator[tuple[int, int, tuple[int, int], str]]:
    """Rows, columns, cluster and schedule of tiles for an `uneven` product, of the usual widths and more."""
    for m, cluster in SHAPES:
        for n in (*widths, *WIDTHS):
            if n >= LEAST_COLUMNS and m * n <= LARGEST:
                yield m, n, cluster, "cooperative"
    yield from ((*TALL, cluster, "cooperative") for cluster in TALL_CLUSTERS)
