# SPDX-License-Identifier: Apache-2.0
"""Few rows of D: TMA loads the rows that A has, and the rest of A's tile is zero from the start. On the emulator."""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.compiling import kernel_cache
from cutegemm.emulator import Launch, Options, run_sequence, tensor_buffer
from cutegemm.emulator.launching import front
from cutegemm.gemm import Gemm, build
from cutegemm.planning.planner import plan
from tests.support.epilogues import assert_outputs_close
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
RACES = Options(policy="random", seed=1, races=True)
ONE, TWO = Tile(64, 32, 128), Tile(128, 32, 64)
# two stages, so that they are filled again, and several tiles for each CTA
SMALL = {"tile": ONE, "swap": False, "stages": 2, "sms": 3}
WAYS = {
    "two consumers": SMALL | {"tile": TWO},
    "in turns": SMALL | {"schedule": "pingpong"},
    "multistage": SMALL | {"schedule": "multistage"},
    "split in a cluster": SMALL | {"split_k": 2, "sms": 4},
    "split through a workspace": SMALL | {"split_k": 2, "split_reduction": "workspace"},
    "stream-k": SMALL | {"scheduler": "stream_k", "sms": 5},
    "dynamic": SMALL | {"scheduler": "dynamic"},
    "constant weights": SMALL | {"constant": ("b",), "trigger": "loads"},
    "constant activations": SMALL | {"constant": ("a",), "trigger": "loads"},
    "a pair that shares B": SMALL | {"cluster": (2, 1), "sms": 4},
    "two CTAs an SM": SMALL | {"ctas_per_sm": 2},
    "narrow swizzle": SMALL | {"swizzle": "32B"},
    "depth of half a swizzle": SMALL | {"tile": Tile(64, 32, 32)},
}


def draw(*shape: int) -> torch.Tensor:
    """Random bf16."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def box_rows(spec: GemmSpec, m: int, k: int = 2048, **kinds) -> int:
    """Rows of A's box by a plan for m rows."""
    boxes = {x.operand: x.extents for x in plan(spec, problem(m, 256, k, **kinds)).boxes}
    return boxes["A"][1]


def check(fields: dict, a: torch.Tensor, b: torch.Tensor) -> None:
    """D = A B + C / 2 in place of C, by a kernel whose box of A is narrow."""
    gemm = Gemm(GemmSpec(**fields))
    m, n = a.shape[-2], b.shape[-1]
    assert 0 < plan(gemm.spec, problem(m, n, a.shape[-1])).config.a.box_rows < fields["tile"].m
    c = draw(*a.shape[:-1], n)
    before = c.clone()
    run = emulator.run(gemm, a, b, c, beta=0.5, out=c, options=RACES)
    assert not run.findings, [str(x) for x in run.findings[:3]]
    assert_close(c, a, b, before, 1.0, 0.5)


@pytest.mark.parametrize("m", [1, 7, 8, 16, 17, 24, 32, 40])
def test_any_few_rows_are_right_and_free_of_races(m):
    """Whatever number of rows a box has, and wherever M ends in it."""
    check(SMALL, draw(m, 328), draw(328, 104))


@pytest.mark.parametrize("m", [1, 64])
def test_a_tile_of_two_consumers_has_a_rest_too(m):
    """The second consumer's rows may all be zero."""
    check(SMALL | {"tile": TWO}, draw(m, 200), draw(200, 104))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_the_kernel_leaves_the_rest_as_it_is(way):
    """Schedules, parts of K, early loads and swizzles: the box and the rest of the tile fit together in each."""
    k = 648 if "split_k" in WAYS[way] else 328
    check(WAYS[way], draw(7, k), draw(k, 104))


def test_swapped_operands_have_boxes_of_few_columns():
    """N = 37 of a tile's 64, with B's columns contiguous along K."""
    a, b = draw(19, 200), draw(37, 200).mT
    gemm = Gemm(GemmSpec(tile=Tile(24, 64, 64), swap=True, stages=2))
    assert plan(gemm.spec, problem(19, 37, 200, majors="kk")).config.a.box_rows == 40
    run = emulator.run(gemm, a, b, options=RACES)
    assert not run.findings
    assert_close(run.d, a, b)


@pytest.mark.parametrize("transposed", [False, True])
def test_batches_have_their_own_rows(transposed):
    """A box ends with its batch's matrix, of which another follows in memory."""
    b = draw(3, 104, 328).mT if transposed else draw(3, 328, 104)
    check(SMALL, draw(3, 7, 328), b)


