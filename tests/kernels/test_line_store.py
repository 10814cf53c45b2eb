# SPDX-License-Identifier: Apache-2.0
"""Outputs whose lines begin at any element and go through shared memory: every bit arrives and nothing else moves.

On the emulator, with the race detector; outputs lie in poisoned memory. Operands are whole numbers, their sums exact.
"""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm import epilogue as epi
from cutegemm.emulator import Options
from cutegemm.gemm import build
from tests.support.memory import Layout

pytestmark = pytest.mark.sliced

RACES = Options(policy="random", seed=3, races=True)
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# columns of a subtile, type, whether lines are rows
SUBTILES = [
    *((8, "bf16", True), (16, "bf16", True), (32, "fp32", True), (64, "bf16", True)),
    *((8, "bf16", False), (64, "bf16", False), (16, "fp32", False)),
]


def whole(*shape: int) -> torch.Tensor:
    """Random whole numbers, small enough that any sum of products here is exact in fp32."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


def check(shape: tuple, kind: str, layout: Layout, columns: int) -> None:
    """D of whole numbers, in memory of a layout."""
    m, n, k, *batch = shape
    a, b = whole(*batch, m, k), whole(*batch, k, n)
    d = layout.make((*batch, m, n), TYPES[kind])
    spec = GemmSpec(d_dtype=kind, store="staged", tile=Tile(64, columns, 32), swap=False, sms=2)
    run = emulator.run(build(spec), a, b, out=d.view, options=RACES)
    assert not run.findings, [str(x) for x in run.findings[:3]]
    assert d.untouched()
    assert torch.equal(d.view, (a.float() @ b.float()).to(d.view.dtype))


def lines(row_major: bool, pad: int, offset: int) -> Layout:
    """Lines of their own length and `pad` elements, or one more, from a base so many elements off."""
    return Layout(row_major=row_major, aligned=False, pad=pad, offset=offset)


@pytest.mark.parametrize("columns", [24, 48, 128])
def test_rows_go_on_from_piece_to_piece(columns):
    """Subtiles of less than a sector, of one and of several; the output ends in each of a tile's subtiles."""
    for n in (5, *range(max(columns - 37, 6), columns + 3, 26), 2 * columns - 1):
        check((65, n, 16), "bf16", lines(True, 2 * (n % 3), n % 2), columns)


@pytest.mark.parametrize(("columns", "kind", "row_major"), SUBTILES)
def test_subtiles_of_every_width(columns, kind, row_major):
    """One to eight lines of a warp side by side, which begin anywhere and end within a word."""
    for (m, n), pad, offset in (((67, columns + 3), 0, 1), ((70, columns + 1), 4, 3)):
        check((m, n, 40), kind, lines(row_major, pad, offset), columns)


def test_lines_of_any_length():
    """Lines of less than a word, of whole words alone, with a head, with a tail and with both."""
    for n in range(1, 12):
        check((5, n, 16), "bf16", lines(True, 0, n % 4 // 2), 64)


def test_rows_whose_elements_lie_apart():
    """Threads store every element of an output without unit stride, in subtiles wider than a warp, too."""
    m, n = 67, 67
    memory = torch.full((m, n, 2), 7.0).bfloat16()
    a, b = whole(m, 40), whole(40, n)
    spec = GemmSpec(store="staged", tile=Tile(64, 64, 32), swap=False, sms=2)
    run = emulator.run(build(spec), a, b, out=memory[..., 0], options=RACES)
    assert not run.findings
    assert torch.equal(memory[..., 0], (a.float() @ b.float()).bfloat16())
    assert torch.all(memory[..., 1] == 7.0)


@pytest.mark.parametrize("columns", [8, 24])
def test_warps_of_two_columns_store_no_others(columns):
    """A sector's elements are eight lanes' in fp32, so that lanes for four columns meet a warp's two."""
    for (m, n), pad, offset in (((67, 2 * columns + 3), 0, 1), ((70, 4 * columns), 3, 5)):
        check((m, n, 16), "fp32", lines(False, pad, offset), columns)


def test_batches():
    """Batches begin off the grid, too."""
    check((66, 65, 16, 3), "bf16", lines(True, 0, 1), 64)


def test_bytes():
    """A word of fp8 holds four elements, up to three of which are stored apart at either end."""

    @epi.define
    def low(acc):
        return epi.Store(acc, dtype="fp8")

    gemm = build(GemmSpec(epilogue=low, tile=Tile(64, 64, 32), swap=False, sms=2))
    for m, n in ((67, 71), (5, 66), (9, 3)):
        a, b = whole(m, 16), whole(16, n)
        run = emulator.run(gemm, a, b, options=RACES)
        assert not run.findings
        want = (a.float() @ b.float()).to(torch.float8_e4m3fn)
        assert torch.equal(run.d.view(torch.uint8), want.view(torch.uint8))
