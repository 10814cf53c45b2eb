# SPDX-License-Identifier: Apache-2.0
"""Loads, stores, atomics, shuffles and matrix moves against their definitions; faults are named."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, kernel_text, run
from tests.support.patience import PATIENCE

SHARED = ".shared .align 16 .b8 buf[4096];"


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_vector_loads_and_stores_move_every_element(policy):
    """ld.global.v4.b32, st.shared.v2.b32, ld.shared.b16 and st.global.v2.b64 (PTX ISA 9.7.9.8, 9.7.9.11)."""
    data, out = aligned(128, np.uint32), aligned(64, np.uint64)
    data[:] = np.arange(128) * 0x01010101
    run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 mad.wide.u32 %rd2, %r0, 16, %rd0;
 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd2];
 mov.u32 %r5, buf; shl.b32 %r6, %r0, 4; add.s32 %r7, %r5, %r6;
 st.shared.v2.b32 [%r7], {%r4, %r3}; st.shared.v2.b32 [%r7+8], {%r2, %r1};
 bar.sync 0;
 ld.shared.b16 %rs0, [%r7+14]; ld.shared.u16 %rs1, [%r7+12];
 mov.b32 %r8, {%rs1, %rs0}; ld.shared.b32 %r9, [%r7];
 mov.b64 %rd3, {%r8, %r9}; cvt.u64.u32 %rd4, %r0;
 mad.wide.u32 %rd5, %r0, 16, %rd1; st.global.v2.b64 [%rd5], {%rd3, %rd4};
""",
        [data, out],
        before=SHARED,
        policy=policy,
    )
    rows = data.reshape(32, 4).astype(np.uint64)
    assert out.reshape(32, 2)[:, 0].tolist() == (rows[:, 0] | rows[:, 3] << np.uint64(32)).tolist()
    assert out.reshape(32, 2)[:, 1].tolist() == list(range(32))


def test_sign_extension_and_byte_accesses():
    """ld.global.s8 into a 32-bit register extends the sign, st.global.u8 keeps the low byte (PTX ISA 9.7.9.8)."""
    data, out = aligned(32, np.uint8), aligned(32, np.uint32)
    data[:] = np.arange(240, 272) % 256
    body = """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 cvt.u64.u32 %rd2, %r0; add.s64 %rd3, %rd0, %rd2; ld.global.s8 %r1, [%rd3];
 mad.wide.u32 %rd4, %r0, 4, %rd1; st.global.u32 [%rd4], %r1;
"""
    run(body, [data, out])
    assert out.view(np.int32).tolist() == data.view(np.int8).tolist()


def test_divergent_lanes_take_both_paths_and_meet_again():
    """A branch within a warp runs both sides under masks; a loop ends per lane (PTX ISA 9.7.12)."""
    out = aligned(64, np.uint32)
    run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mov.u32 %r1, 0; mov.u32 %r2, 0;
LOOP:
 add.u32 %r1, %r1, %r0; add.u32 %r2, %r2, 1;
 setp.lt.u32 %p0, %r2, %r0; @%p0 bra LOOP;
 and.b32 %r3, %r0, 1; setp.eq.u32 %p1, %r3, 1; @%p1 bra ODD;
 add.u32 %r1, %r1, 1000; bra.uni DONE;
ODD:
 add.u32 %r1, %r1, 2000;
DONE:
 mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r1;
""",
        [out],
        threads=64,
    )
    assert out.tolist() == [max(i, 1) * i + (2000 if i % 2 else 1000) for i in range(64)]


def test_early_exit_of_some_lanes_leaves_the_others_running():
    """ret under a predicate ends those lanes only, and barriers count the warps that remain (PTX ISA 9.7.13.1)."""
    out = aligned(96, np.uint32, 7)
    run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0];
 setp.ge.u32 %p0, %r0, 40; @%p0 ret;
 bar.sync 0;
 mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r0;
""",
        [out],
        threads=96,
    )
    assert out.tolist() == [i if i < 40 else 7 for i in range(96)]


