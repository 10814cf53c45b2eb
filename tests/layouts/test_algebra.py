# SPDX-License-Identifier: Apache-2.0
"""The algebra against its definitions, at every coordinate of all small layouts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.errors import SpecError
from cutegemm.layouts import int_tuple
from cutegemm.layouts.algebra import coalesce, complement, composition, left_inverse, right_inverse
from cutegemm.layouts.layout import Layout, make_layout


def flat_layouts(rank: int, extents: tuple[int, ...], strides: range) -> list[Layout]:
    """List all layouts of one rank with the given extents and strides."""
    leaves = list(itertools.product(extents, strides))
    if rank == 1:
        return [Layout(*leaf) for leaf in leaves]
    return [Layout(*zip(*modes)) for modes in itertools.product(leaves, repeat=rank)]


SMALL = flat_layouts(1, (1, 2, 3, 4, 6), range(9)) + flat_layouts(2, (1, 2, 3, 4), range(9))
DEEP = flat_layouts(3, (2, 3), range(7))
LEAVES = st.builds(Layout, st.sampled_from((1, 2, 3, 4, 8)), st.sampled_from((0, 1, 2, 3, 4, 6, 8, 16, 24)))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda parts: make_layout(*parts)),
    max_leaves=4,
)


def offsets(layout: Layout) -> list[int]:
    """Evaluate a layout at every linear index."""
    return [layout(i) for i in range(layout.size)]


def is_layout_function(values: list[int]) -> bool:
    """Decide whether some layout has these values, by peeling off the longest linear run."""
    if len(values) == 1:
        return values[0] == 0
    run = 1
    while run < len(values) and values[run] == run * values[1]:
        run += 1
    if run == len(values):
        return values[0] == 0
    splits = all(value == values[i % run] + values[i - i % run] for i, value in enumerate(values))
    return len(values) % run == 0 and splits and is_layout_function(values[::run])


@pytest.mark.parametrize("layout", [pytest.param(SMALL, id="rank<=2"), pytest.param(DEEP, id="rank3")])
def test_coalesce_keeps_the_function_in_the_fewest_modes(layout):
    """The coalesced layout has the same offsets; no two neighbours merge; no extent 1 is left beside others."""
    for each in layout:
        merged = coalesce(each)
        assert offsets(merged) == offsets(each), each
        pairs = merged.flat_modes
        assert all(s * d != next_d for (s, d), (_, next_d) in itertools.pairwise(pairs)), each
        assert len(pairs) == 1 or all(extent > 1 for extent, _ in pairs), each


@given(NESTED)
def test_coalesce_of_nested_layouts(layout):
    """Nesting does not matter to coalesce; by mode, each mode keeps its own function."""
    assert offsets(coalesce(layout)) == offsets(layout)
    if isinstance(layout.shape, tuple):
        by_mode = coalesce(layout, (0,) * layout.rank)
        assert [mode.size for mode in by_mode] == [mode.size for mode in layout]
        assert [offsets(mode) for mode in by_mode] == [offsets(mode) for mode in layout]
        assert by_mode.depth <= 2


def test_composition_is_defined_exactly_when_a_layout_exists():
    """Over all small pairs: what is returned equals A(B(i)); what is refused is no layout over B's modes."""
    firsts = flat_layouts(1, (2, 3, 4), range(4)) + flat_layouts(2, (2, 3, 4), range(6))
    seconds = flat_layouts(1, (1, 2, 3, 4, 6), range(7)) + flat_layouts(2, (2, 3), range(5))
    defined = refused = 0
    for a, b in itertools.product(firsts, seconds):
        if b.cosize > a.size:
            with pytest.raises(SpecError, match="must be below"):
                composition(a, b)
            continue
        wanted = [a(offset) for offset in offsets(b)]
        try:
            result = composition(a, b)
        except SpecError:
            refused += 1
            parts = [[a(mode(i)) for i in range(mode.size)] for mode in b]
            sums = [sum(row[::-1]) for row in itertools.product(*parts[::-1])]
            assert sums != wanted or not all(map(is_layout_function, parts)), (a, b)
            continue
        defined += 1
        assert offsets(result) == wanted, (a, b)
        assert [result(c) for c in int_tuple.coordinates(b.shape)] == wanted, (a, b)
    assert defined > 5_000 and refused > 3_000  # both sides of the claim were exercised


