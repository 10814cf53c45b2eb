# SPDX-License-Identifier: Apache-2.0
"""Candidates with K in as many parts as fill the SMs, which meet in a launch of their own or in workspace."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning import edges
from cutegemm.planning.candidates import BLOCK_K, SHIFTED, WIDTHS, Candidate
from cutegemm.planning.cuts import fewest_parts, launched
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, MAX_SPLITS, TILE_N_STEP, GemmSpec

# CTAs of a cluster along M and N that share operands of parts of K, and the depth of a stage
Plane = tuple[tuple[int, int], int]
# D's shorter and longer side where a product's time is that of streaming one operand
STREAMS = (128, 2048)
# where one operand streams from memory, 256 bytes of a row at a time are read 2 % faster than 128 (64 x 4096 x 65536,
# H200), and clusters of four leave SMs idle; and stages that a ring of such depth holds at least
DEEP_SHAPES = tuple((x, BLOCK_K) for x in ((1, 1), (2, 1), (1, 2), (2, 2)))
STREAMED = (((1, 1), BLOCK_K), ((1, 1), 2 * BLOCK_K), ((2, 1), BLOCK_K), ((1, 2), BLOCK_K))
DEEP_STAGES = 4
# the same where threads load: no cluster shares what they bring
SHIFTED_SHAPES = (((1, 1), BLOCK_K), ((1, 1), 2 * BLOCK_K))


def spread(
    spec: GemmSpec,
    problem: Problem,
    device: Device,
    found: Sequence[Candidate],
    *,
    gathers: bool = False,
    fits: bool = True,
) -> Iterator[Candidate]:
    """Of candidates those of whole K, with K in as many parts as bring their tiles to all SMs at once (`launched`).

    Those meet in a launch of their own, or in workspace where the spec says so. Parts are no more than the longest
    one's stages ask for: what they leave has to be added up.

    Args:
        gathers: whether the producer's threads load an operand.
        fits: whether tiles may have any number of columns.
    """
    if not launched(spec, problem, device, gathers):
        return
    reduction = "launch" if spec.split_reduction == AUTO else spec.split_reduction
    planes = STREAMED if streams(problem) else (*DEEP_SHAPES, *edges.eights(problem))
    if gathers:
        planes = SHIFTED_SHAPES
    sliced = edges.LEAST_SLICED if edges.uneven(problem, device) else edges.LARGEST
    rows, columns, batch = problem.m, problem.n, problem.batch
    tallest, widest = 2 * max(rows, 32), 2 * max(columns, 32)
    lone = [x for x in found if x.schedule == "cooperative" and x.cluster == (1, 1) and x.splits == 1]
    if fits and problem.b.unit_row:
        lone += _fitting(lone, columns, 2 if gathers else 1)
    steps = {depth: -(-problem.k // depth) for _, depth in planes}
    for whole, along_m, along_n, resident in _planed(tuple(lone), planes, device, gathers, sliced):
        tile, cluster, schedule, consumers, *_ = whole
        if tile[0] >= tallest or tile[1] >= widest:
            continue
        tiles = -(-rows // along_m) * -(-columns // along_n) * batch
        most = min(MAX_SPLITS, steps[tile[2]], resident // tiles)
        if most > 1:
            parts = fewest_parts(steps[tile[2]], most)
            yield Candidate(tile, cluster, schedule, consumers, parts, 1, reduction)


# a plan weighs some hundred of these: what does not change from problem to problem is worked out once
@functools.lru_cache(64)
def _planed(
    found: tuple[Candidate, ...], planes: tuple[Plane, ...], device: Device, gathers: bool, sliced: int
) -> list[tuple[Candidate, int, int, int]]:
    """Candidates in the clusters and depths that parts of K may have; rows and columns that such a cluster covers; and
    how many of them are resident.

    Args:
        gathers: whether the producer's threads load an operand.
        sliced: columns from which on a tile may have any number of them.
    """
    planed = []
    for x in found:
        m, n, _ = x.tile
        # too few columns for CTAs of a cluster to have whole slices
        narrow = n % 32 and n < (min(sliced, edges.LEAST_PAIRED) if m <= edges.SLICED_ROWS else sliced)
        large = m * n > edges.EIGHT_ELEMENTS
        for plane, depth in planes:
            if (narrow and plane != (1, 1)) or (large and plane in edges.EIGHTS):
                continue
            if depth > BLOCK_K and gathers and m + n > SHIFTED:
                continue
            # of 16-bit operands
            if depth > BLOCK_K and DEEP_STAGES * 2 * (m + n) * depth > device.limits.smem_bytes:
                continue
            whole = x._replace(tile=(m, n, depth), cluster=plane)
            planed.append((whole, m * plane[0], n * plane[1], device.resident_clusters(math.prod(plane))))
    return planed


def _fitting(found: Sequence[Candidate], columns: int, halves: int) -> list[Candidate]:
    """Tiles like some, of all of few columns or of half of them; `halves`: of twice as many columns, too.

    2088 x 24 x 7712 takes 11.3 us in 64 x 24 in four parts, 11.9 in 64 x 32; with both operands shifted
    175 x 135 x 13681 10.9 in 64 x 72 in 22 (H200).
    """
    if columns > halves * STREAMS[0]:
        return []
    fitting = {round_up(-(-columns // x), TILE_N_STEP) for x in (1, 2)}
    widths = {x for x in fitting if x <= STREAMS[0]} - set(WIDTHS)
    narrowest = [x for x in found if x.tile[1] == WIDTHS[-1]]
    return [x._replace(tile=(x.tile[0], n, x.tile[2])) for n in sorted(widths) for x in narrowest]


def streams(problem: Problem) -> bool:
    """Whether D is so narrow and long that the time is that of reading one operand."""
    short, long = sorted((problem.m, problem.n))
    return short <= STREAMS[0] and long >= STREAMS[1]
