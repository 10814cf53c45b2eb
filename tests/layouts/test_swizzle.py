# SPDX-License-Identifier: Apache-2.0
"""Swizzles as bit permutations, and layouts under them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.layouts.layout import Layout
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle

SWIZZLES = [
    Swizzle(bits, base, sign * shift)
    for bits, base, shift, sign in itertools.product(range(4), range(5), range(5), (1, -1))
    if shift >= bits
]


@pytest.mark.parametrize("swizzle", SWIZZLES, ids=str)
def test_a_swizzle_is_its_own_inverse_within_its_period(swizzle):
    """Applied twice it changes nothing, and no offset leaves its aligned block."""
    for offset in range(3 * swizzle.period):
        swizzled = swizzle(offset)
        assert swizzle(swizzled) == offset
        assert swizzled // swizzle.period == offset // swizzle.period


@given(st.sampled_from(SWIZZLES), st.integers(0, 1 << 16))
def test_a_swizzle_changes_only_its_bits(swizzle, offset):
    """Bit i of the target field is XORed with bit i of the source field, read one bit at a time."""
    source = swizzle.base + max(swizzle.shift, 0)
    target = swizzle.base + max(-swizzle.shift, 0)
    expected = offset
    for i in range(swizzle.bits):
        expected ^= (offset >> (source + i) & 1) << (target + i)
    assert swizzle(offset) == expected


def test_swizzle_128b_moves_the_16_byte_chunks_of_each_row():
    """In rows of 128 bytes, chunk c of row r lands in chunk c XOR (r mod 8): the TMA and WGMMA mode."""
    swizzle = Swizzle(3, 4, 3)
    for row, chunk, byte in itertools.product(range(16), range(8), (0, 15)):
        assert swizzle(128 * row + 16 * chunk + byte) == 128 * row + 16 * (chunk ^ row % 8) + byte


@given(st.sampled_from([s for s in SWIZZLES if s.base >= 2]), st.integers(0, 1 << 12))
def test_recast_is_the_same_swizzle_in_other_units(swizzle, element):
    """Swizzling a 4-byte element's number equals swizzling its byte address."""
    assert 4 * swizzle.recast(8, 32)(element) == swizzle(4 * element)


@given(st.sampled_from(SWIZZLES), st.integers(0, 40))
def test_composed_layout_is_the_composed_function(swizzle, offset):
    """Offsets, size and cosize follow the definition."""
    composed = ComposedLayout(swizzle, offset, Layout((8, 4), (4, 1)))
    values = [composed(i) for i in range(composed.size)]
    assert values == [swizzle(offset + composed.layout(i)) for i in range(32)]
    assert composed.cosize == max(values) + 1
    assert (composed.shape, composed.rank) == ((8, 4), 2)
