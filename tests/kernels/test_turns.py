# SPDX-License-Identifier: Apache-2.0
"""CTAs of a cluster whose tile does not divide into whole groups of rows load it in turn, each every few k tiles."""

from __future__ import annotations

import pytest
import torch

from cutegemm import GemmSpec, Tile, emulator, problem
from cutegemm import epilogue as epi
from cutegemm.emulator import Options
from cutegemm.gemm import Gemm, build
from cutegemm.planning.planner import plan
from tests.support.epilogues import assert_outputs_close
from tests.support.numerics import assert_close

BF16 = torch.bfloat16
ROWS = Tile(64, 56, 64)
# two stages, so that they are filled again, and several tiles for each CTA
FOUR = {"tile": ROWS, "cluster": (4, 1), "swap": False, "stages": 2, "sms": 8}
PAIR = FOUR | {"tile": Tile(64, 24, 64), "cluster": (2, 1)}
WAYS = {
    "B among four": FOUR,
    "B among two": PAIR,
    "a row and a column": FOUR | {"cluster": (2, 2)},
    "eight CTAs": FOUR | {"cluster": (4, 2)},
    "more CTAs than k tiles": FOUR | {"cluster": (8, 1)},
    "two consumers": FOUR | {"tile": Tile(128, 40, 64)},
    "pingpong": PAIR | {"schedule": "pingpong"},
    "operands swapped": FOUR | {"tile": Tile(40, 64, 64), "cluster": (1, 4), "swap": True},
    "split in a cluster": PAIR | {"cluster": (2, 1, 2), "split_k": 2},
    "split by a launch": PAIR | {"split_k": 3, "split_reduction": "launch"},
    # five clusters and 36 tiles, of which the last is streamed
    "stream-k": PAIR | {"scheduler": "stream_k", "sms": 10},
    "dynamic": PAIR | {"scheduler": "dynamic"},
    "constant weights": FOUR | {"constant": ("b",), "trigger": "loads"},
    "constant activations": FOUR | {"constant": ("a",), "trigger": "loads"},
}


def draw(*shape: int) -> torch.Tensor:
    """Random bf16."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def factors(fields: dict, m: int, n: int, *batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and a B contiguous along K, with tiles and k tiles that are not whole."""
    k = 840 if "split_k" in fields else 328
    return draw(*batch, m, k), draw(*batch, n, k).mT


def taken_in_turn(fields: dict, m: int, n: int, **kinds) -> str:
    """The operands whose tiles CTAs load in turn."""
    config = plan(GemmSpec(**fields), problem(m, n, 840, majors="kk", **kinds)).config
    return "".join(x.role for x in config.stage if x.in_turn)


@pytest.mark.sliced
@pytest.mark.parametrize("policy", [{"policy": "lazy"}, {"policy": "random", "seed": 1}])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_the_kernel_is_right_and_free_of_races(way, policy):
    """All CTAs that need a tile receive it from the one that loads it, and no load overwrites a stage that is read."""
    fields = WAYS[way]
    a, b = factors(fields, 400, 200)
    assert taken_in_turn(fields, 400, 200) == "b"
    run = emulator.run(Gemm(GemmSpec(**fields)), a, b, options=Options(races=True, **policy))
    assert not run.findings, [str(x) for x in run.findings[:3]]
    assert_close(run.d, a, b)


@pytest.mark.sliced
def test_batches_and_halves_of_a_pair_are_loaded_in_turn():
    """A gated B has two halves of 24 rows, which both CTAs of a pair need; matrices of a batch follow each other."""

    @epi.define(gated="halves")
    def product(gate, up):
        return gate * up

    a, b = factors(PAIR, 200, 208, 2)
    fields = PAIR | {"tile": Tile(64, 48, 64), "epilogue": product}
    assert taken_in_turn(fields, 200, 208, epilogue=product, batch=2) == "b"
    gemm = Gemm(GemmSpec(**fields))
    run = emulator.run(gemm, a, b, options=Options(races=True))
    assert not run.findings
    assert_outputs_close({"d": run.d}, product, a, b, {})


A_IN_TURN = {"tile": Tile(64, 64, 64), "swap": False, "stages": 2, "sms": 8}
OTHERS = {
    "A by threads": (PAIR | {"a_load": "gather"}, "kk", "bf16", "b"),
    "two boxes a stage": (FOUR | {"tile": Tile(64, 56, 128)}, "kk", "bf16", "b"),
    "fp8": (FOUR | {"tile": Tile(64, 56, 128)}, "kk", "fp8_e4m3", "b"),
    "B in turn along K": (PAIR | {"tile": Tile(64, 32, 16), "cluster": (4, 1)}, "kn", "bf16", "b"),
    "A in turn along K": (A_IN_TURN | {"tile": Tile(64, 64, 16), "cluster": (1, 4)}, "mk", "bf16", "a"),
}


@pytest.mark.sliced
@pytest.mark.parametrize("name", OTHERS)
def test_other_operands_are_loaded_in_turn(name):
    """Whatever their type and major, and whoever loads the other one: with the bits of a CTA that loads alone."""
    fields, majors, dtype, roles = OTHERS[name]
    m, n, k = 400, 208, 336
    of = problem(m, n, k, majors=majors, dtype=dtype)
    assert "".join(x.role for x in plan(GemmSpec(**fields), of).config.stage if x.in_turn) == roles
    a = draw(m, k) if majors[0] == "k" else draw(k, m).mT
    b = draw(k, n) if majors[1] == "n" else draw(n, k).mT
    if dtype != "bf16":
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    run = emulator.run(Gemm(GemmSpec(**fields)), a, b, options=Options(races=True))
    assert not run.findings, [str(x) for x in run.findings[:3]]
    depth = 64 if dtype == "bf16" else 128
    shared = emulator.run(Gemm(GemmSpec(tile=Tile(64, 64, depth), cluster=(1, 1), swap=False)), a, b)
    assert torch.equal(run.d, shared.d)


def test_tiles_that_divide_are_loaded_in_shares():
    """Shares are whole groups of eight rows of a K-major tile; the other major is divided along K."""
    assert taken_in_turn(FOUR | {"tile": Tile(64, 64, 64)}, 400, 200) == ""
    pair = plan(GemmSpec(**PAIR), problem(400, 200, 840, majors="kn")).config
    assert not any(x.in_turn for x in pair.stage)
    boxes = {x.operand: x.extents for x in plan(GemmSpec(**FOUR), problem(400, 200, 840, majors="kk")).boxes}
    assert boxes["A"] == (64, 64) and boxes["B"] == (64, 56)


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_agrees(way):
    """Three calls, each after the last, since barriers and counters are used again."""
    fields = {name: x for name, x in WAYS[way].items() if name != "sms"}
    a, b = (x.cuda() for x in factors(fields, 1000, 1160))
    gemm = build(GemmSpec(**fields))
    for _ in range(3):
        d = torch.full((1000, 1160), float("nan"), dtype=BF16, device="cuda")
        gemm.run(a, b, out=d)
        assert_close(d, a, b)
