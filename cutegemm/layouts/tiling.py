# SPDX-License-Identifier: Apache-2.0
"""Tiling: divides split a layout into tiles, products repeat a block.

Tilers are those of `algebra`; a tiler that does not divide is refused, never rounded. The divides and `tile_to_shape`
also accept a `ComposedLayout`: they act on the layout inside the swizzle.
Source: docs.nvidia.com/cutlass, "CuTe Layout Algebra".
"""

from __future__ import annotations

from cutegemm.layouts.algebra import Tiler, by_mode, check_tilers, coalesce, complement, composition
from cutegemm.layouts.int_tuple import ceil_div, require
from cutegemm.layouts.layout import Layout, make_layout, ordered_layout
from cutegemm.layouts.swizzle import through_swizzle


@through_swizzle
def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Split a layout into (the tile, the tiles).

    Law: logical_divide(A, B) = A o (B, complement(B, size(A))); a tuple divides by mode.

    Raises:
        SpecError: the tiler does not divide the layout.

    >>> print(logical_divide(Layout(24, 3), Layout(4, 2)))
    (4,(2,3)):(6,(3,24))
    """
    if tiler is None:
        return layout
    if isinstance(tiler, tuple):
        return by_mode(logical_divide, layout, tiler)
    tile = tiler if isinstance(tiler, Layout) else Layout(tiler)
    return composition(layout, make_layout(tile, complement(tile, layout.size)))


@through_swizzle
def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Divide by mode and group the results: ((tile_m, tile_n, ...), (rest_m, rest_n, ...)).

    Raises:
        SpecError: the tiler does not divide the layout.

    >>> print(zipped_divide(Layout((8, 6)), (4, 3)))
    ((4,3),(2,2)):((1,8),(4,24))
    """
    if tiler is None:
        return make_layout(Layout(1, 0), layout)
    if not isinstance(tiler, tuple):
        return logical_divide(layout, tiler)
    check_tilers(layout, tiler)
    parts = [zipped_divide(mode, t) for mode, t in zip(layout, tiler)]
    rest = [part[1] for part in parts] + list(layout)[len(tiler) :]
    return make_layout(make_layout(*(part[0] for part in parts)), make_layout(*rest))


@through_swizzle
def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Divide like `zipped_divide`, the rest flattened by one level: ((tile_m, tile_n), rest_m, rest_n).

    Raises:
        SpecError: the tiler does not divide the layout.

    >>> print(tiled_divide(Layout((8, 6)), (4, 3)))
    ((4,3),2,2):((1,8),4,24)
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout(tile, *rest)


@through_swizzle
def flat_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Divide like `zipped_divide`, both halves flattened by one level: (tile_m, tile_n, rest_m, rest_n).

    Raises:
        SpecError: the tiler does not divide the layout.

    >>> print(flat_divide(Layout((8, 6)), (4, 3)))
    (4,3,2,2):(1,8,4,24)
    """
    tile, rest = zipped_divide(layout, tiler)
    return make_layout(*tile, *rest)


def logical_product(block: Layout, tiler: Layout | int) -> Layout:
    """Repeat a block according to the tiler: (the block, the repetitions).

    Law: logical_product(A, B) = (A, complement(A, size(A) * cosize(B)) o B).

    Raises:
        SpecError: the block has no complement, or the complement does not compose with the tiler.

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6)))
    ((2,2),(2,3)):((4,1),(2,8))
    """
    repeat = tiler if isinstance(tiler, Layout) else Layout(tiler)
    return make_layout(block, composition(complement(block, block.size * repeat.cosize), repeat))


def blocked_product(block: Layout, tiler: Layout) -> Layout:
    """Repeat a block of rank R over a tiler of rank R, mode by mode: ((block_m, tile_m), (block_n, tile_n)).

    The block stays contiguous: its coordinate is the fastest within each mode. The shorter rank is padded with 1:0.

    Raises:
        SpecError: as `logical_product`.

    >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
    ((2,3),(5,4)):((5,10),(1,30))
    """
    return make_layout(*(make_layout(b, t) for b, t in _paired_modes(block, tiler)))


def raked_product(block: Layout, tiler: Layout) -> Layout:
    """Repeat a block of rank R over a tiler of rank R, mode by mode: ((tile_m, block_m), (tile_n, block_n)).

    The blocks are interleaved: the tiler's coordinate is the fastest within each mode.

    Raises:
        SpecError: as `logical_product`.

    >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
    ((3,2),(4,5)):((10,5),(30,1))
    """
    return make_layout(*(make_layout(t, b) for b, t in _paired_modes(block, tiler)))


def _paired_modes(block: Layout, tiler: Layout) -> list[tuple[Layout, Layout]]:
    """Pair each mode of the block with its repetitions by the tiler's mode at the same position."""
    rank = max(block.rank, tiler.rank)
    blocks, repeats = logical_product(_padded(block, rank), _padded(tiler, rank))
    return list(zip(blocks, repeats))


def _padded(layout: Layout, rank: int) -> Layout:
    """Append 1:0 modes up to `rank`; a layout of one leaf becomes a tuple of one mode."""
    return make_layout(*layout, *(Layout(1, 0) for _ in range(rank - layout.rank)))


@through_swizzle
def tile_to_shape(block: Layout, shape: tuple[int, ...], order: tuple[int, ...] | None = None) -> Layout:
    """Repeat a block until it fills `shape`, first along the mode with the smallest `order`.

    Without an order, modes are filled from the first to the last. Each mode of the result is coalesced.

    Raises:
        SpecError: the block's extents do not divide `shape`, or the ranks do not match.

    >>> print(tile_to_shape(Layout((8, 64), (64, 1)), (128, 128)))
    (128,(64,2)):(64,(1,8192))
    >>> print(tile_to_shape(Layout((8, 64), (64, 1)), (128, 128), (1, 0)))
    ((8,16),(64,2)):((64,1024),(1,512))
    """
    require(
        len(shape) >= block.rank,
        "shape",
        shape,
        f"must have at least the {block.rank} modes of the block {block}",
    )
    extents = [mode.size for mode in _padded(block, len(shape))]
    for mode, (target, extent) in enumerate(zip(shape, extents)):
        require(
            target % extent == 0,
            f"shape[{mode}]",
            target,
            f"must be a multiple of the block's extent {extent}",
            ceil_div(target, extent) * extent,
        )
    repeats = tuple(target // extent for target, extent in zip(shape, extents))
    tiler = ordered_layout(repeats, order or tuple(range(len(shape))))
    return coalesce(blocked_product(block, tiler), tuple(0 for _ in shape))
