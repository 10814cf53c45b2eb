# SPDX-License-Identifier: Apache-2.0
"""Nested tuples: round trips, orders and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.errors import SpecError
from cutegemm.layouts import int_tuple

SHAPES = st.recursive(
    st.integers(1, 4), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=5
)


@given(SHAPES)
def test_coordinates_run_colexicographically(shape):
    """The i-th coordinate is the one whose linear index, counted by hand with the first mode fastest, is i."""
    found = list(int_tuple.coordinates(shape))
    assert len(found) == len(set(found)) == int_tuple.product(shape)
    reversed_leaves = [int_tuple.flatten(coordinate)[::-1] for coordinate in found]
    assert reversed_leaves == sorted(reversed_leaves)


@given(SHAPES)
def test_index_and_coordinate_are_inverse(shape):
    """With compact strides, the i-th coordinate has the index i."""
    strides = int_tuple.prefix_product(shape)
    for index, coordinate in enumerate(int_tuple.coordinates(shape)):
        assert int_tuple.crd2idx(coordinate, shape, strides) == index


@given(SHAPES)
def test_text_round_trip(shape):
    """Printing and parsing an int tuple gives it back, one-element tuples included."""
    assert int_tuple.parse(int_tuple.to_string(shape)) == shape


@given(SHAPES)
def test_flatten_round_trip(shape):
    """Flattening and nesting again by the profile gives the tuple back."""
    assert int_tuple.unflatten(int_tuple.flatten(shape), shape) == shape


@given(SHAPES)
def test_congruence_is_of_the_nesting_alone(shape):
    """A shape is congruent with its strides, and with no other nesting."""
    assert int_tuple.congruent(shape, int_tuple.prefix_product(shape))
    assert not int_tuple.congruent((shape, 1), (shape, 1, 1))
    assert not int_tuple.congruent((shape, 1), shape)


def test_depth_counts_the_deepest_nesting():
    """Depth is 0 for an int and grows by one with each level."""
    assert [int_tuple.depth(t) for t in (5, (5,), (5, (6, (7,))))] == [0, 1, 3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "()",
        "(1,)",
        "(1",
        "1)",
        "(1,a)",
        "(1,,2)",
        "-",
        "1:2",
        "1,2",
        "(1),(2)",
        "True",
        "1.5",
        "0x10",
        "x" * 9,
        "[1]",
        "(" * 9000,
    ],
)
def test_parse_refuses_what_is_no_int_tuple(text):
    """Broken text is refused, not read half way."""
    with pytest.raises(SpecError, match="text="):
        int_tuple.parse(text)


@pytest.mark.parametrize("value", [True, 1.0, "4", None, [4], (), (4, ()), (4, -1), 0])
def test_check_refuses_what_is_no_shape(value):
    """Bools, floats, lists, empty tuples and extents below 1 are no shapes."""
    with pytest.raises(SpecError, match="shape="):
        int_tuple.check_int_tuple(value, "shape", 1)


@pytest.mark.parametrize(
    "coordinate", [24, -1, (4, 0), (0, 6), (0, (0, 3)), (0, 0, 0), (0, (0, 0, 0)), True, None]
)
def test_crd2idx_refuses_coordinates_outside(coordinate):
    """A coordinate that is too large, negative or nested otherwise than the shape is refused."""
    with pytest.raises(SpecError, match="coordinate="):
        int_tuple.crd2idx(coordinate, (4, (2, 3)), (1, (4, 8)))


def test_crd2idx_refuses_a_tuple_for_a_leaf():
    """A coordinate nested more deeply than the shape is refused."""
    with pytest.raises(SpecError, match="profile"):
        int_tuple.crd2idx((0, (1, 1)), (4, 6), (1, 4))
