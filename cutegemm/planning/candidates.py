# SPDX-License-Identifier: Apache-2.0
"""Candidates of tensor-core kernels: everything that is chosen together. The rest of a kernel follows from it.

`given_tile` and `cut` define the meaning of given fields. `kinds` and `tiles` enumerate what a spec allows beyond the
generator's table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from cutegemm.arch.limits import Limits
from cutegemm.config import KernelConfig
from cutegemm.config.invariants.tiles import rows_step
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, PINGPONG_CONSUMERS, TILE_N_STEP, GemmSpec, Tile

# elements: 128 bytes, one row of the 128-byte swizzle
BLOCK_K = 64
TENSOR_CORE_SCHEDULES = ("cooperative", "pingpong", "multistage")
# consumer warpgroups that share a tile, best first
TEAMS = (2, 3, 1)
# passes over a tile's rows that any number of accumulators allows
MAX_PASSES = 24
# how splits are reduced that no cluster reduces, in words
ADDED = {"workspace": "in workspace", "launch": "by a launch", "atomic": "as they come"}
# reductions that equal "cluster" if one cluster reduces all splits; a launch would be empty and is refused
NOTHING_LEFT = ("workspace", "atomic")
# the tile of a kind of candidate
NO_TILE = (0, 0, 0)


class Candidate(NamedTuple):
    """A kernel's tile, cluster, schedule, consumers and splits of K."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    schedule: str
    consumers: int
    splits: int = 1
    # splits that a cluster reduces, and how all are reduced (`KernelConfig.split_reduction`)
    depth: int = 1
    reduction: str = "none"

    @classmethod
    def of(cls, config: KernelConfig) -> Candidate:
        """The candidate that a kernel comes from."""
        schedule = "pingpong" if config.pingpong else "cooperative" if config.producers else "multistage"
        parts = config.splits, config.cluster_splits, "none" if config.streamed else config.split_reduction
        return cls(config.tile, config.cluster, schedule, config.consumers, *parts)

    @property
    def pingpong(self) -> bool:
        """Whether each consumer has tiles of its own."""
        return self.schedule == "pingpong"

    @property
    def team(self) -> int:
        """Consumer warpgroups that share a tile."""
        return 1 if self.pingpong else self.consumers

    def tiles(self, problem: Problem) -> int:
        """CTA tiles of a problem, over all batches."""
        m, n, _ = self.tile
        return -(-problem.m // m) * -(-problem.n // n) * problem.batch

    def __str__(self) -> str:
        how = "" if self.schedule == "cooperative" else f", {self.schedule}"
        parts = "" if self.splits == 1 else f", {self.splits} splits of K"
        if self.reduction in ADDED:
            parts += f", {self.depth} a cluster" if self.depth > 1 else ""
            parts += f", added {ADDED[self.reduction]}"
        return f"tile {self.tile}, cluster {self.cluster}{how}{parts}"


def given(value: int | str, default: int) -> int:
    """A field's number, or the default if it is unspecified."""
    return value if isinstance(value, int) else default


def given_tile(spec: GemmSpec, limits: Limits, halves: int) -> Candidate:
    """The candidate of a spec that gives its tile: of the first kind whose warpgroups share its rows evenly, if any.

    Args:
        halves: accumulator rows per row of the output.
    """
    assert isinstance(spec.tile, Tile)
    m, n, k = spec.tile
    found = list(kinds(spec, limits))
    even = (x for x in found if m % rows_step(limits, x.team, halves) == 0)
    return next(even, found[0])._replace(tile=(m, n, k))


def fewest_splits(spec: GemmSpec) -> int:
    """The splits of a spec's cluster, and twice as many with a reduction launch, which adds sums of two clusters."""
    depth = spec.depth or 1
    return 2 * depth if depth > 1 and spec.split_reduction == "launch" else depth


def given_splits(spec: GemmSpec) -> int:
    """The spec's splits of K: `split_k`, else the fewest."""
    return given(spec.split_k, fewest_splits(spec))


def cut(spec: GemmSpec, whole: Candidate, parts: int, limits: Limits) -> Candidate:
    """A candidate with so many splits of K, reduced as the spec says.

    By default a cluster reduces them if it holds all; else a launch reduces the sums of the largest clusters possible.
    A cluster that holds all splits reduces them also if the spec says workspace or atomics.
    """
    if parts == 1:
        return whole._replace(depth=spec.depth or 1)
    reduction, fits = spec.split_reduction, 1
    if reduction == AUTO:
        room = limits.max_cluster // math.prod(whole.cluster)
        reduction = "cluster" if parts <= (spec.depth or room) else "launch"
        # the cluster's extents depend on M, and the order of additions must not
        if spec.batch_invariant is not True:
            fits = max(x for x in range(1, room + 1) if parts % x == 0)
    depth = spec.depth or (parts if reduction == "cluster" else fits)
    if depth == parts and reduction in NOTHING_LEFT:
        reduction = "cluster"
    return whole._replace(splits=parts, depth=depth, reduction=reduction)


def schedules(spec: GemmSpec) -> tuple[str, ...]:
    """The schedules of tensor-core kernels that a spec allows."""
    return (spec.schedule,) if spec.schedule in TENSOR_CORE_SCHEDULES else TENSOR_CORE_SCHEDULES


def kinds(spec: GemmSpec, limits: Limits) -> Iterator[Candidate]:
    """The kinds of candidates that a spec's given fields allow, with `NO_TILE` as their tile."""
    for schedule in schedules(spec):
        for consumers in _teams(spec, schedule):
            found = Candidate(NO_TILE, spec.plane or (1, 1), schedule, consumers)
            yield cut(spec, found, given_splits(spec), limits)


def tiles(
    spec: GemmSpec, limits: Limits, elements: int, rows: int, gates: int = 1, depth: int = 0
) -> Iterator[tuple[int, int, int]]:
    """Tiles of at most so many elements, or the given one; of several passes only if a spec gives buffers.

    Args:
        elements: rows times columns that the consumers' registers hold.
        rows: of a pass of all consumers that share a tile.
        gates: 2 where a tile holds equally many columns of two halves of B.
        depth: of every tile; 0 allows several.
    """
    if isinstance(spec.tile, Tile):
        if spec.tile.m % rows == 0:
            yield spec.tile.m, spec.tile.n, spec.tile.k
        return
    buffers = isinstance(spec.epilogue_stages, int) or isinstance(spec.input_stages, int)
    step, most = TILE_N_STEP * gates, MAX_PASSES if buffers else 1
    for k in (depth,) if depth else (64, 48, 32, 16):
        for n in range(limits.mma_max_n // step * step, 0, -step):
            for count in range(1, min(most, elements // (rows * n)) + 1):
                yield rows * count, n, k


def _teams(spec: GemmSpec, schedule: str) -> tuple[int, ...]:
    """Consumer warpgroups of a schedule that the given fields allow, best first."""
    if schedule == "pingpong":
        fits = spec.consumers in (AUTO, PINGPONG_CONSUMERS) and spec.scheduler != "per_tile"
        return (PINGPONG_CONSUMERS,) if fits else ()
    if schedule == "multistage" and spec.plane not in (None, (1, 1)):
        return ()
    return (spec.consumers,) if isinstance(spec.consumers, int) else TEAMS
