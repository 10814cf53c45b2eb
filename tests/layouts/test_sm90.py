# SPDX-License-Identifier: Apache-2.0
"""The sm_90 layouts against the figures and rules of the PTX ISA, written out by hand."""

from __future__ import annotations

import itertools

import pytest

from cutegemm.layouts import hardware


@pytest.mark.parametrize("n", [8, 16, 24, 128, 256])
def test_wgmma_c_fragment(n):
    """Thread t holds row 16 (t/32) + (t%32)/4 (+ 8) and columns 2 (t%4) + {0, 1} (+ 8 j): PTX wgmma D fragment."""
    layout = hardware.wgmma_c_layout(n)
    assert (layout[0].size, layout[1].size) == (128, n // 2)
    for thread, value in itertools.product(range(128), range(n // 2)):
        m = 16 * (thread // 32) + thread % 32 // 4 + 8 * (value // 2 % 2)
        column = 8 * (value // 4) + 2 * (thread % 4) + value % 2
        assert layout(thread, value) == m + 64 * column
    assert sorted(layout(i) for i in range(layout.size)) == list(range(64 * n))


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_a_fragment(bits):
    """Each register of A holds neighbours along k; registers go down 8 rows, then half of K: PTX wgmma A fragment."""
    layout = hardware.wgmma_a_layout(bits)
    packed = 32 // bits
    for thread, value in itertools.product(range(128), range(layout[1].size)):
        register, lane = divmod(value, packed)
        m = 16 * (thread // 32) + thread % 32 // 4 + 8 * (register % 2)
        k = packed * (thread % 4) + lane + 4 * packed * (register // 2)
        assert layout(thread, value) == m + 64 * k
    assert sorted(layout(i) for i in range(layout.size)) == list(range(64 * 256 // bits))


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("swizzle", hardware.SWIZZLE_SPANS)
def test_smem_atoms_swizzle_16_byte_chunks(swizzle, bits):
    """Line r of an atom has one span; 16-byte chunk c of it lies at the byte address the swizzling mode says."""
    span_bytes = hardware.SWIZZLE_SPANS[swizzle]
    chunks = span_bytes // 16
    lines_per_128 = 128 // span_bytes
    for major in hardware.MAJORS:
        atom = hardware.smem_atom(major, swizzle, bits)
        per_chunk = 128 // bits
        for line, chunk, element in itertools.product(range(8), range(chunks), range(per_chunk)):
            inner = chunk * per_chunk + element
            coordinate = (line, inner) if major == "k" else (inner, line)
            moved = chunk ^ (line // lines_per_128 % chunks)
            byte = line * span_bytes + moved * 16 + element * bits // 8
            assert atom(*coordinate) * bits // 8 == byte, (major, coordinate)
        assert atom.cosize == atom.size == 8 * span_bytes * 8 // bits


@pytest.mark.parametrize(
    ("major", "swizzle"), list(itertools.product(hardware.MAJORS, hardware.SWIZZLE_SPANS))
)
def test_smem_layout_is_filled_by_tma_boxes_one_after_another(major, swizzle):
    """Box number b of stage s covers the bytes from (s * boxes + b) * box bytes on, in TMA's order."""
    mn, k, stages = 128, 64, 2
    layout = hardware.smem_layout((mn, k, stages), major, swizzle)
    assert sorted(layout(i) for i in range(layout.size)) == list(range(layout.size))
    contiguous, other = (k, mn) if major == "k" else (mn, k)
    box = hardware.tma_box(contiguous, other, swizzle)
    assert box.count * box.bytes == mn * k * 2
    for stage, b, line, inner in itertools.product(
        range(stages), range(box.count), (0, 1, 9, other - 1), (0, 7)
    ):
        along = b * box.box[0] + inner
        coordinate = (line, along) if major == "k" else (along, line)
        plain = (stage * box.count + b) * box.bytes // 2 + line * box.box[0] + inner
        assert layout(*coordinate, stage) == layout.swizzle(plain)


def test_smem_layout_keeps_stages_outermost():
    """Every element of stage s lies in the s-th run of the tile's size."""
    for major in hardware.MAJORS:
        layout = hardware.smem_layout((64, 128, 3), major, "64B")
        for stage, i in itertools.product(range(3), range(64 * 128)):
            assert layout((i % 64, i // 64, stage)) // (64 * 128) == stage


@pytest.mark.parametrize(
    ("contiguous", "other", "swizzle", "bits", "box", "boxes"),
    [
        (64, 128, "128B", 16, (64, 128), (1, 1)),
        (64, 256, "128B", 16, (64, 256), (1, 1)),
        (128, 384, "128B", 16, (64, 192), (2, 2)),
        (64, 128, "none", 16, (8, 128), (8, 1)),
        (64, 64, "128B", 32, (32, 64), (2, 1)),
        (32, 257, "64B", 16, (32, 1), (1, 257)),
    ],
)
def test_tma_box(contiguous, other, swizzle, bits, box, boxes):
    """The inner extent is one span; the outer one the largest divisor up to 256; the boxes fill the tile."""
    found = hardware.tma_box(contiguous, other, swizzle, bits)
    assert (found.box, found.boxes) == (box, boxes)
    assert found.count * found.bytes == contiguous * other * bits // 8


def test_widest_swizzle_divides_the_contiguous_extent():
    """The chosen span divides the extent and the next wider one does not."""
    for contiguous in range(8, 264, 8):
        span = hardware.swizzle_span(hardware.widest_swizzle(contiguous))
        assert contiguous % span == 0 and (span == 64 or contiguous % (2 * span))


@pytest.mark.parametrize("count", hardware.MATRIX_COUNTS)
def test_matrix_registers(count):
    """Register j of thread t has row t/4, columns 2 (t%4) + {0, 1} of matrix j; transposed, rows and columns swap."""
    plain, transposed = (
        hardware.matrix_value_layout(count),
        hardware.matrix_value_layout(count, transposed=True),
    )
    for thread, half, j in itertools.product(range(32), range(2), range(count)):
        row, column = thread // 4, 2 * (thread % 4) + half
        assert plain(thread, half + 2 * j) == 64 * j + 8 * row + column
        assert transposed(thread, half + 2 * j) == 64 * j + 8 * column + row


@pytest.mark.parametrize(
    ("count", "transposed"), list(itertools.product(hardware.MATRIX_COUNTS, (False, True)))
)
def test_stmatrix_puts_each_accumulator_where_it_belongs(count, transposed):
    """Following value -> matrix element -> address row gives each value's own (m, n) of the C fragment."""
    fragment = hardware.wgmma_c_layout(16)
    values = hardware.matrix_value_layout(count, transposed)
    rows = hardware.fragment_row_coordinates(count, transposed)
    assert len(rows) == 8 * count
    for thread, value in itertools.product(range(32), range(2 * count)):
        row, column = divmod(values(thread, value), 8)
        m, n = rows[row]
        stored = (m + column, n) if transposed else (m, n + column)
        assert fragment(thread, value) == stored[0] + 64 * stored[1]
