# SPDX-License-Identifier: Apache-2.0
"""Products whose time is decided by what tiles leave over: at D's edges and in their last wave.

Where the largest tile has few waves, a tile a little narrower or taller may save one, or a seventh of the padding. So
more of them are weighed there, if the tensor cores work for so long that beginning and end count for little: of short
products the model does not tell likes apart (sampled shapes, H200).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutegemm.arch.device import Device
from cutegemm.problems import Problem

# elements of the largest tile of two consumers; extent along K of a stage, as `TimeModel.mma` counts
LARGEST = 128 * 256
STAGE_K = 64
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
# of 160 accumulators a thread: 448 x 10400 x 3432 takes 59.6 us so in 1 x 2, 63.1 in two waves of 128 x 160 (H200)
TALL = (256, 160)
TALL_CLUSTERS = ((2, 1), (1, 1), (1, 2))


def uneven(problem: Problem, device: Device) -> bool:
    """Whether a product is one of these."""
    elements = problem.m * problem.n * problem.batch
    ns = device.time.mma * elements * (problem.k / STAGE_K) / device.sms
    return elements <= FEW_WAVES * device.sms * LARGEST and ns >= LONG_NS


def shapes(widths: Sequence[int]) -> Iterator[tuple[int, int, tuple[int, int], str]]:
    """Rows, columns, cluster and schedule of the tiles to weigh there, of the usual widths and more."""
    for m, cluster in SHAPES:
        for n in (*widths, *WIDTHS):
            if n >= LEAST_COLUMNS and m * n <= LARGEST:
                yield m, n, cluster, "cooperative"
    yield from ((*TALL, cluster, "cooperative") for cluster in TALL_CLUSTERS)
