# SPDX-License-Identifier: Apache-2.0
"""Registers of kernels with scales of blocks: those of a thread's partial sums and scales, and the producer's."""

import dataclasses

import pytest

from cutegemm import GemmSpec, Tile, plan, problem
from cutegemm.compiling.compiler import compile_config
from cutegemm.errors import GemmError
from tests.support.scales import ROWS, SQUARES


@pytest.mark.parametrize(
    ("kinds", "fields", "sets"),
    [
        ((ROWS, SQUARES), {"tile": Tile(128, 128, 128)}, 2),
        ((ROWS, SQUARES), {"tile": Tile(128, 128, 128), "stages": 1}, 1),
        ((ROWS, SQUARES), {"tile": Tile(128, 192, 128)}, 1),
        ((ROWS, SQUARES), {"tile": Tile(256, 64, 128)}, 1),
        ((ROWS, ROWS), {"tile": Tile(128, 128, 128)}, 1),
        ((ROWS, ROWS), {"tile": Tile(128, 64, 128)}, 1),
        ((ROWS, ROWS), {"tile": Tile(64, 64, 128), "consumers": 1}, 2),
    ],
)
def test_two_sets_of_partial_sums_where_registers_hold_them(kinds, fields, sets):
    """Beside the sums and a stage's scales; a stage is read while the next is multiplied, so there are two.

    Warpgroups that share a tile with a scale for each column have one set, and issue in turn.
    """
    fields = {"consumers": 2, **fields}
    spec = GemmSpec(scale_a=kinds[0], scale_b=kinds[1], swap=False, schedule="cooperative", **fields)
    config = plan(spec, problem(512, 512, 512, dtype="fp8", majors="kk", epilogue=spec.epilogue)).config
    held = config.tile_values * (1 + sets) + config.scale_values
    assert config.partial_sets == sets and config.held_values == held


@pytest.mark.parametrize(
    ("fields", "registers"),
    [
        ({"tile": Tile(128, 128, 128)}, (24, 240)),
        ({"tile": Tile(128, 192, 128)}, (40, 232)),
        ({"tile": Tile(128, 128, 128), "constant": ("a", "b"), "trigger": "start"}, (40, 232)),
    ],
)
def test_a_producer_of_scales_has_registers_for_them(fields, registers):
    """With 24 it spills where it loads several scales of B, or tiles before earlier launches have ended."""
    spec = GemmSpec(scale_a=ROWS, scale_b=SQUARES, consumers=2, swap=False, schedule="cooperative", **fields)
    config = plan(spec, problem(1024, 1024, 4096, dtype="fp8", majors="kk", epilogue=spec.epilogue)).config
    assert config.registers == registers
    assert compile_config(config).resources.frame_bytes == 0


@pytest.mark.parametrize(
    ("widest", "schedule"),
    [
        (Tile(128, 160, 128), "cooperative"),
        (Tile(192, 96, 128), "cooperative"),
        (Tile(256, 96, 128), "cooperative"),
        (Tile(64, 160, 128), "pingpong"),
        (Tile(128, 80, 128), "pingpong"),
    ],
    ids=str,
)
def test_the_widest_tiles_of_two_scales_do_not_spill(widest, schedule):
    """With a scale for each row and each column; eight columns more would hold too much, and are refused."""
    spec = GemmSpec(scale_a=ROWS, scale_b=ROWS, tile=widest, schedule=schedule, swap=False, d_dtype="bf16")
    of = problem(1024, 1024, 1024, dtype="fp8", majors="kk", epilogue=spec.epilogue)
    assert compile_config(plan(spec, of).config).resources.frame_bytes == 0
    wider = Tile(widest.m, widest.n + 8, 128)
    with pytest.raises(GemmError, match=f"tile.n={wider.n}: .* accumulators"):
        plan(dataclasses.replace(spec, tile=wider), of)
