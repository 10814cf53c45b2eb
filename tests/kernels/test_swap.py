# SPDX-License-Identifier: Apache-2.0
"""Swapped operands: the kernels compute D's transpose, and nobody can tell from what a run gives.

On the emulator, with the race detector where it says so.
"""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.emulator import Options
from cutegemm.gemm import Gemm
from tests.support.epilogues import assert_outputs_close, seeded_graph
from tests.support.fused_kernels import everything, operands, results
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced

BF16 = torch.bfloat16
RACES = Options(policy="random", seed=1, races=True)
TILES = {
    "8 rows": Tile(8, 64, 64),
    "24 rows, two consumers": Tile(24, 128, 64),
    "16 rows, deep": Tile(16, 64, 128),
}
GRAPHS = {
    "everything": everything,
    "swiglu halves": epi.swiglu("halves"),
    "geglu interleaved": epi.geglu("interleaved"),
    "dropout_residual": epi.dropout_residual(0.25),
    "gradient of swiglu": epi.backward(epi.swiglu("halves")),
}


def matrix(rows: int, cols: int, column_major: bool, generator: torch.Generator) -> torch.Tensor:
    """A random bf16 matrix of either major."""
    if column_major:
        return torch.randn(cols, rows, generator=generator).to(BF16).t()
    return torch.randn(rows, cols, generator=generator).to(BF16)


def check_fused(gemm: Gemm, shape: tuple[int, int, int], batch: int | None = None) -> None:
    """Run an epilogue and compare every output with fp64."""
    graph = gemm.spec.epilogue
    a, b, inputs = operands(graph, shape, "emulator", batch)
    assert_outputs_close(results(gemm.run(a, b, backend="emulator", **inputs)), graph, a, b, inputs)


@pytest.mark.parametrize("majors", ["kn", "kk", "mn", "mk"])
@pytest.mark.parametrize("tile", TILES)
def test_every_tile_and_major_is_right_and_free_of_races(tile, majors):
    """D = A B + C / 2 in place of C, ragged in every extent, for tiles whose m is no multiple of 64."""
    generator = torch.Generator().manual_seed(3)
    a = matrix(37, 136, majors[0] == "m", generator)
    b = matrix(136, 200, majors[1] == "k", generator)
    c = matrix(37, 200, False, generator)
    before = c.clone()
    gemm = Gemm(GemmSpec(tile=TILES[tile], swap=True, stages=3, sms=3))
    run = emulator.run(gemm, a, b, c, beta=0.5, out=c, options=RACES)
    assert not run.findings
    assert_close(c, a, b, before, 1.0, 0.5)


@pytest.mark.parametrize("store", ["tma", "staged", "direct"])
@pytest.mark.parametrize("column_major", [False, True])
def test_every_way_out_of_either_major(store, column_major):
    """Each store writes D, row- or column-major, and nothing else."""
    generator = torch.Generator().manual_seed(4)
    a, b = matrix(24, 72, False, generator), matrix(72, 136, True, generator)
    whole = torch.full((136, 40) if column_major else (40, 136), 7.0, dtype=BF16)
    d = whole[:, :24].t() if column_major else whole[:24]
    Gemm(GemmSpec(tile=TILES["8 rows"], swap=True, store=store)).run(a, b, out=d, backend="emulator")
    assert_close(d, a, b)
    assert bool((whole[:, 24:] == 7).all() if column_major else (whole[24:] == 7).all())


@pytest.mark.parametrize("name", GRAPHS)
def test_epilogues(name):
    """Rows, columns, matrices, gated pairs, random numbers and reductions come out as without swapping."""
    graph = GRAPHS[name]
    tile = Tile(24, 128, 64) if graph.gated else TILES["24 rows, two consumers"]
    check_fused(Gemm(GemmSpec(epilogue=graph, tile=tile, swap=True)), (29, 136, 72))


@pytest.mark.parametrize("seed", range(3))
def test_drawn_epilogues_in_batches(seed):
    """Whatever expression is drawn, swapped kernels compute it, batch after batch."""
    graph = seeded_graph(seed)
    check_fused(Gemm(GemmSpec(epilogue=graph, swap=True)), (11, 72, 40), batch=2)


def test_a_cluster_shares_operands_in_d_s_coordinates():
    """cluster=(1, 2) are two CTAs along N, which share the rows of A."""
    generator = torch.Generator().manual_seed(5)
    a, b = matrix(40, 136, False, generator), matrix(136, 264, True, generator)
    gemm = Gemm(GemmSpec(tile=Tile(16, 64, 64), cluster=(1, 2), swap=True, stages=2, sms=4))
    run = emulator.run(gemm, a, b, options=RACES)
    assert not run.findings
    assert_close(run.d, a, b)
