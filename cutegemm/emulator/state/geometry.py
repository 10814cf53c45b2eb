# SPDX-License-Identifier: Apache-2.0
"""The geometry of a launch with its special registers, and counts of executed blocks.

Source: PTX ISA 9.0, 10 (special registers).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.types import Mask, Value, Vector

WARP = 32
SMS = 132  # of an H200 (SXM)
SM_THREADS, SM_CTAS, SM_SHARED = 2048, 32, 233_472  # per SM of sm_90, CUDA programming guide, table 28
SHARED_BASE = 0x400  # sm_90 reserves 1 KiB of shared memory for the system (CUDA programming guide, 16.8)
Triple: TypeAlias = tuple[int, int, int]


def occupancy(threads: int, shared_bytes: int) -> int:
    """CTAs that fit on an SM by threads and shared memory; PTX does not tell the registers of a thread."""
    warps = -(-threads // WARP) * WARP
    return max(1, min(SM_CTAS, SM_THREADS // warps, SM_SHARED // (shared_bytes + SHARED_BASE)))


@dataclass(frozen=True)
class Geometry:
    """Grid in CTAs, block in threads, cluster in CTAs; static and dynamic shared memory of a CTA in bytes."""

    grid: Triple
    block: Triple
    cluster: Triple
    static_bytes: int
    dynamic_bytes: int
    # (name, first byte, bytes) of regions of shared memory, the smallest first
    shared_parts: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)

    @functools.cached_property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-math.prod(self.block) // WARP)

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return math.prod(self.grid)

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.static_bytes + self.dynamic_bytes

    def clusters(self) -> Iterator[Triple]:
        """The first CTA of each cluster, one by one: a grid may have 2^63 of them."""
        (gx, gy, gz), (cx, cy, cz) = self.grid, self.cluster
        return ((x, y, z) for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx))

    def special(self, index: Triple, rank: int) -> dict[str, int]:
        """Special registers with one value for a whole CTA."""
        special: dict[str, int] = {
            "smid": 0,
            "nsmid": SMS,
            "gridid": 0,
            "nwarpid": 64,
            "cluster_ctarank": rank,
            "cluster_nctarank": self.cluster_ctas,
            "is_explicit_cluster": self.cluster_ctas > 1,
            "dynamic_smem_size": self.dynamic_bytes,
            "total_smem_size": self.shared_bytes,
        }
        for i, axis in enumerate("xyz"):
            size = self.cluster[i]
            special |= {
                f"ctaid.{axis}": index[i],
                f"nctaid.{axis}": self.grid[i],
                f"ntid.{axis}": self.block[i],
                f"cluster_ctaid.{axis}": index[i] % size,
                f"cluster_nctaid.{axis}": size,
                f"clusterid.{axis}": index[i] // size,
                f"nclusterid.{axis}": self.grid[i] // size,
            }
        return special


class LaneFacts(NamedTuple):
    """Constants of the lanes of some warps."""

    lane: npt.NDArray[np.uint32]  # number within the warp
    leaders: Vector  # true for lane 0
    exists: Mask  # false beyond the last thread of the CTA; None if there is no such lane
    special: dict[str, Value]  # special registers


@functools.lru_cache(256)
def lane_facts(warps: tuple[int, ...], block: Triple) -> LaneFacts:
    """Lane numbers and special registers of some warps of a CTA."""
    linear = np.concatenate([np.arange(WARP, dtype=np.uint32) + np.uint32(WARP * w) for w in warps])
    bx, by, bz = block
    threads = math.prod(block)
    lane = linear % np.uint32(WARP)
    one_hot = np.uint32(1) << lane
    below = one_hot - np.uint32(1)
    special: dict[str, Value] = {
        "laneid": lane,
        "warpid": warps[0] if len(warps) == 1 else linear // np.uint32(WARP),
        "tid.x": linear % np.uint32(bx) if by * bz > 1 else linear,
        "tid.y": linear // np.uint32(bx) % np.uint32(by) if by > 1 else 0,
        "tid.z": linear // np.uint32(bx * by) if bz > 1 else 0,
        "lanemask_eq": one_hot,
        "lanemask_lt": below,
        "lanemask_le": one_hot | below,
        "lanemask_gt": ~(one_hot | below),
        "lanemask_ge": ~below,
    }
    exists = linear < threads if int(linear[-1]) >= threads else None
    return LaneFacts(lane, lane == 0, exists, special)


@dataclass
class BlockCounts:
    """How often each block ran, for each tuple of warps that ran in lockstep, summed over CTAs."""

    by_warp: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    # block -> how often each warp ran it while others of its group were inactive
    uneven: dict[tuple[int, ...], dict[int, npt.NDArray[np.int64]]] = field(default_factory=dict)

    def add(self, warps: tuple[int, ...], counts: list[int], uneven: dict[int, np.ndarray]) -> None:
        """A group of warps has ended, or has split."""
        mine = self.by_warp.get(warps)
        self.by_warp[warps] = list(counts) if mine is None else [x + y for x, y in zip(mine, counts)]
        shares = self.uneven.setdefault(warps, {})
        for block, share in uneven.items():
            shares[block] = shares.get(block, np.zeros_like(share)) + share

    def per_block(self, blocks: int) -> list[int]:
        """Warps that ran each block."""
        return [sum(column) for column in zip([0] * blocks, *self.by_warp.values())]


# All special registers of the emulator except clocks.
SPECIAL_REGISTERS = frozenset((
    "envreg1", "envreg2", *lane_facts((0,), (WARP, 1, 1)).special,
    *Geometry((1, 1, 1), (WARP, 1, 1), (1, 1, 1), 0, 0).special((0, 0, 0), 0),
))  # fmt: skip