@pytest.mark.parametrize("operation, kind, initial, fold", [
    ("add", "u32", 5, lambda old, xs: old + sum(xs)), ("max", "s32", 3, lambda old, xs: max(old, *xs)),
    ("or", "b32", 0, lambda old, xs: 31), ("exch", "b32", 9, lambda old, xs: xs[-1]), ("inc", "u32", 0, None),
])  # fmt: skip
def test_atomics_act_lane_after_lane(operation, kind, initial, fold):
    """atom.global: the final value, and old values that are the partial results (PTX ISA 9.7.13.5)."""
    cell, out = aligned(1, np.uint32, initial), aligned(32, np.uint32)
    run(
        f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 atom.global.{operation}.{kind} %r1, [%rd0], %r0;
 mad.wide.u32 %rd2, %r0, 4, %rd1; st.global.u32 [%rd2], %r1;
""",
        [cell, out],
    )
    if fold:
        assert cell[0] == fold(initial, list(range(32)))
        assert out[0] == initial
    else:  # inc wraps to 0 above its bound, which lane 0 sets to 0
        assert cell[0] == 31 and out[:3].tolist() == [0, 0, 1]


def test_float_reduction_adds_in_lane_order():
    """red.global.add.v2.f32 adds every element of every lane (PTX ISA 9.7.13.6)."""
    cell = aligned(2, np.float32)
    run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; cvt.rn.f32.u32 %f0, %r0; mov.f32 %f1, 0f3F800000;
 red.global.add.v2.f32 [%rd0], {%f0, %f1};
""",
        [cell],
    )
    assert cell.tolist() == [496.0, 32.0]


SHUFFLES = {
    "idx": lambda i, b: b,
    "up": lambda i, b: i - b if i >= b else i,
    "down": lambda i, b: i + b if i + b < 32 else i,
    "bfly": lambda i, b: i ^ b,
}


