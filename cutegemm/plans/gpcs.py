# SPDX-License-Identifier: Apache-2.0
"""Which clusters of a launch run in one GPC, and which of their loads L2 sees once.

An idle GPU places the clusters of a launch on its GPCs in turn, and the CTAs of a launch without clusters on one GPC
after another. The SMs of a GPC request lines of L2 through a coalescer: if several SMs request a line while the first
request is under way, L2 sees one (Nsight Compute documentation, L2 request coalescer). So clusters of a GPC should
compute tiles that share operands. Multicast requests of different clusters are not merged. If clusters run elsewhere
than assumed, the order costs speed, never correctness (`gpcs.json` and `placement.json` in
`benchmarks/results/before_after`).
"""

from __future__ import annotations

from collections.abc import Sequence

# heights of a block of clusters, in clusters along M, that are compared
HEIGHTS = (1, 2, 4, 8, 16)
# SMs that most GPCs have (Hopper whitepaper: at most 18)
CTAS = 16


def order(gpcs: Sequence[int], count: int) -> tuple[int, ...]:
    """The place of each cluster of a launch if those of a GPC follow one another: a permutation of range(count).

    Args:
        gpcs: GPC of each cluster in the order of a launch (`Device.gpcs`), at least `count`.
        count: clusters of the launch.
    """
    found = [0] * count
    for place, cluster in enumerate(sorted(range(count), key=gpcs.__getitem__)):
        found[cluster] = place
    return tuple(found)


def in_one(gpcs: Sequence[int]) -> int:
    """Clusters that most GPCs run at once, of GPCs in the order of a launch."""
    each = sorted(map(gpcs.count, set(gpcs)))
    return each[len(each) // 2]


def block_height(
    tiles: tuple[int, int], extents: tuple[int, int], cluster: tuple[int, int], clusters: int
) -> int:
    """Clusters along M of the block that a GPC's clusters should compute: L2 then delivers the fewest bytes.

    Panels of that height are equal, but for rounding.

    Args:
        tiles: clusters of the launch along (M, N).
        extents: rows of A and columns of B that a cluster loads.
        cluster: CTAs along (M, N). Those along N share rows by multicast, those along M columns.
        clusters: of the block.
    """

    def even(height: int) -> int:
        panels = -(-tiles[0] // min(height, clusters))
        return -(-tiles[0] // panels)

    def seen(height: int) -> float:
        wide = min(-(-clusters // height), tiles[1])
        return extents[0] / (1 if cluster[1] > 1 else wide) + extents[1] / (1 if cluster[0] > 1 else height)

    return min(map(even, HEIGHTS), key=seen)
