# SPDX-License-Identifier: Apache-2.0
"""Outputs whose lines begin at any element: what goes through shared memory is, to the bit, what registers would store.

On the emulator, with the race detector; outputs lie in poisoned memory.
"""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator
from cutegemm.emulator import Options
from cutegemm.gemm import build
from tests.support.memory import Layout

RACES = Options(policy="random", seed=3, races=True)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def outputs(shape: tuple, kind: str, layout: Layout, **fields) -> tuple:
    """D of random operands, staged and stored directly, in memory of the same layout."""
    generator = torch.Generator().manual_seed(sum(shape))
    m, n, k, *batch = shape
    a, b = (torch.randn((*batch, *x), generator=generator).bfloat16() for x in ((m, k), (k, n)))
    found = []
    for store in ("staged", "direct"):
        d = layout.make((*batch, m, n), TYPES[kind])
        gemm = build(GemmSpec(d_dtype=kind, store=store, swap=False, sms=2, **fields))
        run = emulator.run(gemm, a, b, out=d.view, options=RACES)
        assert not run.findings, [str(x) for x in run.findings[:3]]
        assert d.untouched(), store
        found.append(d.view)
    return tuple(found)


def lines(row_major: bool, pad: int, offset: int) -> Layout:
    """Lines so many elements farther apart than a multiple of 8, from a base so many off."""
    return Layout(row_major=row_major, aligned=False, pad=pad, offset=offset)


@pytest.mark.parametrize("row_major", [True, False], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("columns", [8, 16, 32, 64])
def test_pieces_of_every_width(columns, kind, row_major):
    """One to eight lines of a warp side by side, which begin anywhere and end within a word."""
    for (m, n), pad, offset in (
        ((67, columns + 3), 0, 1),
        ((70, columns + 1), 4, 3),
        ((1, columns - 1), 2, 0),
    ):
        tile = Tile(64, columns, 32)
        staged, direct = outputs((m, n, 40), kind, lines(row_major, pad, offset), tile=tile)
        assert torch.equal(staged, direct)


@pytest.mark.parametrize("n", range(1, 20))
def test_lines_of_any_length(n):
    """Lines of less than a word, of whole words alone, with a head, with a tail and with both."""
    for offset in (0, 1):
        staged, direct = outputs((5, n, 16), "bf16", lines(True, 0, offset), tile=Tile(64, 64, 32))
        assert torch.equal(staged, direct)
