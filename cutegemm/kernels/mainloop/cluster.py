# SPDX-License-Identifier: Apache-2.0
"""A CTA's place in its cluster, and the CTAs that it shares operand tiles with.

Ranks count along M fastest, then along N, then along K where a cluster splits it. The CTAs of a cluster row (equal
m) need one tile of A, those of a cluster column (equal n) one of B: each loads a share of it, or every few k tiles all
of it, and multicasts that to the others (`config.stage.StageItem.shares`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute


@dataclass(frozen=True)
class Peers:
    """The CTAs that need the same tile: this one's number among them, their count, and the multicast mask of all."""

    place: Any
    count: int
    mask: Any


@dataclass(frozen=True)
class Place:
    """A CTA's place in its cluster."""

    cluster: tuple[int, int]
    rank: Any
    m: Any
    n: Any
    split: Any  # the number of its split of K; 0 if the cluster does not split K

    @staticmethod
    def create(cluster: tuple[int, int], splits: int) -> Place:
        """The executing CTA's place in a cluster of (m, n) x splits CTAs."""
        none = cutlass.Int32(0)
        if (*cluster, splits) == (1, 1, 1):
            return Place(cluster, none, none, none, none)
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
        if splits == 1:
            return Place(cluster, rank, rank % cluster[0], rank // cluster[0], none)
        split = rank // (cluster[0] * cluster[1])
        plane = rank - split * (cluster[0] * cluster[1])
        return Place(cluster, rank, plane % cluster[0], plane // cluster[0], split)

    @property
    def _plane(self) -> Any:
        """Rank of the first CTA of this one's split."""
        return self.split * (self.cluster[0] * self.cluster[1])

    def rank_of_split(self, split: Any) -> Any:
        """Rank of the CTA that sums another split of K of the same tile."""
        return self.m + self.n * self.cluster[0] + split * (self.cluster[0] * self.cluster[1])

    def sharing(self, axis: str) -> Peers:
        """The CTAs that share this one's tile of a matrix whose rows lie along axis "m" or "n"."""
        size_m, size_n = self.cluster
        if axis == "m":
            row = sum(1 << (j * size_m) for j in range(size_n))
            return Peers(self.n, size_n, cutlass.Int16(row << (self._plane + self.m)))
        column = (1 << size_m) - 1
        return Peers(self.m, size_m, cutlass.Int16(column << (self._plane + self.n * size_m)))

    @property
    def writers(self) -> int:
        """How many CTAs write into this CTA's stages: those of its cluster row and column, itself counted once."""
        return self.cluster[0] + self.cluster[1] - 1

    def writer(self, lane: Any) -> Any:
        """Rank of the lane-th of `writers`: the cluster row first, then the other CTAs of the column."""
        size_m, size_n = self.cluster
        below = lane - size_n
        other_row = below + cutlass.Int32(below >= self.m)
        in_row = cutlass.Int32(lane < size_n)
        return in_row * (self._plane + self.m + lane * size_m) + (1 - in_row) * (
            other_row + self.rank - self.m
        )
