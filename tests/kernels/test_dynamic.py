# SPDX-License-Identifier: Apache-2.0
"""Tiles from a counter: every one is computed once, whoever comes when, and nothing of a run lasts into the next.

On the emulator, with the race detector.
"""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Options, Step, run_steps, tensor_buffer
from cutegemm.gemm import Gemm
from cutegemm.launch_layout import COUNTERS
from cutegemm.planning.planner import plan
from cutegemm.plans.kernel_plan import launch_arguments
from tests.support.epilogues import assert_outputs_close
from tests.support.fused_kernels import everything, gemm_of, results
from tests.support.fused_kernels import operands as fused_operands
from tests.support.numerics import assert_close
from tests.support.watched import RACES

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
FIELDS = {"tile": Tile(64, 64, 64), "swap": False, "scheduler": "dynamic", "stages": 2}
CASES = {
    "one by one": (GemmSpec(**FIELDS, sms=3), (200, 136, 300)),
    "more SMs than tiles": (GemmSpec(**FIELDS), (100, 72, 64)),
    "pairs share B": (GemmSpec(**FIELDS, sms=4, cluster=(2, 1)), (300, 136, 200)),
    "in turn": (GemmSpec(**FIELDS, sms=2, schedule="pingpong"), (200, 200, 72)),
    "in turn, pairs share A": (GemmSpec(**FIELDS, sms=4, schedule="pingpong", cluster=(1, 2)), (200, 200, 130)),
    "odd operands, copied": (GemmSpec(**FIELDS, sms=2), (133, 135, 131)),
    "parts in a cluster": (GemmSpec(**FIELDS, sms=4, split_k=2), (130, 136, 264)),
    "parts in workspace": (
        GemmSpec(**FIELDS, sms=3, split_k=3, split_reduction="workspace"), (100, 136, 264)
    ),
    "splits that a cluster adds, workspace named": (
        GemmSpec(**FIELDS, sms=4, cluster=(1, 1, 2), split_reduction="workspace"), (70, 72, 264)
    ),
    "swapped": (GemmSpec(**FIELDS | {"tile": Tile(16, 64, 64), "swap": True}, sms=2), (30, 264, 264)),
}  # fmt: skip
ORDERS = {
    "one cluster at a time": Options(policy="lazy", races=True, resident_ctas=1),
    "random": Options(policy="random", seed=2, races=True),
}


def operands(shape, batch=()):
    """A, B and C of (m, n, k)."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(sum(shape))
    return tuple(torch.randn(*batch, *s, generator=generator).to(BF16) for s in ((m, k), (k, n), (m, n)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_tiles_are_right_and_free_of_races_whoever_takes_them(name, order):
    """D = 2 A B + C / 2 in place of C; clusters that start when others have ended find nothing left to do."""
    spec, shape = CASES[name]
    a, b, c = operands(shape)
    before = c.clone()
    run = emulator.run(Gemm(spec), a, b, c, alpha=2.0, beta=0.5, out=c, options=ORDERS[order])
    assert not run.findings
    assert_close(c, a, b, before, 2.0, 0.5)


@pytest.mark.parametrize("name", ["one by one", "in turn, pairs share A", "parts in workspace"])
def test_a_run_finds_and_leaves_its_counters_zero(name):
    """Each cluster takes one number beyond the last work's, and the last to do so wraps the counter."""
    spec, shape = CASES[name]
    a, b, _ = operands(shape)
    d, made = torch.empty(shape[:2], dtype=BF16), plan(spec, problem(*shape))
    workspace = torch.full((made.workspace_bytes + 64,), 255, dtype=torch.uint8)
    counters = torch.zeros(made.counter_bytes, dtype=torch.uint8)
    places = {"a": a.data_ptr(), "b": b.data_ptr(), "d": d.data_ptr(), COUNTERS: counters.data_ptr()}
    aligned = workspace.data_ptr() + -workspace.data_ptr() % 64
    named = {"A": a, "B": b, "D": d, "workspace": workspace, "counters": counters}
    for _ in range(2):
        d.zero_()
        steps = [
            Step(kernel_cache.artifact(config).ptx, x.grid, x.block, x.cluster, x.smem, x.params)
            for config, args in launch_arguments(made, places, aligned, {"alpha": 1.0}, 0)
            for x in kernel_cache.launches(config, args)
        ]
        run_steps(steps, [tensor_buffer(x, name) for name, x in named.items()])
        assert_close(d, a, b)
        assert not counters.any()


def test_batches_come_from_one_counter():
    """A batch's tiles are works like any other."""
    a, b, c = operands((70, 72, 136), (3,))
    run = emulator.run(Gemm(CASES["one by one"][0]), a, b, c, beta=1.0, options=ORDERS["random"])
    assert not run.findings
    for batch in range(3):
        assert_close(run.d[batch], a[batch], b[batch], c[batch], 1.0, 1.0)


@pytest.mark.parametrize(
    ("graph", "schedule"), [(everything, "cooperative"), (everything, "pingpong"), (epi.swiglu(), "pingpong")]
)
def test_epilogues_follow_the_tile_scheduler(graph, schedule):
    """Inputs that are fetched ahead, gated pairs and reductions are those of the tile that was taken."""
    gemm = gemm_of(graph, schedule, **FIELDS | {"tile": Tile(64, 64, 32)}, sms=2)
    a, b, inputs = fused_operands(gemm.spec.epilogue, (140, 72, 136), "emulator")
    run = emulator.run(gemm, a, b, options=RACES, **inputs)
    assert not run.findings
    assert_outputs_close(results(run.d), gemm.spec.epilogue, a, b, inputs)


def test_the_first_work_is_known_after_the_wait_only():
    """So no operand is loaded before it, constant or not: the launch before may still count."""
    of = problem(128, 128, 256)
    assert plan(GemmSpec(**FIELDS, constant=("b",)), of).config.early == ()
    assert plan(GemmSpec(**FIELDS | {"scheduler": "persistent"}, constant=("b",)), of).config.early == ("b",)


def test_threads_that_load_take_no_works():
    """Where the load of an odd operand is open, it is copied instead."""
    odd = problem(17, 333, 1023, a=torch.empty(17, 1023, dtype=BF16))
    assert not plan(GemmSpec(scheduler="dynamic", swap=False), odd).config.gathers
