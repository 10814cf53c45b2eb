# SPDX-License-Identifier: Apache-2.0
"""fp32 elements as two of tf32: a high part, cut to 10 fraction bits, and the rest as a low part, rounded.

Both have the element's sign, so that an infinity times either part of an element is the infinity of that sign. For that
a low part that would be zero is the high one times 2^-30, and an infinity and a NaN are their own low parts. Parts of
numbers below 2^-113 lose bits: tf32's least number is 2^-136.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.kernels.memory_views import as_type

KEPT = 0xFFFF_E000  # of the bits of fp32, those that tf32 has
HALF = 0x0000_1000  # of tf32's last place
MAGNITUDE = 0x7FFF_FFFF
EXPONENT, QUIET = 0x7F80_0000, 0x0040_0000  # the bits of infinity, and the highest of a NaN's fraction
LEAST = 2.0**-30


@cute.jit
def parts(x: Any) -> Any:
    """(high, low), Uint32, of the bits of an fp32 number; a NaN is made quiet, or its kept bits might be infinity's."""
    high, size = x & cutlass.Uint32(KEPT), x & cutlass.Uint32(MAGNITUDE)
    cut = as_type(high, cutlass.Float32)
    rest = as_type(x, cutlass.Float32) - cut
    if rest == 0.0:
        rest = cut * LEAST
    low = as_type(rest, cutlass.Uint32) + cutlass.Uint32(HALF)
    if size >= EXPONENT:
        high = x
        if size > EXPONENT:
            high = x | cutlass.Uint32(QUIET)
        low = high
    return high, low


@cute.jit
def nearest(value: Any, ignored: cutlass.Constexpr[int]) -> Any:
    """An fp32 number without `ignored` low bits, rounded to nearest even; an infinity or a NaN as it is."""
    bits = as_type(value, cutlass.Uint32)
    if (bits & cutlass.Uint32(EXPONENT)) != EXPONENT:
        bits += cutlass.Uint32((1 << ignored - 1) - 1) + (bits >> ignored & 1)
        bits &= cutlass.Uint32(2**32 - (1 << ignored))
    return as_type(bits, cutlass.Float32)
