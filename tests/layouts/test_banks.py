# SPDX-License-Identifier: Apache-2.0
"""Bank conflicts: cases worked out by hand, and the layouts the kernels use."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.layouts import hardware
from cutegemm.layouts.banks import access, layout_addresses, matrix_access
from cutegemm.layouts.layout import Layout, row_major

LANES = range(32)


@pytest.mark.parametrize(
    ("addresses", "width", "wavefronts", "conflicts", "ways"),
    [
        pytest.param([4 * t for t in LANES], 4, 1, 0, 1, id="consecutive words"),
        pytest.param([0 for t in LANES], 4, 1, 0, 1, id="broadcast of one word"),
        pytest.param([128 * t for t in LANES], 4, 32, 31, 32, id="stride of 32 words"),
        pytest.param([132 * t for t in LANES], 4, 1, 0, 1, id="stride of 33 words"),
        pytest.param([8 * t for t in LANES], 4, 2, 1, 2, id="stride of 2 words"),
        pytest.param([12 * t for t in LANES], 4, 1, 0, 1, id="odd stride"),
        pytest.param([2 * t for t in LANES], 2, 1, 0, 1, id="16-bit neighbours share words"),
        pytest.param([128 * t for t in LANES], 1, 32, 31, 32, id="bytes in one bank"),
        pytest.param([8 * t for t in LANES], 8, 2, 0, 1, id="64-bit, one half-warp a wavefront"),
        pytest.param([16 * t for t in LANES], 8, 4, 2, 2, id="64-bit with stride 2: 2-way in each half"),
        pytest.param(
            [8 * (t % 16) + 128 * (t // 16) for t in LANES], 8, 2, 0, 1, id="64-bit halves do not collide"
        ),
        pytest.param([16 * t for t in LANES], 16, 4, 0, 1, id="128-bit, 8 threads a wavefront"),
        pytest.param([128 * t for t in LANES], 16, 32, 28, 8, id="128-bit column: 8-way in each quarter"),
        pytest.param([144 * t for t in LANES], 16, 4, 0, 1, id="128-bit column padded by 16 bytes"),
        pytest.param([32 * t for t in LANES], 16, 8, 4, 2, id="128-bit with stride 2: 2-way in each quarter"),
        pytest.param(
            [16 * t if t < 8 else None for t in LANES], 16, 1, 0, 1, id="idle quarters cost nothing"
        ),
        pytest.param([None] * 32, 4, 0, 0, 0, id="nobody"),
    ],
)
def test_hand_derived_cases(addresses, width, wavefronts, conflicts, ways):
    """Wavefronts, conflicts and ways of patterns worked out on paper."""
    usage = access(addresses, width)
    assert (usage.wavefronts, usage.conflicts, usage.ways) == (wavefronts, conflicts, ways)


@given(st.lists(st.integers(0, 511), min_size=1, max_size=32), st.sampled_from((1, 2, 4, 8, 16)))
def test_wavefronts_by_brute_force(slots, width):
    """Each phase takes as many wavefronts as the most wanted bank has different words, counted word by word."""
    addresses = [slot * width for slot in slots]
    threads = {16: 8, 8: 16}.get(width, 32)
    expected = 0
    for first in range(0, len(addresses), threads):
        wanted = {}
        for address, byte in itertools.product(addresses[first : first + threads], range(width)):
            word = (address + byte) // 4
            wanted.setdefault(word % 32, set()).add(word)
        expected += max(len(words) for words in wanted.values())
    assert access(addresses, width).wavefronts == expected


@given(st.lists(st.integers(0, 511), min_size=32, max_size=32), st.integers(0, 64))
def test_shifting_all_addresses_changes_nothing(slots, shift):
    """Only differences of addresses matter: moving the array by whole words rotates the banks."""
    moved = access([4 * (slot + shift) for slot in slots], 4)
    assert moved.wavefronts == access([4 * slot for slot in slots], 4).wavefronts


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("swizzle", "ways"), [("none", 1), ("32B", 1), ("64B", 1), ("128B", 1)])
def test_stmatrix_into_swizzled_atoms_has_no_conflicts(swizzle, ways, transposed):
    """Storing a 16 x 16 piece of the C fragment with stmatrix.x4 is conflict-free in all WGMMA layouts."""
    tile = hardware.smem_layout((64, 64), "mn" if transposed else "k", swizzle)
    for m0, n0 in itertools.product(range(0, 64, 16), repeat=2):
        rows = [(m0 + m, n0 + n) for m, n in hardware.fragment_row_coordinates(4, transposed)]
        usage = matrix_access(layout_addresses(tile, rows))
        assert usage.ways == ways and usage.wavefronts == 4


@pytest.mark.parametrize(("columns", "ways"), [(64, 8), (32, 4), (16, 2), (8, 1), (64 + 8, 1)])
def test_stmatrix_into_plain_rows(columns, ways):
    """Without a swizzle 8 rows of 128 bytes hit the same 16-byte column; each halving of the row halves that."""
    rows = [(m, n) for m, n in hardware.fragment_row_coordinates(1)]
    assert matrix_access(layout_addresses(row_major((64, columns)), rows)).ways == ways


def test_phases_list_every_word():
    """A 16-byte access wants four words, each in its own bank; 8 threads together want all 32."""
    one, whole = access([16], 16), access([16 * t for t in range(8)], 16)
    assert [words for words in one.phases[0] if words] == [(4,), (5,), (6,), (7,)]
    assert whole.phases == (tuple((bank,) for bank in range(32)),)


def test_matrix_phases_are_the_matrices():
    """x4 has one phase for each matrix: the same rows four times cost four wavefronts, not one."""
    assert matrix_access([16 * row for row in range(8)] * 4).wavefronts == 4
    assert matrix_access([16 * row for row in range(16)]).wavefronts == 2


def test_fragment_written_directly_as_fp32():
    """Writing the C fragment as pairs of fp32 into plain 64-column rows: 4 rows meet in each half-warp's banks."""
    fragment = hardware.wgmma_c_layout(64)
    tile = row_major((64, 64))
    coordinates = [divmod(fragment(t, 0), 64)[::-1] for t in LANES]
    usage = access(layout_addresses(tile, coordinates, bits=32), 8)
    assert (usage.ways, usage.wavefronts, usage.conflicts) == (4, 8, 6)


def test_layout_addresses_are_bytes():
    """Offsets are scaled by the element size and moved by the base."""
    assert layout_addresses(Layout(4, 3), range(4), bits=32, base=8) == [8, 20, 32, 44]
