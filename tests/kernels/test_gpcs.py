# SPDX-License-Identifier: Apache-2.0
"""Clusters that take work tiles by GPC compute each split of each tile once, wherever the GPCs lie."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.arch.records import H200
from cutegemm.compiling import kernel_cache
from cutegemm.config.smem_budget import smem_bytes
from cutegemm.emulator import Options
from cutegemm.gemm import Gemm
from cutegemm.launch_layout import layout_of
from cutegemm.planning.planner import plan
from cutegemm.plans import gpcs
from cutegemm.running import run as path
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced
SPLITS = GemmSpec(tile=Tile(64, 64, 64), cluster=(1, 1), swap=False, split_k=3, split_reduction="launch")
PAIRS = dataclasses.replace(SPLITS, cluster=(2, 1))


def scattered(size: int) -> tuple[int, ...]:
    """GPCs of clusters in an order that no GPU has."""
    return tuple(random.Random(size).choices(range(5), k=H200.resident_clusters(size)))


def factors(m: int, n: int, k: int) -> list[torch.Tensor]:
    """A and B."""
    generator = torch.Generator().manual_seed(m + k)
    return [torch.randn(*shape, generator=generator).bfloat16() for shape in ((m, k), (k, n))]


@pytest.mark.parametrize("cluster", [(2, 1), (2, 2)])
@pytest.mark.parametrize("reduction", ["launch", "workspace"])
def test_every_split_of_every_tile_is_computed(monkeypatch, cluster, reduction):
    """Without races, in an order of the CTAs that is drawn."""
    known = dataclasses.replace(H200, gpcs={size: scattered(size) for size in (1, 2, 4)})
    monkeypatch.setattr(path, "DEFAULT", known)
    spec = dataclasses.replace(SPLITS, cluster=cluster, split_reduction=reduction)
    a, b = factors(200, 264, 448)
    made = plan(spec, problem(200, 264, 448), known)
    assert made.config.by_gpc and made.steps[0].order != tuple(range(made.steps[0].clusters))
    found = emulator.run(Gemm(spec), a, b, options=Options(races=True, policy="random", seed=1))
    assert not found.findings
    assert_close(found.d, a, b)


def test_batches_and_more_work_than_clusters(monkeypatch):
    """Every place is read, and the clusters' next work tiles begin where the first ones end."""
    known = dataclasses.replace(H200, gpcs={2: scattered(2)})
    monkeypatch.setattr(path, "DEFAULT", known)
    a, b = (torch.stack([x, x.flip(0)]) for x in factors(328, 328, 200))
    made = plan(PAIRS, problem(328, 328, 200, batch=2), known)
    assert made.config.by_gpc and made.steps[0].clusters == 66 and 3 * 36 == made.waves * 66
    assert_close(emulator.run(Gemm(PAIRS), a, b).d, a, b)


@pytest.mark.parametrize("batch", [1, 2])
def test_ctas_without_clusters_are_in_order(batch):
    """A launch gives them no places: they follow one another by GPC, and take the tiles of a split in turn."""
    a, b = (torch.stack([x] * batch) for x in factors(328, 328, 200))
    gemm, _ = plan(SPLITS, problem(328, 328, 200, batch=batch)).steps
    assert gemm.config.by_gpc and gemm.order == () and "order" not in layout_of(gemm.config)["schedule"].names
    found = emulator.run(Gemm(SPLITS), a, b, options=Options(races=True, policy="random", seed=1))
    assert not found.findings
    assert_close(found.d, a, b)


def test_a_place_that_two_clusters_have_leaves_a_split_out(monkeypatch):
    """The order decides what a cluster computes: if it is no permutation, D is wrong."""
    a, b = factors(136, 264, 448)
    right = gpcs.order
    # plans are cached: this problem is no other test's
    monkeypatch.setattr(gpcs, "order", lambda *args: (*right(*args)[:-1], right(*args)[0]))
    found = emulator.run(Gemm(PAIRS), a, b)
    with pytest.raises(AssertionError):
        assert_close(found.d, a, b)


@pytest.mark.parametrize(
    "changed",
    [
        {"split_k": 1, "split_reduction": "auto"},
        {"scheduler": "stream_k", "split_k": "auto", "split_reduction": "auto"},
        {"scheduler": "dynamic"},
        {"scheduler": "per_tile"},
        {"ctas_per_sm": 2},
        {"cluster": (2, 4)},
        {"cluster": (1, 1, 3), "split_reduction": "cluster"},
    ],
)
def test_others_take_their_own_number(changed):
    """Whole tiles, counters, more CTAs than SMs, clusters whose GPCs are unknown, and those that reduce all splits."""
    assert plan(SPLITS, problem(200, 264, 448)).config.by_gpc
    assert not plan(dataclasses.replace(SPLITS, **changed), problem(200, 264, 448)).config.by_gpc


def test_two_ctas_of_the_adding_launch_fit_an_sm():
    """Its shared memory leaves no room for a third, so the SMs that are free first do not get most of its CTAs.

    A launch of more CTAs asks for what it uses.
    """
    few, many = (plan(SPLITS, problem(m, 264, 448)).steps[1].config for m in (200, 4000))
    asked, used = (kernel_cache.artifact(x).resources.smem_bytes for x in (few, many))
    whole, reserved = H200.limits.smem_sm_bytes, H200.limits.smem_reserved
    assert 2 * (asked + reserved) <= whole < 3 * (asked + reserved)
    assert few.most_on_sm == 2 and many.most_on_sm == 0 and used == smem_bytes(many) < asked


@pytest.mark.parametrize("splits, most", [(17, 2), (18, 2), (20, 3), (21, 2)])
def test_few_ctas_that_add_fit_the_sms_that_the_gemm_leaves_free(splits, most):
    """Six tiles leave 30, 24, 12 and 6 SMs free; 30 CTAs add. More than four to an SM would wait for each other."""
    spec = GemmSpec(
        tile=Tile(40, 64, 128), swap=True, cluster=(1, 1), split_k=splits, split_reduction="launch"
    )
    gemm, adding = plan(spec, problem(72, 184, 12800, majors="kk"), H200).steps
    assert gemm.clusters == 6 * splits and adding.clusters == 30
    assert adding.config.most_on_sm == most