def test_reductions_over_rows_do_not_see_the_rest():
    """Rows beyond M would be the bias, which is large: sums and maxima over rows and over all would tell."""

    @epi.define
    def reduced(acc, *, bias: epi.Row):
        h = acc + bias
        return epi.Output(
            d=h,
            columns=epi.Sum(h, axis=0),
            tops=epi.Max(h, axis=0),
            rows=epi.SumSquares(h, axis=1),
            all=epi.Sum(h),
        )

    a, b = -draw(5, 200).abs(), draw(200, 104).abs()
    bias = torch.full((104,), 500.0)
    gemm = Gemm(GemmSpec(epilogue=reduced, tile=TWO, swap=False, stages=2))
    run = emulator.run(gemm, a, b, bias=bias, options=RACES)
    assert not run.findings
    assert_outputs_close(vars(run.d), gemm.spec.epilogue, a, b, {"bias": bias})


@pytest.mark.parametrize("m", [1, 7])
def test_vectors_matrices_and_a_scalar_meet_the_rows_there_are(m):
    """What an epilogue reads of rows beyond M would come from other memory; weights as nn.Linear has them."""

    @epi.define
    def mixed(acc, *, bias: epi.Row, scales: epi.Col, residual: epi.Matrix, alpha: epi.Scalar):
        return alpha * (acc * scales + bias) + residual

    a, b = draw(m, 328), draw(104, 328).mT
    inputs = {"bias": draw(104).float(), "scales": draw(m).float(), "residual": draw(m, 104), "alpha": 0.5}
    gemm = Gemm(GemmSpec(**SMALL, epilogue=mixed))
    run = emulator.run(gemm, a, b, **inputs, options=RACES)
    assert not run.findings
    assert_outputs_close({"d": run.d}, mixed, a, b, inputs)


def test_launches_that_begin_early_zero_the_rest_before_they_wait():
    """D = A W and E = D W, each launch begun before the one ahead of it has ended."""
    spec = GemmSpec(**WAYS["constant weights"])
    gemm, of = build(spec), problem(5, 264, 264)
    (step,) = plan(spec, of).steps
    kernel = front.kernel_of(kernel_cache.artifact(step.config).ptx)
    a, b = draw(5, 264), draw(264, 264)
    d, e = (torch.empty(5, 264, dtype=BF16) for _ in range(2))
    buffers = [tensor_buffer(x, name) for x, name in zip((a, b, d, e), "ABDE", strict=True)]
    made = [
        gemm.launches(of, {"a": x.data_ptr(), "b": b.data_ptr(), "d": y.data_ptr()})[0]
        for x, y in ((a, d), (d, e))
    ]
    launches = [
        Launch(kernel, grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem, params=list(x.params),
               buffers=buffers, pdl=True) for x in made
    ]  # fmt: skip
    assert not run_sequence(launches, RACES, constant=[b]).findings
    assert_close(d, a, b)
    assert_close(e, d, b)


def test_a_row_has_the_same_bits_whatever_the_box():
    """One row of 9 and of 70, for which the box is whole."""
    spec = GemmSpec(tile=ONE, swap=False, stages=2, batch_invariant=True, d_dtype="fp32")
    a, b = draw(70, 328), draw(328, 104)
    rows = [build(spec).run(a[-m:], b, backend="emulator")[-1] for m in (9, 70)]
    assert torch.equal(*rows)


def test_a_plan_shows_its_box():
    """Whole groups of eight rows up to 64; of B's columns, in D's coordinates, where operands are swapped."""
    spec = GemmSpec(tile=TWO, swap=False)
    assert [box_rows(spec, m) for m in (1, 8, 9, 57, 64, 65, 200)] == [8, 8, 16, 64, 64, 128, 128]
    shown = str(plan(spec, problem(9, 256, 2048)))
    assert "A 1 x 64 x 16," in shown and "1 rest (256 arrivals)" in shown
    assert "rest (" not in str(plan(spec, problem(200, 256, 512)))
    assert box_rows(GemmSpec(tile=ONE, swap=False), 57) == 64
    few = plan(GemmSpec(tile=Tile(16, 64, 64), swap=True), problem(16, 37, 2048, majors="kk"))
    assert {x.operand: x.extents for x in few.boxes}["B"] == (64, 40)


def test_boxes_that_cannot_be_cut_are_whole():
    """A contiguous along M or shared out, K that fills a ring but once."""
    assert box_rows(GemmSpec(tile=ONE, swap=False), 8, majors="mn") == 128
    assert box_rows(GemmSpec(tile=ONE, swap=False, cluster=(1, 2)), 8) == 32
    assert [box_rows(GemmSpec(tile=TWO, swap=False), 8, k) for k in (512, 520)] == [128, 8]
    assert [box_rows(GemmSpec(**SMALL), 8, k) for k in (256, 264)] == [64, 8]
