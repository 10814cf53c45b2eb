# SPDX-License-Identifier: Apache-2.0
"""The order of clusters by GPC, and the blocks of tiles that those of a GPC compute."""

from __future__ import annotations

import itertools

import pytest

from cutegemm.arch.records import H100, H200
from cutegemm.plans import gpcs


@pytest.mark.parametrize("size", H200.gpcs)
def test_clusters_of_a_gpc_follow_one_another(size):
    """However many clusters a launch has, each place is taken once, and each GPC has places without a gap."""
    all_of = H200.gpcs[size]
    assert len(all_of) == H200.resident_clusters(size)
    for count in range(1, len(all_of) + 1):
        order = gpcs.order(all_of, count)
        assert sorted(order) == list(range(count))
        there = [all_of[cluster] for cluster in sorted(range(count), key=lambda x: order[x])]
        assert [gpc for gpc, _ in itertools.groupby(there)] == sorted(set(there))


def test_a_record_without_gpcs_has_none():
    """GPCs were measured on an H200 alone."""
    assert not H100.gpcs and gpcs.in_one(()) == 1


def test_a_gpc_holds_its_share_of_clusters():
    """An eighth of them, or fewer where a GPC holds no large clusters."""
    assert [gpcs.in_one(H200.gpcs[size]) for size in (1, 2, 4)] == [16, 8, 3]


@pytest.mark.parametrize(
    ("tiles", "extents", "cluster", "clusters", "expected"),
    [
        # a square of equal tiles, as far as there are tiles
        ((16, 16), (128, 128), (1, 1), 16, 4),
        ((2, 16), (128, 128), (1, 1), 16, 2),
        ((16, 2), (128, 128), (1, 1), 16, 8),
        # narrow rows of tiles are worth less than wide columns
        ((16, 16), (64, 256), (1, 1), 16, 8),
        ((16, 16), (256, 64), (1, 1), 16, 2),
        # what clusters share by multicast is requested by each of them: columns, rows, both
        ((16, 16), (128, 128), (2, 1), 8, 1),
        ((16, 16), (128, 128), (1, 2), 8, 8),
        ((7, 3), (64, 176), (1, 2), 8, 7),
        ((16, 16), (128, 128), (2, 2), 4, 1),
    ],
)
def test_a_block_requests_the_fewest_bytes(tiles, extents, cluster, clusters, expected):
    """Its height in clusters."""
    assert gpcs.block_height(tiles, extents, cluster, clusters) == expected
