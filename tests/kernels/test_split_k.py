# SPDX-License-Identifier: Apache-2.0
"""Split K: every way of cutting and adding K gives D, the same bits each time, and the epilogue once.

On the emulator, with the race detector.
"""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.emulator import Options
from cutegemm.errors import PlanError, SpecError
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from tests.support.fused_runs import GRAPHS, assert_fused
from tests.support.numerics import assert_close

BF16 = torch.bfloat16
SMALL = Tile(64, 64, 64)
CASES = {
    # more tiles than clusters, so that buffers and barriers are used again
    "two parts, many tiles": (GemmSpec(tile=SMALL, split_k=2, sms=2, stages=2), (130, 136, 300)),
    "four parts that share columns": (GemmSpec(tile=SMALL, split_k=4, sms=4), (60, 72, 300)),
    "three parts, of unequal lengths": (GemmSpec(tile=SMALL, split_k=3, swap=True, sms=3), (60, 72, 456)),
    "one CTA stores": (GemmSpec(tile=Tile(8, 64, 64), split_k=4, swap=True, sms=4), (5, 136, 264)),
    "workspace, many tiles": (
        GemmSpec(tile=SMALL, split_k=3, split_reduction="workspace", swap=False, sms=4, stages=2),
        (100, 136, 300),
    ),
    "workspace, pairs share B": (
        GemmSpec(tile=SMALL, split_k=2, split_reduction="workspace", cluster=(2, 1), sms=4, stages=2),
        (200, 72, 264),
    ),
    "streamed, fewer tiles than clusters": (
        GemmSpec(tile=SMALL, scheduler="stream_k", swap=False, sms=5, stages=2),
        (60, 136, 300),
    ),
    "streamed, some tiles whole, pairs": (
        GemmSpec(tile=SMALL, scheduler="stream_k", swap=False, sms=4, cluster=(2, 1), stages=2),
        (500, 72, 200),
    ),
    "streamed, swapped": (
        GemmSpec(tile=Tile(16, 64, 64), scheduler="stream_k", swap=True, sms=3, stages=2),
        (13, 264, 264),
    ),
    "pairs share B": (GemmSpec(tile=SMALL, split_k=2, cluster=(2, 1), sms=4, stages=2), (200, 72, 264)),
}
ORDERS = {"lazy": Options(policy="lazy", races=True), "random": Options(policy="random", seed=2, races=True)}


def operands(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and C of (m, n, k)."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(sum(shape))
    a, b, c = (torch.randn(s, generator=generator).to(BF16) for s in ((m, k), (k, n), (m, n)))
    return a, b, c


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_in_place_without_races(name, order):
    """D = 2 A B + C / 2 in place of C, the same bits in whatever order CTAs and copies move."""
    spec, shape = CASES[name]
    a, b, c = operands(shape)
    before, gemm = c.clone(), Gemm(spec)
    run = emulator.run(gemm, a, b, c, alpha=2.0, beta=0.5, out=c, options=ORDERS[order])
    assert not run.findings
    assert_close(c, a, b, before, 2.0, 0.5)
    assert torch.equal(gemm.run(a, b, before, alpha=2.0, beta=0.5, backend="emulator"), c)


@pytest.mark.parametrize(("swap", "where"), [(False, "cluster"), (True, "cluster"), (True, "workspace")])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_epilogue_is_applied_once_after_the_sum(name, swap, where):
    """Activations, gated pairs and reductions see the whole sum, whoever stores it."""
    tile = Tile(32, 128, 64) if swap else Tile(64, 64, 64)
    assert_fused(name, GemmSpec(tile=tile, swap=swap, split_k=2, split_reduction=where), (30, 72, 200))


@pytest.mark.parametrize(
    ("fields", "field", "nearest"),
    [
        ({"split_k": 3, "cluster": (4, 1), "split_reduction": "cluster"}, "split_k", 2),
        ({"split_k": 5}, "split_k", 4),
        ({"split_k": 2, "schedule": "pingpong"}, "split_k", 1),
        ({"split_k": 2, "schedule": "multistage"}, "split_k", 1),
        ({"scheduler": "stream_k", "schedule": "pingpong"}, "scheduler", "persistent"),
    ],
)
def test_what_cannot_be_split_is_refused(fields, field, nearest):
    """More parts than a cluster or K holds, and schedules that cannot add them, name the nearest legal number."""
    with pytest.raises((PlanError, SpecError)) as caught:
        plan(GemmSpec(tile=Tile(128, 64, 64), swap=False, **fields), problem(128, 64, 256))
    assert (caught.value.field, caught.value.nearest) == (field, nearest)
    fields[field] = nearest
    plan(GemmSpec(tile=Tile(128, 64, 64), swap=False, **fields), problem(128, 64, 256))


@pytest.mark.parametrize("where", ["workspace", "atomic", "launch"])
def test_a_run_after_one_that_was_aborted_is_right(where):
    """Parts that another run left behind in the same workspace do not count; counters are not there."""
    spec = GemmSpec(tile=SMALL, split_k=2, split_reduction=where, swap=False)
    a, b, _ = operands((60, 72, 136))
    gemm = Gemm(spec)
    need = plan(spec, problem(60, 72, 136)).workspace_bytes
    for left_behind in (0, 1, 255):
        workspace = torch.full((need + 64,), left_behind, dtype=torch.uint8)
        aligned = workspace[-workspace.data_ptr() % 64 :]
        assert_close(gemm.run(a, b, backend="emulator", workspace=aligned), a, b)
