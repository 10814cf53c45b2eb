# SPDX-License-Identifier: Apache-2.0
"""`batch_invariant=True`: a row of D has the same bits whatever M is and wherever the row lies. On the emulator."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from cutegemm import GemmSpec, KernelPlan, Tile, problem
from cutegemm import epilogue as epi
from cutegemm.gemm import build
from cutegemm.planning.planner import plan
from tests.support.profile import cases

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
N, K = 136, 328
WEIGHTS = ((4096, 14336), (10240, 8192), (136, 16384))
MOST_ROWS = 8192
DRAWN = [1, 2, 16, 64, 128, 256, MOST_ROWS, *random.Random(7).choices(range(1, MOST_ROWS), k=40)]
# D in fp32 shows every bit of a sum
INVARIANT = GemmSpec(batch_invariant=True, d_dtype="fp32")


@functools.cache
def weights(dtype: torch.dtype = BF16) -> torch.Tensor:
    """B, (K, N)."""
    return torch.randn(K, N, generator=torch.Generator().manual_seed(1)).to(dtype)


def row_of(spec: GemmSpec, rows: int, place: int, dtype: torch.dtype = BF16, **inputs) -> torch.Tensor:
    """What `spec` gives for one and the same row, as row `place` of `rows`; the others are drawn."""
    generator = torch.Generator().manual_seed(rows)
    a = torch.randn(rows, K, generator=generator).to(dtype)
    a[place] = torch.randn(K, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = build(spec).run(a, weights(dtype), backend="emulator", **inputs)
    return out[place] if isinstance(out, torch.Tensor) else torch.cat([out.d[place], out.norm[place, None]])


def kernel_of(made: KernelPlan) -> GemmSpec:
    """A spec that asks for a plan's kernel."""
    config = made.config
    (m, n, k), cluster = config.tile, config.cluster
    schedule = "pingpong" if config.pingpong else "cooperative" if config.producers else "multistage"
    return GemmSpec(
        tile=Tile(n, m, k) if made.swapped else Tile(m, n, k),
        cluster=(cluster[1], cluster[0]) if made.swapped else cluster,
        schedule=schedule,
        consumers=config.consumers,
        swap=made.swapped,
        split_k=config.splits,
        sms=config.cluster_size * 2 if config.persistent else "auto",
        batch_invariant=True,
        d_dtype="fp32",
    )


def test_every_kernel_chosen_for_up_to_8192_rows_gives_a_row_the_same_bits():
    """Tiles, schedules, clusters and swapped operands follow M; the order of additions does not."""
    kernels = {
        kernel_of(plan(INVARIANT, problem(m, n, k, d_dtype="fp32"))) for n, k in WEIGHTS for m in DRAWN
    }
    kernels = sorted(kernels, key=repr)
    # each kind of kernel once, and some more of them
    kinds = {(x.swap, x.schedule, x.tile.k): x for x in kernels}
    chosen = [*kinds.values(), *random.Random(8).sample(kernels, cases(1, 12))]
    assert len(kinds) > 3 and len(kernels) > 10
    first = row_of(chosen[0], 5, 2)
    for x in chosen[1:]:
        assert torch.equal(row_of(x, 5, 3), first), x


@pytest.mark.parametrize("m,place", [(1, 0), (17, 16), (70, 3), (200, 150)])
def test_a_row_has_the_same_bits_at_every_drawn_m_and_place(m, place):
    """What the planner chooses for so many rows gives one of them its bits."""
    assert torch.equal(row_of(INVARIANT, m, place), row_of(INVARIANT, 3, 1))


def test_parts_of_k_that_are_given_end_at_the_same_k_for_every_m():
    """split_k=2 is honoured at every M; the sum's bits are others than without it, and the same for every M."""
    spec = GemmSpec(batch_invariant=True, d_dtype="fp32", split_k=2)
    few = row_of(spec, 3, 1)
    assert torch.equal(row_of(spec, 140, 77), few)
    assert not torch.equal(row_of(INVARIANT, 3, 1), few)


def test_fp32_sums_have_the_same_bits():
    """On the CUDA cores every product is added by one thread, in order, however few the rows."""
    few = row_of(INVARIANT, 3, 1, torch.float32)
    assert torch.equal(row_of(INVARIANT, 130, 129, torch.float32), few)
    small = problem(3, N, K, dtype="fp32")
    assert plan(GemmSpec(), small).config.shares and not plan(INVARIANT, small).config.shares


@epi.define
def with_norm(acc):
    """The rows and their sums of squares."""
    return epi.Output(d=epi.Store(acc, "fp32"), norm=epi.SumSquares(acc, axis=1))


def test_reductions_along_rows_have_the_same_bits():
    """Partial results are of as many columns at every M, also where few rows would swap operands."""
    spec = GemmSpec(batch_invariant=True, epilogue=with_norm)
    few = row_of(spec, 3, 1)
    assert torch.equal(row_of(spec, 150, 149), few)
    drawn = {plan(spec, problem(m, 4096, 1024, epilogue=with_norm)).config.tile[1] for m in DRAWN}
    assert drawn == {128}
    small = problem(3, N, K, epilogue=with_norm)
    assert plan(GemmSpec(epilogue=with_norm), small).swapped and not plan(spec, small).swapped


def test_warps_of_the_cuda_cores_reduce_as_many_columns():
    """Tiles of 112 and of 128 rows, and of any layout of A: a row's partial results are those of 32 columns."""
    spec = GemmSpec(batch_invariant=True, epilogue=with_norm)
    found = [
        plan(spec, problem(m, 2048, 1023, dtype="fp32", majors=majors, epilogue=with_norm)).config
        for m in (1, 3, 1037, 4096)
        for majors in ("kk", "mk")
    ]
    assert len({x.tile for x in found}) == 2
    assert {x.partial_width[1] for x in found} == {32}
