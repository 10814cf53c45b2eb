# SPDX-License-Identifier: Apache-2.0
"""A serpentine raster turns back along panels and along K: its tiles hold the sums of one order or of the other."""

import dataclasses

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm.arch.records import H200
from cutegemm.emulator import Options
from cutegemm.gemm import Gemm
from cutegemm.planning.planner import plan
from cutegemm.running import run as path
from tests.support.numerics import assert_close

pytestmark = pytest.mark.sliced

# nothing stays in the L2 of this GPU, and it has few SMs
TINY = dataclasses.replace(H200, l2_bytes=0, sms=4, clusters=((1, 4), (2, 2), (4, 1), (8, 0)))


def run(spec, a, b, **options):
    """A run in the emulator with the race detector on, which finds nothing."""
    found = emulator.run(Gemm(spec), a, b, options=Options(races=True, **options))
    assert not found.findings
    return found.d


def factors(m, n, k):
    """A and B."""
    generator = torch.Generator().manual_seed(m + k)
    return (torch.randn(*shape, generator=generator).bfloat16() for shape in ((m, k), (k, n)))


def test_every_second_wave_adds_its_k_tiles_backwards(monkeypatch):
    """One CTA's tiles in turn: (0, 0), back in (0, 1), then (1, 1) beside it, and back in (1, 0)."""
    spec = GemmSpec(tile=Tile(64, 64, 64), sms=1, swap=False, raster=("m", 1), d_dtype="fp32")
    a, b = factors(128, 128, 320)
    forwards = run(spec, a, b)
    order = torch.arange(320).reshape(5, 64).flip(0).flatten()
    backwards = run(spec, a[:, order].contiguous(), b[order].contiguous())
    monkeypatch.setattr(path, "DEFAULT", dataclasses.replace(TINY, sms=1))
    found = run(spec, a, b)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        tile = (slice(64 * i, 64 * i + 64), slice(64 * j, 64 * j + 64))
        assert not torch.equal(forwards[tile], backwards[tile])
        assert torch.equal(found[tile], (forwards if i == j else backwards)[tile]), (i, j)
    # a tile's number decides, whoever takes it
    assert torch.equal(run(dataclasses.replace(spec, scheduler="dynamic"), a, b), found)


@pytest.mark.parametrize("policy", [{"policy": "lazy"}, {"policy": "random", "seed": 1}])
@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"tile": Tile(64, 64, 64), "cluster": (2, 1), "schedule": "pingpong"}, (520, 200, 200)),
        ({"tile": Tile(128, 64, 64), "cluster": (2, 1), "raster": ("n", 2), "stages": 3}, (390, 328, 328)),
        ({"tile": Tile(128, 64, 64), "stages": 1}, (648, 136, 64)),
        ({"tile": Tile(64, 64, 64), "cluster": (1, 2), "scheduler": "dynamic"}, (520, 200, 200)),
        ({"tile": Tile(128, 64, 64), "schedule": "pingpong", "scheduler": "dynamic"}, (390, 328, 136)),
    ],
)
def test_a_serpentine_product_is_right_and_free_of_races(monkeypatch, fields, shape, policy):
    """Consumers that share tiles or take turns, pairs, rings that wrap, a last wave of fewer tiles, one k tile."""
    monkeypatch.setattr(path, "DEFAULT", TINY)
    spec = GemmSpec(**fields, swap=False, split_k=1)
    assert plan(spec, problem(*shape), TINY).config.serpentine
    a, b = factors(*shape)
    assert_close(run(spec, a, b, **policy), a, b)
