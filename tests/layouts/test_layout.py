# SPDX-License-Identifier: Apache-2.0
"""Layout as a function: evaluation, sizes, notation, slices and modes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutegemm.layouts import int_tuple
from cutegemm.layouts.layout import Layout, make_layout, ordered_layout, parse, row_major, slice_

LEAVES = st.builds(Layout, st.integers(1, 4), st.integers(0, 9))
LAYOUTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: make_layout(*parts)),
    max_leaves=5,
)


@given(LAYOUTS)
def test_a_layout_is_the_inner_product_with_its_strides(layout):
    """Natural coordinate and linear index give the same offset: the sum of coordinate times stride."""
    for index, coordinate in enumerate(int_tuple.coordinates(layout.shape)):
        pairs = zip(int_tuple.flatten(coordinate), int_tuple.flatten(layout.stride))
        assert layout(coordinate) == layout(index) == sum(c * d for c, d in pairs)


@given(LAYOUTS)
def test_size_and_cosize_bound_domain_and_image(layout):
    """Size counts the coordinates; cosize is one more than the largest offset."""
    offsets = [layout(coordinate) for coordinate in int_tuple.coordinates(layout.shape)]
    assert layout.size == len(offsets)
    assert layout.cosize == max(offsets) + 1


@given(LAYOUTS)
def test_notation_round_trip(layout):
    """The printed notation and the repr both give the layout back."""
    assert parse(str(layout)) == layout
    assert eval(repr(layout)) == layout


@given(LAYOUTS)
def test_modes_join_to_the_layout(layout):
    """A layout with more than one mode is the concatenation of its modes, and their offsets add up."""
    assert len(list(layout)) == len(layout) == layout.rank
    if isinstance(layout.shape, tuple):
        assert make_layout(*layout) == layout
        coordinate = tuple(mode.size - 1 for mode in layout)
        assert layout(*coordinate) == sum(mode(c) for mode, c in zip(layout, coordinate))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.randoms())
def test_ordered_layout_is_compact_in_its_order(shape, random):
    """Walking the modes in the given order visits 0, 1, 2, ... without gaps."""
    order = list(range(len(shape)))
    random.shuffle(order)
    layout = ordered_layout(shape, tuple(order))
    fastest_first = sorted(range(len(shape)), key=lambda mode: order[mode])
    offsets = []
    for walked in int_tuple.coordinates(tuple(shape[mode] for mode in fastest_first)):
        coordinate = dict(zip(fastest_first, walked))
        offsets.append(layout(tuple(coordinate[mode] for mode in range(len(shape)))))
    assert offsets == list(range(layout.size))


def test_default_stride_is_column_major_and_row_major_is_its_mirror():
    """Without strides the first mode is contiguous; in row_major the last one is."""
    assert Layout((4, (2, 3))).stride == (1, (4, 8))
    assert row_major((4, (2, 3))).stride == (6, (3, 1))


@given(LAYOUTS, st.data())
def test_slice_splits_offset_and_function(layout, data):
    """For each choice of kept modes, offset plus the kept layout gives the offsets of the whole."""
    fixed = tuple(data.draw(st.none() | st.integers(0, mode.size - 1)) for mode in layout)
    kept, offset = slice_(layout, fixed if isinstance(layout.shape, tuple) else fixed[0])
    extents = [mode.size if f is None else 1 for f, mode in zip(fixed, layout)]
    expected = []
    for walked in int_tuple.coordinates(tuple(extents)):
        whole = tuple(w if f is None else f for w, f in zip(walked, fixed))
        expected.append(layout(*whole))
    assert [offset + kept(i) for i in range(kept.size)] == expected


def test_slice_reaches_into_nested_modes():
    """A nested None keeps just that leaf."""
    assert slice_(Layout((4, (2, 3))), (3, (None, 2))) == (Layout(2, 4), 3 + 16)
    assert slice_(Layout((4, (2, 3))), (3, (1, 2))) == (Layout(1, 0), 3 + 4 + 16)
