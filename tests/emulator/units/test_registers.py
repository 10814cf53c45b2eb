# SPDX-License-Identifier: Apache-2.0
"""setmaxnreg: the CTA's register pool, and undefined bits of registers."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import HEADER, aligned, run

ROLES = (
    HEADER
    + """
.visible .entry k(.param .u64 p0)
.reqntid 384, 1, 1
.minnctapersm 1
{{
 .reg .pred %p<4>; .reg .b32 %r<8>;
 mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 128; @%p0 bra PRODUCE;
 setmaxnreg.inc.sync.aligned.u32 {more}; bra END;
PRODUCE:
 setmaxnreg.dec.sync.aligned.u32 {fewer};
END:
 ret;
}}
"""
)


@pytest.mark.parametrize("races", [False, True])
@pytest.mark.parametrize(
    "more, fewer, fits", [(232, 40, True), (240, 24, True), (240, 40, False), (248, 24, False)]
)
def test_more_registers_than_the_pool_holds_never_come(more, fewer, fits, races):
    """384 threads are launched with 168 registers each: 128 x fewer + 256 x more may be 384 x 168 (9.7.20.5)."""
    text = ROLES.format(more=more, fewer=fewer)
    launch = lambda: run("", [aligned(1, np.uint32)], text=text, threads=384, races=races)  # noqa: E731
    if fits:
        assert not launch().findings
    else:
        with pytest.raises(
            EmulatorError, match=r"waiting for registers: the CTA was launched with 168 a thread"
        ):
            launch()


def test_a_launch_gives_no_more_than_a_setmaxnreg_asks_for():
    """Two warpgroups could have 248 registers a thread; ptxas launches them with the 232 that one of them asks for."""
    text = ROLES.format(more=232, fewer=40).replace(".reqntid 384", ".reqntid 256")
    assert not run("", [aligned(1, np.uint32)], text=text, threads=256, races=True).findings


def test_a_decrease_to_more_registers_is_found():
    """setmaxnreg.dec may not name more registers than the warp holds."""
    text = ROLES.format(more=168, fewer=200)
    report = run("", [aligned(1, np.uint32)], text=text, threads=384, races=True)
    assert "setmaxnreg.dec to fewer registers than held" in [f.kind for f in report.findings]


TRAVEL = (
    " mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; cvt.u16.u32 %rs15, %r0;\n mov.b32 %r1, {%rs15, %rs50};\n"
)
GOOD = {
    "unpack": "mov.b32 {%rs1, %rs2}, %r1; cvt.u32.u16 %r2, %rs1;",
    "narrow": "cvt.u16.u32 %rs1, %r1; cvt.u32.u16 %r2, %rs1;",
    "mask": "and.b32 %r2, %r1, 0xffff;",
    "permute": "prmt.b32 %r2, %r1, 0, 0x4410;",
    "shift out": "shl.b32 %r2, %r1, 16; shr.u32 %r2, %r2, 16;",
    "copy and choose": "mov.b32 %r3, %r1; setp.eq.u32 %p0, %r0, %r0;"
    " selp.b32 %r3, %r3, %r9, %p0; and.b32 %r2, %r3, 0xffff;",
    "pair of pairs": "mov.b64 %rd5, {%r1, %r9}; mov.b64 {%r4, %r5}, %rd5; and.b32 %r2, %r4, 0xffff;",
}
BAD = {
    "add": "add.u32 %r2, %r1, 1;",
    "compare": "setp.eq.u32 %p1, %r1, 0; selp.b32 %r2, 1, 0, %p1;",
    "store": "mov.b32 %r2, %r1;",
    "high half": "mov.b32 {%rs1, %rs2}, %r1; cvt.u32.u16 %r2, %rs2; add.u32 %r2, %r2, 1;",
}
STORE = "\n mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r2;"


@pytest.mark.parametrize("case", list(GOOD))
def test_undefined_bits_may_travel(case):
    """A half that nothing wrote is packed, moved, masked away: the other half keeps its value in every lane."""
    out = aligned(32, np.uint32)
    run(TRAVEL + GOOD[case] + STORE, [out])
    assert out.tolist() == list(range(32))


@pytest.mark.parametrize("case", list(BAD))
def test_the_use_of_undefined_bits_is_an_error(case):
    """Arithmetic, a comparison or a store of bits that nothing wrote stops with the place."""
    with pytest.raises(EmulatorError, match=r"PTX line \d+.* (use of bits of a register|read of a register)"):
        run(TRAVEL + BAD[case] + STORE, [aligned(32, np.uint32)])
