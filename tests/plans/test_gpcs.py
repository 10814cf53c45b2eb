# SPDX-License-Identifier: Apache-2.0
"""The order of clusters by GPC, and the blocks of tiles that those of a GPC compute."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from cutegemm.arch import records
from cutegemm.arch.records import H100, H200, KERNELS_FILE
from cutegemm.plans import gpcs

BEFORE_AFTER = Path(__file__).parents[2] / "benchmarks" / "results" / "before_after"


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


@pytest.mark.parametrize("gpu", [H100, records.find("NVIDIA H200", sms=78), records.find("another", sms=132)])
def test_other_gpus_have_neither_gpcs_nor_factors_of_splits(gpu):
    """GPCs were measured on an H200 alone, and the H200's factors of splits are of clusters with places by GPC."""
    assert not gpu.gpcs
    own = json.loads(KERNELS_FILE.read_text()).get(gpu.name, {"kernels": {}})["kernels"]
    assert {x for x in gpu.kernels if x.endswith(" launch")} <= own.keys()


def test_a_gpc_holds_its_share_of_clusters():
    """Those of most GPCs: the first holds half as many clusters of four, two have another pair of SMs."""
    assert [gpcs.in_one(H200.gpcs[size]) for size in (1, 2, 4)] == [16, 8, 4]


def test_the_h200s_gpcs_are_the_measured_ones():
    """The SMs whose requests L2 sees once are the SMs of one GPC, by the SMs of the CTAs of a launch in pairs."""
    measured = json.loads((BEFORE_AFTER / "gpcs.json").read_text())
    sms = measured["placed"]["sms"]
    of = {sm: H200.gpcs[2][i // 2] for i, sm in enumerate(sms)}
    for sm, merged in measured["merged"]["with"].items():
        # `placement.json` says which GPC has each of the last four SMs
        assert {x for x in sms[:-4] if of[x] == of[int(sm)]} == {int(sm), *merged}


def test_launches_without_clusters_fill_one_gpc_after_another():
    """The SMs of their CTAs in the order of the launch, by the GPCs that pairs of CTAs have on these SMs."""
    pairs = json.loads((BEFORE_AFTER / "gpcs.json").read_text())["placed"]["sms"]
    of = {sm: H200.gpcs[2][i // 2] for i, sm in enumerate(pairs)}
    alone = json.loads((BEFORE_AFTER / "placement.json").read_text())["placed"]["sms"]
    assert tuple(of[sm] for sm in alone) == H200.gpcs[1] == tuple(sorted(H200.gpcs[1]))


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
        # panels are equal
        ((9, 6), (64, 88), (1, 2), 8, 5),
    ],
)
def test_a_block_requests_the_fewest_bytes(tiles, extents, cluster, clusters, expected):
    """Its height in clusters."""
    assert gpcs.block_height(tiles, extents, cluster, clusters) == expected
