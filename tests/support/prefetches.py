# SPDX-License-Identifier: Apache-2.0
"""Prefetches of a kernel as loads: the emulator counts these, and they fault outside of the operands."""

import re

# of a prefetch in PTX; the second leaves its predicate out
PREDICATED, ALWAYS = r"(@%p\d+) ", r"@%p\d+( )"


def as_loads(ptx: str, predicate: str = PREDICATED) -> str:
    """PTX whose prefetches are loads of the same addresses, of one byte each."""
    load = r".reg .b16 %seen; \1 ld.global.u8 %seen, "
    return re.sub(predicate + r"prefetch\.global\.L2 ", load, ptx)
