# SPDX-License-Identifier: Apache-2.0
"""The layouts that sm_90 hardware fixes: WGMMA fragments and operands, TMA boxes, stmatrix and ldmatrix.

Thread-value layouts map (thread, value) to an element, numbered column-major in its matrix: the element (m, k) of a
64 x K fragment has the number m + 64 k. Sources: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate"
(register fragments; shared memory matrix layout), "ldmatrix", "stmatrix", "Tensors: swizzling modes"; CUDA driver API,
cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.arch.sm90 import TMA_MAX_BOX, WGMMA_M, WGMMA_MAX_N
from cutegemm.errors import SpecError, field_error
from cutegemm.layouts.int_tuple import require
from cutegemm.layouts.layout import Layout
from cutegemm.layouts.swizzle import ComposedLayout, Swizzle
from cutegemm.layouts.tiling import tile_to_shape

# bytes of one swizzled row, PTX swizzling modes
SWIZZLE_SPANS = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
MAJORS = ("k", "mn")  # the contiguous mode of an operand tile (mn, k)
CORE_ROWS = 8  # rows of a core matrix, PTX wgmma shared memory matrix layout
WGMMA_N_STEP = 8  # columns, PTX wgmma.mma_async shapes
MATRIX_ROWS = 8  # rows, and 16-bit columns, of one ldmatrix or stmatrix matrix
MATRIX_COUNTS = (1, 2, 4)  # .x1, .x2, .x4


def wgmma_c_layout(n: int) -> Layout:
    """Return the accumulator fragment of m64nNk16: (128 threads, N / 2 values) -> m + 64 n.

    Raises:
        SpecError: N is not a multiple of 8 in [8, 256].

    >>> layout = wgmma_c_layout(16)
    >>> print(layout)
    ((4,8,4),(2,2,2)):((128,1,16),(64,8,512))
    >>> [divmod(layout(5, v), 64)[::-1] for v in range(4)]  # (m, n) of thread 5's first values
    [(1, 2), (1, 3), (9, 2), (9, 3)]
    """
    require(
        n % WGMMA_N_STEP == 0 and 0 < n <= WGMMA_MAX_N,
        "n",
        n,
        f"must be a multiple of {WGMMA_N_STEP} in [{WGMMA_N_STEP}, {WGMMA_MAX_N}]",
        min(max(round(n / WGMMA_N_STEP), 1) * WGMMA_N_STEP, WGMMA_MAX_N),
    )
    return Layout(((4, 8, 4), (2, 2, n // 8)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8, 8 * WGMMA_M)))


def wgmma_a_layout(bits: int = 16) -> Layout:
    """Return the fragment of A in registers: (128 threads, values) -> m + 64 k, K = 256 / bits.

    Each 32-bit register holds neighbours along k.

    Raises:
        SpecError: the width is not 8, 16 or 32 bits.

    >>> print(wgmma_a_layout())
    ((4,8,4),(2,2,2)):((128,1,16),(64,8,512))
    """
    _check_element_bits(bits)
    packed = 32 // bits
    return Layout(
        ((4, 8, 4), (packed, 2, 2)),
        ((packed * WGMMA_M, 1, 16), (WGMMA_M, 8, 4 * packed * WGMMA_M)),
    )


def smem_atom(major: str, swizzle: str, bits: int = 16) -> ComposedLayout:
    """Return the smallest (mn, k) block of shared memory that WGMMA reads, in elements.

    K-major: 8 rows of one swizzle span along k. MN-major: 8 columns of one span along mn. Tiles repeat the block
    (`smem_layout`). Its address must be aligned to the swizzle's period (256, 512, 1024 bytes).

    Raises:
        SpecError: an unknown major, swizzle or width.

    >>> print(smem_atom("k", "128B"))
    S<3,3,3> o 0 o (8,64):(64,1)
    >>> print(smem_atom("mn", "32B"))
    S<1,3,3> o 0 o (16,8):(1,16)
    """
    _check_choice("major", major, MAJORS)
    span = swizzle_span(swizzle, bits)
    if major == "k":
        plain = Layout((CORE_ROWS, span), (span, 1))
    else:
        plain = Layout((span, CORE_ROWS), (1, span))
    return ComposedLayout(byte_swizzle(swizzle).recast(8, bits), 0, plain)


def byte_swizzle(swizzle: str) -> Swizzle:
    """Return a swizzle mode as a function of byte addresses: it permutes 16-byte chunks.

    Raises:
        SpecError: an unknown swizzle.

    >>> byte_swizzle("64B")
    Swizzle(bits=2, base=4, shift=3)
    """
    _check_choice("swizzle", swizzle, tuple(SWIZZLE_SPANS))
    chunks = SWIZZLE_SPANS[swizzle] // 16
    return Swizzle(chunks.bit_length() - 1, 4, 3)


def swizzle_span(swizzle: str, bits: int = 16) -> int:
    """Return the elements in one span of a swizzle mode, which are contiguous in one row.

    Raises:
        SpecError: an unknown swizzle or width.

    >>> swizzle_span("128B", 16), swizzle_span("none", 32)
    (64, 4)
    """
    _check_choice("swizzle", swizzle, tuple(SWIZZLE_SPANS))
    _check_element_bits(bits)
    return SWIZZLE_SPANS[swizzle] * 8 // bits


def widest_swizzle(contiguous: int, bits: int = 16) -> str:
    """Return the widest swizzle whose span divides `contiguous` elements.

    Raises:
        SpecError: 16 bytes do not divide it.

    >>> widest_swizzle(64), widest_swizzle(96), widest_swizzle(8)
    ('128B', '64B', 'none')
    """
    for swizzle in reversed(SWIZZLE_SPANS):
        if contiguous > 0 and contiguous % swizzle_span(swizzle, bits) == 0:
            return swizzle
    step = swizzle_span("none", bits)
    raise field_error(
        SpecError,
        "contiguous",
        contiguous,
        f"must be a positive multiple of {step} elements, 16 bytes",
        max(1, round(contiguous / step)) * step,
    )


def smem_layout(shape: tuple[int, ...], major: str, swizzle: str, bits: int = 16) -> ComposedLayout:
    """Tile the WGMMA atom over (mn, k) or (mn, k, stage), in elements.

    The atoms of one span are consecutive along the other mode, so one TMA box fills a column of atoms. The stages are
    outermost.

    Raises:
        SpecError: the shape is not a multiple of the atom's.

    >>> print(smem_layout((128, 128), "k", "128B"))
    S<3,3,3> o 0 o (128,(64,2)):(64,(1,8192))
    >>> print(smem_layout((128, 64, 4), "mn", "128B"))
    S<3,3,3> o 0 o ((64,2),64,4):((1,4096),64,8192)
    """
    order = (0, 1, 2) if major == "k" else (1, 0, 2)
    return tile_to_shape(smem_atom(major, swizzle, bits), shape, order[: len(shape)])


@dataclass(frozen=True)
class TmaBox:
    """The TMA boxes of a two-mode tile: `boxes` copies of `box`, both innermost first, in elements."""

    box: tuple[int, int]
    boxes: tuple[int, int]
    bits: int

    @property
    def count(self) -> int:
        """TMA instructions for one tile."""
        return self.boxes[0] * self.boxes[1]

    @property
    def bytes(self) -> int:
        """Bytes of one box."""
        return self.box[0] * self.box[1] * self.bits // 8


def tma_box(contiguous: int, other: int, swizzle: str, bits: int = 16) -> TmaBox:
    """Divide a tile of `contiguous` x `other` elements into TMA boxes.

    The inner extent of a box is one swizzle span (16 bytes without a swizzle: rows of core matrices). The outer extent
    is the largest divisor of `other` that is at most 256. The boxes are consecutive in shared memory, in the order of
    `smem_layout`.

    Raises:
        SpecError: `contiguous` is not a multiple of the span, or an outer extent is below 1.

    >>> tma_box(64, 128, "128B")
    TmaBox(box=(64, 128), boxes=(1, 1), bits=16)
    >>> tma_box(128, 384, "128B").boxes
    (2, 2)
    """
    span = swizzle_span(swizzle, bits)
    if contiguous <= 0 or contiguous % span:
        nearest = max(1, round(contiguous / span)) * span
        rule = f"must be a positive multiple of the {swizzle} swizzle's span of {span} elements"
        raise field_error(SpecError, "contiguous", contiguous, rule, nearest)
    if other < 1:
        raise field_error(SpecError, "other", other, "must be at least 1", 1)
    parts = next(n for n in range(1, other + 1) if other % n == 0 and other // n <= TMA_MAX_BOX)
    return TmaBox((span, other // parts), (contiguous // span, parts), bits)


def matrix_value_layout(count: int, transposed: bool = False) -> Layout:
    """Return ldmatrix's and stmatrix's register side: (32 threads, 2 * count values) -> 16-bit element.

    Element c + 8 r + 64 j is column c of row r of matrix j; a row is 16 bytes of shared memory. Register j of a thread
    belongs to matrix j. Transposed (.trans), it holds neighbours along r.

    Raises:
        SpecError: the count is not 1, 2 or 4.

    >>> print(matrix_value_layout(4))
    (32,(2,4)):(2,(1,64))
    >>> print(matrix_value_layout(2, transposed=True))
    ((4,8),(2,2)):((16,1),(8,64))
    """
    _check_choice("count", count, MATRIX_COUNTS)
    if transposed:
        return Layout(((4, 8), (2, count)), ((16, 1), (8, 64)))
    return Layout((32, (2, count)), (2, (1, 64)))


def fragment_row_coordinates(count: int, transposed: bool = False) -> list[tuple[int, int]]:
    """List the (m, n) of each address with which stmatrix stores a warp's C fragment.

    The warp holds 16 rows. Its registers are 8 x 8 matrices, first along m, as in `wgmma_c_layout`. Each address points
    to 8 elements along n, or along m when transposed (D m-major). The result has 8 * count entries, relative to the
    warp's 16 rows and the instruction's columns.

    Raises:
        SpecError: the count is not 1, 2 or 4.

    >>> fragment_row_coordinates(4)[7:9], fragment_row_coordinates(4, transposed=True)[7:9]
    ([(7, 0), (8, 0)], [(0, 7), (8, 0)])
    """
    _check_choice("count", count, MATRIX_COUNTS)
    coordinates = []
    for lane in range(MATRIX_ROWS * count):
        matrix, row = divmod(lane, MATRIX_ROWS)
        m, n = 8 * (matrix % 2), 8 * (matrix // 2)
        coordinates.append((m, n + row) if transposed else (m + row, n))
    return coordinates


def _check_element_bits(bits: int) -> None:
    _check_choice("bits", bits, (8, 16, 32))


def _check_choice(field: str, value: object, legal: tuple[object, ...]) -> None:
    require(value in legal, field, value, f"must be one of {', '.join(map(str, legal))}")
