# SPDX-License-Identifier: Apache-2.0
"""The CUDA cores' tiles and cuts of K, as the planner chooses them."""

import dataclasses
import math

import pytest

from cutegemm import GemmSpec
from cutegemm.arch.records import H200
from cutegemm.planning import simt_tiles
from cutegemm.planning.planner import plan
from cutegemm.planning.simt_tiles import TILES, choose, tiles_of
from cutegemm.problems import problem


@pytest.mark.parametrize(
    "shape", [(512, 512, 512), (16, 4096, 4096), (4096, 16, 4096), (64, 4096, 4096), (100, 60, 9000)]
)
def test_few_tiles_are_cut_until_most_multiprocessors_work(shape):
    """Where output tiles cannot occupy the GPU, K is cut; the CTAs then cover at least two thirds of its SMs or are
    as many as a cluster holds."""
    posed = problem(*shape, dtype="fp32")
    tile = choose(posed, H200)
    assert tile.split > 1
    assert tiles_of(posed, tile) * tile.split >= H200.sms * 2 / 3 or tile.split == max(simt_tiles.SPLITS)


@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (64, 4096, 4096), (512, 512, 512)])
def test_middling_products_give_every_multiprocessor_warps_enough(shape):
    """All clusters run at once, on nearly all SMs, each with sixteen warps, or eight of 8 x 16 a thread."""
    posed = problem(*shape, dtype="fp32")
    tile = choose(posed, H200)
    places = H200.resident_clusters(tile.split)
    busiest = -(-tiles_of(posed, tile) // places)
    values = math.prod(tile.thread_tile)
    assert busiest <= tile.residents and busiest * tile.warps * values >= 16 * 64
    assert tiles_of(posed, tile) * tile.split >= 0.95 * busiest * H200.sms


def test_element_loads_leave_tiles_of_slices_their_residents():
    """An SM keeps its sixteen warps where leading dimensions are odd; the large tile gives one CTA of two up."""
    for shape, residents in (((1023, 1023, 1023), 2), ((4095, 4095, 4095), 1)):
        config = plan(GemmSpec(a_dtype="fp32"), problem(*shape, dtype="fp32")).config
        assert (config.slices > 1, config.residents) == (residents == 2, residents)


@pytest.mark.parametrize("extent", [2048, 4096, 8192])
def test_many_tiles_are_not_cut(extent):
    """Large squares take the largest tile, whole."""
    tile = choose(problem(extent, extent, extent, dtype="fp32"), H200)
    assert (tile.tile, tile.staged, tile.split) == ((128, 128, 8), True, 1)


@pytest.mark.parametrize("shape", [(16, 4096, 4096), (512, 512, 512), (3000, 40, 50)])
def test_16_bit_elements_come_through_registers(shape):
    """A ring takes no elements that have to be converted."""
    assert choose(problem(*shape), H200).staged


def test_tiles_differ_and_fit():
    """No tile needs more shared memory or threads than an SM has for its residents."""
    assert len({dataclasses.replace(x, split=1) for x in TILES}) == len(TILES)
    for tile in TILES:
        ring = (tile.tile[0] + tile.tile[1]) * tile.tile[2] * 4 * tile.stages
        sums = tile.tile[0] * tile.tile[1] * 4 * tile.slices
        assert max(ring, sums) * tile.residents <= 227 * 1024
        assert tile.warps * tile.residents <= 64
