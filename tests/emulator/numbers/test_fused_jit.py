# SPDX-License-Identifier: Apache-2.0
"""The compiled fma: of vectors, of registers that all lanes share, and of a mixture, the same bits."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.emulator.numbers.fused_jit import fused

# numbers of every kind, and sums that fp64 would round twice or that cancel
SPECIAL = (0, 1 << 31, 1, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001)
BITS = st.sampled_from(SPECIAL) | st.integers(0, 2**32 - 1) | st.integers(0x39000000, 0x39FFFFFF)


@settings(max_examples=200)
@given(a=BITS, b=BITS, c=BITS, shared=st.tuples(*[st.booleans()] * 3))
def test_a_shared_register_gives_what_lanes_give(a, b, c, shared):
    """Ints go through NumPy's fp64, vectors through the processor: the same patterns, with one NaN."""
    given_bits = [x if one else np.full(64, x, np.uint32) for x, one in zip((a, b, c), shared)]
    with np.errstate(all="ignore"):
        found, one = np.asarray(fused(*given_bits)), fused(a, b, c)
    assert found.dtype == np.uint32 or all(shared)
    assert (found == one).all()
    assert one == 0x7FFFFFFF or not np.isnan(np.uint32(one).view(np.float32))


def test_a_result_is_no_room_of_the_next():
    """A result stays as it is when another is computed; lanes that are no eights are computed too."""
    one, two = (np.array([x], np.float32).view(np.uint32).repeat(32) for x in (1.0, 2.0))
    first = fused(one, two, one)
    assert fused(two, two, two)[0] == np.float32(6.0).view(np.uint32)
    assert (first.view(np.float32) == 3.0).all()
    assert (fused(one[:5], two[:5], one[:5]).view(np.float32) == 3.0).all()
