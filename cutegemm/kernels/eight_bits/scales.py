# SPDX-License-Identifier: Apache-2.0
"""Values of 8 bits and their scales, from a thread's elements: what `running.numerics.eight_bits` says, bit by bit."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.dtypes import LARGEST, DType
from cutegemm.kernels.epilogue.element_functions import where
from cutegemm.kernels.memory_views import as_type

SMALLEST = 2.0**-126  # of scales
# Remainders of quotients by scales below this may be subnormal; such elements and their scale are multiplied first.
LEAST, RAISED = 2.0**-80, 2.0**64
# bits of the magnitude from which on an element of a type is not finite
INFINITE = {cutlass.BFloat16: 0x7F80, cutlass.Float16: 0x7C00, cutlass.Float32: 0x7F80_0000}


def key(word: Any, numeric: Any, finite: bool) -> Any:
    """The bits of elements' magnitudes, which are ordered as these are, NaN last; of 16-bit elements two in a word.

    With `finite` those of elements that are not finite are 0.
    """
    infinite, none = cutlass.Uint32(INFINITE[numeric]), cutlass.Uint32(0)
    word = word & cutlass.Uint32(0x7FFF_FFFF if numeric.width == 32 else 0x7FFF_7FFF)
    if not finite:
        return word
    if numeric.width == 32:
        return cutlass.Uint32(where(word < infinite, word, none))
    low, high = word & cutlass.Uint32(0xFFFF), word >> 16
    low = cutlass.Uint32(where(low < infinite, low, none))
    return low | cutlass.Uint32(where(high < infinite, high, none)) << 16


def larger(x: Any, y: Any, width: int) -> Any:
    """The larger of two keys; of words of two keys each of both."""
    if width == 32:
        return cutlass.max(x, y)
    ptx = "max.u16x2 {$w0}, {$r0}, {$r1};"
    return cute.arch.inline_ptx(ptx, write_only_types=[cutlass.Uint32], read_only_args=[x, y])


def top(words: list[Any], width: int) -> Any:
    """The largest of words of keys; of two keys in a word, each in its half."""
    while len(words) > 1:
        pairs = [larger(x, y, width) for x, y in zip(words[::2], words[1::2])]
        words = pairs + words[len(pairs) * 2 :]
    return words[0]


def halves(word: Any, width: int) -> Any:
    """The larger of a word's two keys, in both halves."""
    return word if width == 32 else larger(word, word >> 16 | word << 16, width)


def across(word: Any, width: int, *offsets: int) -> Any:
    """The largest of the lanes whose number differs in these bits."""
    for offset in offsets:
        word = larger(word, cute.arch.shuffle_sync_bfly(word, offset), width)
    return word


def number(bits: Any, numeric: Any, dtype: DType) -> Any:
    """The magnitude of a key in fp32; of integers NaN, where an element is not finite."""
    rX = cute.make_rmem_tensor(1, cutlass.Uint32 if numeric.width == 32 else cutlass.Uint16)
    rX[0] = bits.to(rX.element_type)
    found = cute.recast_tensor(rX, numeric)[0].to(cutlass.Float32)
    if not dtype.whole:
        return found
    infinite = bits >= cutlass.Uint32(INFINITE[numeric])
    return cutlass.Float32(where(infinite, cutlass.Float32(float("nan")), found))


def scale_of(most: Any, dtype: DType, exponents: bool) -> tuple[Any, Any]:
    """The scale of elements with a largest magnitude, and its exponent where scales are powers of two."""
    one, most_of_type = cutlass.Float32(1.0), cutlass.Float32(LARGEST[dtype])
    scale = quotient(most, most_of_type, one / most_of_type, 2)
    scale = cute.arch.fmax(scale, cutlass.Float32(SMALLEST), nan=True)
    scale = cutlass.Float32(where(most == 0.0, one, scale))
    if not exponents:
        return scale, None
    bits = as_type(scale, cutlass.Uint32)
    above = (bits + cutlass.Uint32((1 << 23) - 1)) >> 23
    exponent = cutlass.Uint32(where(scale == scale, above, cutlass.Uint32(255)))
    return as_type(exponent << 23, cutlass.Float32), exponent


def inverse_of(scale: Any) -> Any:
    """The inverse of a scale, of a small one that of its product with RAISED."""
    return 1.0 / (
        scale * cutlass.Float32(where(scale < LEAST, cutlass.Float32(RAISED), cutlass.Float32(1.0)))
    )


def quotient(x: Any, scale: Any, inverse: Any, rounds: int) -> Any:
    """fp32(x / scale) of a positive scale, rounded to nearest; NaN where the quotient is infinite.

    Steps of Newton's iteration from the product with the correctly rounded inverse; remainders are exact (Markstein,
    IBM Journal of Research and Development 34, 1990). One is enough for elements of 16 bits, which all pairs of
    mantissas show.
    """
    found = x * inverse
    for _ in range(rounds):
        # with these signs a zero keeps its own
        rest = cute.math.fma(found, scale, -x)
        found = cute.math.fma(rest, -inverse, found)
    return found


@cute.jit
def divide(rQ: cute.Tensor, scale: Any, inverse: Any, rounds: cutlass.Constexpr) -> None:
    """Divide fp32 elements by the scale of their group, with its `inverse_of`; NaN where one is not finite."""
    if scale < LEAST:
        scale = scale * cutlass.Float32(RAISED)
        for i in cutlass.range_constexpr(cute.size(rQ)):
            rQ[i] = rQ[i] * cutlass.Float32(RAISED)
    for i in cutlass.range_constexpr(cute.size(rQ)):
        rQ[i] = quotient(rQ[i], scale, inverse, rounds)
