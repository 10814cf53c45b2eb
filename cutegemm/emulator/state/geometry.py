# SPDX-License-Identifier: Apache-2.0
"""The geometry of a launch, and the special registers that follow from it; what ran how often.

Source: PTX ISA 9.0, 10 (special registers).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.numbers.values import ND

WARP = 32
SMS = 132  # of an H200 (SXM)
Triple = tuple[int, int, int]
# Special registers that the emulator knows; those of clocks besides.
SPECIAL_REGISTERS = frozenset((
    "smid", "nsmid", "gridid", "nwarpid", "warpid", "laneid", "dynamic_smem_size", "total_smem_size",
    "cluster_ctarank", "cluster_nctarank", "is_explicit_cluster", "envreg1", "envreg2",
    *(f"lanemask_{which}" for which in ("eq", "lt", "le", "gt", "ge")),
    *(f"{name}.{axis}" for axis in "xyz" for name in (
        "tid", "ntid", "ctaid", "nctaid", "cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")),
))  # fmt: skip


@dataclass(frozen=True)
class Geometry:
    """Grid in CTAs, block in threads, cluster in CTAs; shared memory in bytes, static with dynamic."""

    grid: Triple
    block: Triple
    cluster: Triple
    static_bytes: int
    dynamic_bytes: int
    # (name, first byte, bytes) of what lies in dynamic shared memory, the smallest things first
    shared_parts: tuple[tuple[str, int, int], ...] = field(default=(), compare=False)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return math.prod(self.block)

    @property
    def warps(self) -> int:
        """Warps of a CTA."""
        return -(-self.threads // WARP)

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
        """Special registers that are the same for a whole CTA."""
        special: dict[str, int] = {
            "smid": 0,
            "nsmid": SMS,
            "gridid": 0,
            "nwarpid": 64,
            "cluster_ctarank": rank,
            "dynamic_smem_size": self.dynamic_bytes,
            "total_smem_size": self.shared_bytes,
        }
        size = self.cluster
        special["cluster_nctarank"] = self.cluster_ctas
        special["is_explicit_cluster"] = self.cluster_ctas > 1
        for i, axis in enumerate("xyz"):
            special |= {
                f"ctaid.{axis}": index[i],
                f"nctaid.{axis}": self.grid[i],
                f"ntid.{axis}": self.block[i],
                f"cluster_ctaid.{axis}": index[i] % size[i],
                f"cluster_nctaid.{axis}": size[i],
                f"clusterid.{axis}": index[i] // size[i],
                f"nclusterid.{axis}": self.grid[i] // size[i],
            }
        return special


@dataclass
class BlockCounts:
    """How often each block ran, per tuple of warps that ran in lockstep, summed over CTAs."""

    by_warp: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    # Where some warps of a group were inactive: block -> how often each ran it.
    uneven: dict[tuple[int, ...], dict[int, ND]] = field(default_factory=dict)

    def add(self, warps: tuple[int, ...], counts: list[int], uneven: dict[int, ND]) -> None:
        """A group of warps has ended, or has split."""
        mine = self.by_warp.get(warps)
        self.by_warp[warps] = list(counts) if mine is None else [x + y for x, y in zip(mine, counts)]
        shares = self.uneven.setdefault(warps, {})
        for block, share in uneven.items():
            shares[block] = shares.get(block, np.zeros_like(share)) + share

    def per_block(self, blocks: int) -> list[int]:
        """Warps that ran each block."""
        out = [0] * blocks
        for counts in self.by_warp.values():
            for i, n in enumerate(counts):
                out[i] += n
        return out