@settings(max_examples=400)
@given(NESTED, NESTED)
def test_composition_of_nested_layouts_is_never_wrong(a, b):
    """Whatever composition returns equals A(B(c)) at every coordinate c of B."""
    try:
        result = composition(a, b)
    except SpecError:
        return
    for coordinate in int_tuple.coordinates(b.shape):
        assert result(coordinate) == a(b(coordinate))


@given(NESTED)
def test_composition_with_the_identity(a):
    """Composing with the compact layout of the same shape, or of the same size, changes no offset."""
    assert offsets(composition(a, Layout(a.shape))) == offsets(a)
    assert offsets(composition(a, a.size)) == offsets(a)
    assert offsets(composition(Layout(a.cosize), a)) == offsets(a)


def test_composition_by_mode_and_with_none():
    """A tuple composes mode by mode; None and missing entries leave a mode alone."""
    a = Layout((12, 8, 5), (1, 12, 96))
    assert composition(a, (Layout(3, 4), None)) == Layout((3, 8, 5), (4, 12, 96))
    assert composition(a, None) == a
    assert composition(a, (6, (Layout(2, 4),))).shape == (6, (2,), 5)


def test_complement_fills_the_gaps_in_order():
    """(A, complement) is a bijection onto 0 .. n - 1 with n >= bound least, and the complement increases."""
    found = 0
    for a, bound in itertools.product(SMALL + DEEP, (1, 7, 24)):
        nonzero = [(s, d) for s, d in a.flat_modes if d > 0 and s > 1]
        values = offsets(Layout(*zip(*nonzero))) if nonzero else [0]
        try:
            rest = complement(a, bound)
        except SpecError:
            spans = sorted((d, s * d) for s, d in nonzero)
            assert any(d % span for (_, span), (d, _) in itertools.pairwise(spans)), a
            continue
        found += 1
        gaps = offsets(rest)
        covered = sorted(x + y for x in values for y in gaps)
        assert covered == list(range(len(values) * len(gaps))), (a, bound)
        assert gaps == sorted(set(gaps)), (a, bound)
        assert len(covered) >= bound and (len(covered) - bound < max(values) + 1 + gaps[-1])
    assert found > 1_000


def test_complement_covers_no_more_than_needed():
    """The last repetition is dropped as soon as the bound is covered."""
    for a, bound in itertools.product(SMALL, range(1, 30)):
        try:
            rest, whole = complement(a, bound), complement(a)
        except SpecError:
            continue
        period = coalesce(make_layout(a, whole)).cosize
        assert rest.size == whole.size * -(-bound // period), (a, bound)


def test_complement_refuses_what_overlaps():
    """Two coordinates with one offset, and strides that do not divide, have no complement."""
    for layout in (Layout((2, 2), (1, 1)), Layout((4, 2), (1, 2)), Layout((2, 2), (1, 3))):
        with pytest.raises(SpecError, match="must be a multiple of 2|must be a multiple of 4"):
            complement(layout)


def test_right_inverse_finds_every_offset_it_claims():
    """A(R(i)) = i; for an injective A, R reaches the first offset that A skips."""
    for a in SMALL + DEEP:
        inverse = right_inverse(a)
        assert [a(inverse(i)) for i in range(inverse.size)] == list(range(inverse.size)), a
        image = set(offsets(a))
        if len(image) == a.size:
            first_gap = next(i for i in itertools.count() if i not in image)
            assert inverse.size == first_gap, a


def test_left_inverse_undoes_every_injective_layout_it_takes():
    """R(A(i)) = i; a layout that is not injective is refused."""
    taken = 0
    for a in SMALL + DEEP:
        injective = len(set(offsets(a))) == a.size
        try:
            inverse = left_inverse(a)
        except SpecError:
            strides = sorted(d for s, d in a.flat_modes if s > 1)
            divides = all(x and y % x == 0 for x, y in zip([1, *strides], strides))
            assert not (injective and divides), a
            continue
        taken += 1
        assert injective, a
        assert [inverse(offset) for offset in offsets(a)] == list(range(a.size)), a
    assert taken > 300


def test_inverses_of_a_bijection_agree():
    """For a compact layout both inverses are the inverse function."""
    for order in itertools.permutations(range(3)):
        strides = [0, 0, 0]
        running = 1
        for mode in order:
            strides[mode] = running
            running *= (2, 3, 4)[mode]
        a = Layout((2, 3, 4), tuple(strides))
        assert offsets(right_inverse(a)) == offsets(left_inverse(a))
        assert sorted(offsets(a)) == list(range(24))
