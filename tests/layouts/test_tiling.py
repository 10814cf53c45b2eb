# SPDX-License-Identifier: Apache-2.0
"""Divides and products against what they mean: tiles of a matrix, repetitions of a block."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.errors import SpecError
from cutegemm.layouts.algebra import complement, composition
from cutegemm.layouts.layout import Layout, make_layout, row_major
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle
from cutegemm.layouts.tiling import (
    blocked_product,
    flat_divide,
    logical_divide,
    logical_product,
    raked_product,
    tile_to_shape,
    tiled_divide,
    zipped_divide,
)

EXTENTS = (1, 2, 3, 4)
BLOCKS = [Layout(s, d) for s in EXTENTS for d in range(5)] + [
    Layout((s, t), (d, e))
    for s, t in itertools.product((2, 3), repeat=2)
    for d, e in itertools.product(range(7), repeat=2)
]
TILERS = [Layout(s, d) for s in EXTENTS for d in range(1, 4)] + [
    Layout((2, 2), (2, 1)),
    Layout((2, 3), (1, 4)),
]


def offsets(layout: Layout) -> list[int]:
    """Evaluate a layout at every linear index."""
    return [layout(i) for i in range(layout.size)]


def test_logical_divide_is_composition_with_tiler_and_complement():
    """The first mode is A over the tile, the second A over the tiles' origins, and together they permute A."""
    divided = 0
    for a, tile in itertools.product(BLOCKS, TILERS):
        try:
            result = logical_divide(a, tile)
        except SpecError:
            continue
        divided += 1
        rest = complement(tile, a.size)
        for i, j in itertools.product(range(tile.size), range(rest.size)):
            assert result(i, j) == a(tile(i) + rest(j)), (a, tile)
        assert sorted(offsets(result)) == sorted(offsets(a)), (a, tile)
    assert divided > 300


@given(
    st.tuples(*[st.integers(1, 4)] * 2),
    st.tuples(*[st.integers(1, 4)] * 2),
    st.sampled_from([Layout, row_major]),
)
def test_divides_cut_a_matrix_into_tiles(tile, tiles, make):
    """Tile coordinate (i, j) of tile (p, q) is the matrix element (i + p * tile_m, j + q * tile_n), in all forms."""
    matrix = make((tile[0] * tiles[0], tile[1] * tiles[1]))
    zipped, tiled, flat = zipped_divide(matrix, tile), tiled_divide(matrix, tile), flat_divide(matrix, tile)
    for i, j, p, q in itertools.product(range(tile[0]), range(tile[1]), range(tiles[0]), range(tiles[1])):
        element = matrix(i + p * tile[0], j + q * tile[1])
        assert zipped((i, j), (p, q)) == tiled((i, j), p, q) == flat(i, j, p, q) == element
        assert logical_divide(matrix, tile)((i, p), (j, q)) == element


def test_divide_leaves_untiled_modes_alone():
    """None and missing entries give a mode of one tile."""
    matrix = Layout((8, 6, 5))
    assert logical_divide(matrix, (4, None)) == Layout(((4, 2), 6, 5), ((1, 4), 8, 48))
    assert zipped_divide(matrix, (4, None)) == Layout(((4, 1), (2, 6, 5)), ((1, 0), (4, 8, 48)))


def test_divide_refuses_a_tile_that_does_not_divide():
    """A ragged tile is refused: predication is the kernel's business, not the layout's."""
    for divide in (logical_divide, zipped_divide, tiled_divide, flat_divide):
        with pytest.raises(SpecError, match="must be below 10"):
            divide(Layout((10, 8)), (4, 4))


def test_logical_product_repeats_a_block():
    """The first mode is the block; the second puts copies where the complement says, without overlap."""
    made = 0
    for block, tiler in itertools.product(BLOCKS, TILERS):
        try:
            result = logical_product(block, tiler)
        except SpecError:
            continue
        made += 1
        assert result[0] == block
        origins = complement(block, block.size * tiler.cosize)
        assert offsets(result[1]) == [origins(offset) for offset in offsets(tiler)], (block, tiler)
        nonzero = len(set(offsets(block)))
        assert len(set(offsets(result))) == nonzero * len(set(offsets(tiler))), (block, tiler)
    assert made > 500


@given(st.tuples(*[st.integers(1, 4)] * 2), st.tuples(*[st.integers(1, 4)] * 2), st.booleans())
def test_blocked_and_raked_products_place_the_same_blocks(block_shape, tiles, rows):
    """Both products give copy (p, q) of block element (i, j) the offset block + size * tiler(p, q)."""
    block = row_major(block_shape) if rows else Layout(block_shape)
    tiler = Layout(tiles)
    blocked, raked = blocked_product(block, tiler), raked_product(block, tiler)
    for i, j, p, q in itertools.product(*map(range, (*block_shape, *tiles))):
        offset = block(i, j) + block.size * tiler(p, q)
        assert blocked(i + p * block_shape[0], j + q * block_shape[1]) == offset
        assert raked(p + i * tiles[0], q + j * tiles[1]) == offset


@given(st.tuples(*[st.integers(1, 4)] * 2), st.tuples(*[st.integers(1, 3)] * 3), st.permutations(range(3)))
def test_tile_to_shape_repeats_the_block_in_order(block_shape, tiles, order):
    """Each aligned block of the result is the block plus its number in the given order times its size."""
    block = row_major(block_shape)
    shape = (block_shape[0] * tiles[0], block_shape[1] * tiles[1], tiles[2])
    result = tile_to_shape(block, shape, tuple(order))
    assert result.rank == 3 and [mode.size for mode in result] == list(shape)
    fastest = sorted(range(3), key=lambda mode: order[mode])
    for m, n, stage in itertools.product(*map(range, shape)):
        copy = (m // block_shape[0], n // block_shape[1], stage)
        number, running = 0, 1
        for mode in fastest:
            number += copy[mode] * running
            running *= tiles[mode]
        assert result(m, n, stage) == block(m % block_shape[0], n % block_shape[1]) + number * block.size


def test_divides_and_tilings_reach_under_a_swizzle():
    """Tiling a composed layout changes the order of its coordinates and keeps the swizzle."""
    swizzled = ComposedLayout(Swizzle(2, 1, 3), 64, Layout((8, 8)))
    divided = zipped_divide(swizzled, (4, 2))
    assert isinstance(divided, ComposedLayout)
    for i, j, p, q in itertools.product(range(4), range(2), range(2), range(4)):
        assert divided((i, j), (p, q)) == swizzled(i + 4 * p, j + 2 * q)
    tiled = tile_to_shape(swizzled, (16, 16))
    assert all(tiled(m, n) == swizzled.swizzle(64 + tiled.layout(m, n)) for m in range(16) for n in range(16))
    assert composition(swizzled, Layout(4, 3))(2) == swizzled(6)


def test_a_product_of_modes_is_a_layout_of_modes():
    """A blocked product of rank 1 pads: its only mode holds block and tiler."""
    assert blocked_product(Layout(4), Layout(3)) == make_layout(make_layout(Layout(4, 1), Layout(3, 4)))