@pytest.mark.parametrize("mode", list(SHUFFLES))
@pytest.mark.parametrize("amount", [0, 1, 5, 16])
def test_shuffles(mode, amount):
    """shfl.sync in its four modes on two warps (PTX ISA 9.7.9.6)."""
    out = aligned(64, np.uint32)
    clamp = 0 if mode == "up" else 31
    run(
        f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mul.lo.u32 %r1, %r0, 3;
 shfl.sync.{mode}.b32 %r2|%p0, %r1, {amount}, {clamp}, -1;
 mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r2;
""",
        [out],
        threads=64,
    )
    assert out.tolist() == [3 * (i // 32 * 32 + SHUFFLES[mode](i % 32, amount)) for i in range(64)]


def test_votes_elections_and_reductions():
    """vote.ballot, elect.sync, redux.sync on one warp (PTX ISA 9.7.13.7, .10, .12)."""
    out = aligned(96, np.uint32)
    run(
        """
 mov.u32 %r0, %laneid; ld.param.u64 %rd0, [p0]; and.b32 %r1, %r0, 3; setp.eq.u32 %p0, %r1, 1;
 vote.sync.ballot.b32 %r2, %p0, -1; elect.sync %r3|%p1, -1; selp.b32 %r4, 1, 0, %p1; redux.sync.max.s32 %r5, %r0, -1;
 mad.wide.u32 %rd1, %r0, 12, %rd0; st.global.u32 [%rd1], %r2; st.global.u32 [%rd1+4], %r4; st.global.u32 [%rd1+8], %r5;
""",
        [out],
    )
    got = out.reshape(32, 3)
    assert set(got[:, 0].tolist()) == {0x22222222}
    assert got[:, 1].tolist() == [1] + [0] * 31
    assert set(got[:, 2].tolist()) == {31}


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix_and_stmatrix_are_inverse_and_follow_the_fragment_layout(trans):
    """Lane t holds row t/4, columns 2(t%4) and the next of each 8x8 matrix (PTX ISA 9.7.15.5.15, .16)."""
    data, out, back = aligned(256, np.uint16), aligned(128, np.uint32), aligned(256, np.uint16)
    data[:] = np.arange(256)
    run(
        f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2];
 mov.u32 %r9, buf; shl.b32 %r1, %r0, 4; add.s32 %r2, %r9, %r1; mad.wide.u32 %rd3, %r0, 16, %rd0;
 ld.global.v4.b32 {{%r3, %r4, %r5, %r6}}, [%rd3]; st.shared.v4.b32 [%r2], {{%r3, %r4, %r5, %r6}};
 bar.sync 0;
 ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];
 mad.wide.u32 %rd4, %r0, 16, %rd1; st.global.v4.b32 [%rd4], {{%r10, %r11, %r12, %r13}};
 stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r2+512], {{%r10, %r11, %r12, %r13}};
 bar.sync 0;
 ld.shared.v4.b32 {{%r3, %r4, %r5, %r6}}, [%r2+512]; mad.wide.u32 %rd5, %r0, 16, %rd2;
 st.global.v4.b32 [%rd5], {{%r3, %r4, %r5, %r6}};
""",
        [data, out, back],
        before=SHARED,
    )
    tiles = data.reshape(4, 8, 8)
    fragments = out.reshape(32, 4)
    for t in range(32):
        for i in range(4):
            tile = tiles[i].T if trans else tiles[i]
            low, high = int(tile[t // 4, t % 4 * 2]), int(tile[t // 4, t % 4 * 2 + 1])
            assert int(fragments[t, i]) == low | high << 16
    assert back.tolist() == data.tolist()


def test_local_arrays_are_private_to_each_lane():
    """.local memory indexed at run time through generic addresses (PTX ISA 5.1.5)."""
    out = aligned(64, np.uint32)
    run(
        """
 .local .align 4 .b8 depot[16];
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mov.b64 %rd1, depot; cvta.local.u64 %rd2, %rd1;
 and.b32 %r1, %r0, 3; mad.wide.u32 %rd3, %r1, 4, %rd2; st.u32 [%rd3], %r0; ld.local.u32 %r2, [%rd1];
 ld.u32 %r3, [%rd3]; mad.wide.u32 %rd4, %r0, 4, %rd0; st.global.u32 [%rd4], %r3;
""",
        [out],
        threads=64,
    )
    assert out.tolist() == list(range(64))


FAULTS = {
    "past the end": (
        " mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1+4], %r0;",
        "0 bytes past the end of 'p0'",
    ),
    "before": (" ld.global.u32 %r1, [%rd0+-4];", "4 bytes before 'p0'"),
    "misaligned": (" ld.global.u32 %r1, [%rd0+2];", "misaligned global access"),
    "misaligned shared": (
        " mov.u32 %r2, buf; ld.shared.v2.b32 {%r3, %r4}, [%r2+4];",
        "misaligned shared access",
    ),
    "shared out of bounds": (
        " mov.u32 %r2, buf; st.shared.u32 [%r2+4096], %r0;",
        "shared access out of bounds",
    ),
    "unwritten register": (" add.u32 %r9, %r8, 1; st.global.u32 [%rd0], %r9;", "not written before"),
    "no barrier there": (
        " mov.u32 %r2, buf; mbarrier.arrive.shared.b64 _, [%r2];",
        "no mbarrier was initialised",
    ),
    "barrier count": (" bar.sync 1, 33;", "thread count 33 is not a positive multiple of 32"),
    "barrier number": (" bar.sync 16;", "barrier 16 is outside 0..15"),
    "trap": (" trap;", "executed trap"),
    "breakpoint": (" brkpt;", "executed trap"),  # as a trap does, brkpt.
}


@pytest.mark.parametrize("case", list(FAULTS))
def test_faults_name_instruction_thread_and_address(case):
    """What the hardware would refuse stops with the PTX line, the CTA and the address relative to the buffer."""
    body, message = FAULTS[case]
    with pytest.raises(EmulatorError, match="PTX line") as e:
        run(
            " mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0];\n" + body, [aligned(32, np.uint32)], before=SHARED
        )
    assert message in str(e.value)
    assert "CTA (0, 0, 0)" in str(e.value)


def test_an_unknown_instruction_stops_with_its_text_and_line():
    """An instruction the emulator does not know is an error, never a wrong result."""
    with pytest.raises(
        EmulatorError, match=r"ptx: line 9: frobnicate\.u32 %r1, %r2: the emulator does not know"
    ):
        run(" frobnicate.u32 %r1, %r2;", [aligned(1, np.uint32)])


def test_a_spinning_kernel_stops_at_max_seconds():
    """max_seconds ends a kernel that computes for ever and says how far it came."""
    with pytest.raises(EmulatorError, match="stopped after 0 of 1 CTAs"):
        run(
            " mov.u32 %r0, 0;\nL:\n add.u32 %r0, %r0, 1; bra.uni L;", [aligned(1, np.uint32)], max_seconds=0.2
        )


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_ctas_that_wait_for_each_other_run(policy):
    """CTA 0 spins on a flag that the last of 8 CTAs sets: the resident set is interleaved (stream-K needs it)."""
    flag, out = aligned(1, np.uint32), aligned(8, np.uint32)
    run(
        """
 mov.u32 %r0, %ctaid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; setp.eq.u32 %p0, %r0, 7; @%p0 bra LAST;
WAIT:
 ld.acquire.gpu.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT; bra.uni DONE;
LAST:
 mov.u32 %r1, 5; st.release.gpu.global.u32 [%rd0], %r1;
DONE:
 mad.wide.u32 %rd2, %r0, 4, %rd1; st.global.u32 [%rd2], %r1;
""",
        [flag, out],
        grid=(8, 1, 1),
        policy=policy,
    )
    assert out.tolist() == [5] * 8


def test_a_flag_nobody_sets_is_a_deadlock():
    """A spin on memory that nothing can change any more is reported as such."""
    with pytest.raises(
        EmulatorError,
        match="deadlock: no warp can make progress\n.* at PTX line .*: spinning on byte 0x0 of p0",
    ):
        run(
            """
 ld.param.u64 %rd0, [p0];
WAIT:
 ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra WAIT;
""",
            [aligned(1, np.uint32)],
            max_seconds=PATIENCE,
        )


def test_the_module_reader_keeps_lines_and_sources():
    """Instructions carry PTX line and .loc source; inline assembly scopes get names of their own (PTX ISA 4, 11)."""
    from cutegemm.emulator import Module

    text = (
        kernel_text(""" .loc 1 42 7
 { .reg .pred q; setp.eq.u32 q, 1, 1; @q bra L; L: }
 { .reg .pred q; setp.ne.u32 q, 1, 1; @!q bra L;
 L: mov.u32 %r1, 3; }
""")
        + '.file 1 "some/where.cu"\n'
    )
    kernel = Module.parse(text).kernel("k")
    first, _, second, _, last, _ = kernel.code
    assert (first.line, first.source) == (10, ("some/where.cu", 42))
    assert first.operands[0] != second.operands[0]
    assert len(kernel.labels) == 2
    assert str(last) == "mov.u32 %r1, 3" and last.line == 12


@pytest.mark.parametrize("warps_per_group", [None, 1])
def test_parting_warps_do_not_repeat_what_came_before(warps_per_group):
    """A branch that splits a group around a barrier runs the instructions before it once, mixed warps included."""
    cell = aligned(1, np.uint32)
    report = run(
        """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; red.global.add.u32 [%rd0], 1;
 setp.ge.u32 %p0, %r0, 40; @%p0 bra END;
 bar.sync 1, 64;
END:
""",
        [cell],
        threads=128,
        warps_per_group=warps_per_group,
    )
    assert cell[0] == 128
    assert report.instructions["red.global.add.u32"] == 4
    assert report.instructions["bar.sync"] == 2


def test_more_threads_than_a_barrier_expects_is_a_fault():
    """Three warps at a barrier for two is misuse, not a wait (PTX ISA 9.7.13.1)."""
    with pytest.raises(EmulatorError, match="barrier 1: 96 threads arrived, 64 expected"):
        run(" bar.sync 1, 64;", [aligned(1, np.uint32)], threads=96)
