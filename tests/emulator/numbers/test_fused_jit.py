# SPDX-License-Identifier: Apache-2.0
"""The compiled fma: vectors, registers with one value for all lanes, and a mixture give the same bits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.emulator.numbers.floats import f32, to_odd
from cutegemm.emulator.numbers.fused_jit import fused

# numbers of every kind
SPECIAL = (0, 1 << 31, 1, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001)
BITS = st.sampled_from(SPECIAL) | st.integers(0, 2**32 - 1) | st.integers(0x39000000, 0x39FFFFFF)


@settings(max_examples=200)
@given(a=BITS, b=BITS, c=BITS, cancels=st.booleans(), uniform=st.tuples(*[st.booleans()] * 3))
def test_fma_rounds_once(a, b, c, cancels, uniform):
    """The result is the exact product plus c in fp64, rounded to odd and then to fp32; there is only one NaN."""
    if cancels:
        with np.errstate(all="ignore"):
            c = int((-f32(a) * f32(b)).view(np.uint32))
    operands = [x if one else np.full(64, x, np.uint32) for x, one in zip((a, b, c), uniform)]
    with np.errstate(all="ignore"):
        product, addend = np.multiply(f32(a), f32(b), dtype=np.float64), np.float64(f32(c))
        expected = to_odd(product, addend).astype(np.float32)
    result = fused(*operands)
    assert isinstance(result, int) == all(uniform)
    assert (np.asarray(result) == (0x7FFFFFFF if np.isnan(expected) else expected.view(np.uint32))).all()


def test_a_result_keeps_its_values():
    """The next call does not overwrite a result."""
    one, two = (np.array([x], np.float32).view(np.uint32).repeat(32) for x in (1.0, 2.0))
    first = fused(one, two, one)
    assert fused(two, two, two)[0] == np.float32(6.0).view(np.uint32)
    assert (first.view(np.float32) == 3.0).all()
