# SPDX-License-Identifier: Apache-2.0
"""Scalar loads of shared memory that ptxas makes one of are counted as one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulator_launch import aligned, run

START = " mov.u32 %r0, %tid.x; mov.u32 %r9, buf; mad.lo.u32 %r10, %r0, 16, %r9; mov.u32 %r11, 0;"
LOADS = [f" ld.shared.b32 %r{20 + i}, [%r10+{4 * i}];" for i in range(4)]


def wavefronts(body: str) -> int:
    """Load wavefronts of a body in which lane t reads words from 16 t of a buffer."""
    report = run(
        START + body, [aligned(32, np.uint32)], before=".shared .align 16 .b8 buf[8192];", meter=True
    )
    return report.counters["shared_load_wavefronts"]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_four_words_are_one_load(order):
    """512 bytes without conflict take four wavefronts, in any order; as scalars each of the four takes four."""
    assert wavefronts("".join(LOADS[i] for i in order)) == 4


@pytest.mark.parametrize(
    "between, expected",
    [
        (" bar.sync 0;", 4 + 4 + 2 * 2),  # 0 and 1 are left alone, 2 and 3 are 8 bytes
        (" st.shared.b32 [%r9], %r0;", 4 + 4 + 2 * 2),
        (" add.u32 %r10, %r10, %r11;", 4 + 4 + 2 * 2),
    ],
)
def test_what_may_write_parts_them(between, expected):
    """A barrier, a store or a new value of the address register ends a run of loads."""
    assert wavefronts(LOADS[0] + between + LOADS[1] + LOADS[2] + LOADS[3]) == expected


def test_words_that_are_not_aligned_stay_apart():
    """Two words across an 8-byte boundary, and an address that is no multiple of 16, are loaded one by one."""
    assert wavefronts(LOADS[1] + LOADS[2]) == 8
    assert wavefronts(" add.u32 %r10, %r10, 4;" + "".join(LOADS)) == 16


def test_guarded_loads_stay_apart():
    """A predicated load is not fused."""
    guard = " setp.ge.u32 %p0, %r0, 0;"
    assert wavefronts(guard + "".join(f" @%p0{x}" for x in LOADS)) == 16
