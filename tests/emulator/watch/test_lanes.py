# SPDX-License-Identifier: Apache-2.0
"""What one warp does wrong by itself: its lanes race, a barrier stands in divergent code, shfl reads an absent lane."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator import Options, run_ptx
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, kernel_text, run
from tests.support.emulator_pipeline import compile_cuda

SHARED = ".shared .align 16 .b8 buf[256];"
EXCHANGE = """ mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mov.u32 %r9, buf;
 shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9;
 st.shared.u32 [%r1], %r0; {sync} xor.b32 %r2, %r1, {distance}; ld.shared.u32 %r3, [%r2];
 {between} st.shared.u32 [%r1], %r3;
 mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r3;"""
RACE = "race between lanes of a warp"


def kinds(body: str, **options) -> list[str]:
    """Kinds of the findings of one warp that runs a body."""
    return [
        f.kind for f in run(body, [aligned(32, np.uint32)], before=SHARED, races=True, **options).findings
    ]


@pytest.mark.parametrize(
    "sync, between, distance, found",
    [
        ("bar.warp.sync 0xffffffff;", "bar.warp.sync 0xffffffff;", 4, []),
        ("", "bar.warp.sync 0xffffffff;", 4, [RACE]),
        ("bar.warp.sync 0xffffffff;", "", 4, [RACE]),
        ("", "", 0, []),
    ],
)
def test_lanes_that_exchange_through_memory_need_a_warp_barrier(sync, between, distance, found):
    """A lane that reads another's word, or writes over what another reads, needs bar.warp.sync between (9.7.13.3)."""
    assert kinds(EXCHANGE.format(sync=sync, between=between, distance=distance)) == found


@pytest.mark.parametrize("text", [
    "st.shared.u32 [%r1], %r0;\n ld.shared.u32 %r4, [%r1];\n ld.shared.u32 %r3, [%r2];",
    "st.shared.u32 [%r1], %r0;\n st.shared.u32 [%r1+128], %r0;\n ld.shared.u32 %r3, [%r2];",
])  # fmt: skip
def test_a_race_between_lanes_names_the_store_and_the_load(text):
    """Other accesses of the same warp between the two do not take the store's place in the finding."""
    body = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9; xor.b32 %r2, %r1, 4;
 {text}"""
    (found,) = run(body, [], before=".shared .align 16 .b8 buf[512];", races=True).findings
    source = kernel_text(body, params=0, before=".shared .align 16 .b8 buf[512];").split("\n")
    assert found.kind == RACE and [source[n - 1].strip() for n in found.lines] == [
        "st.shared.u32 [%r1], %r0;", "ld.shared.u32 %r3, [%r2];",
    ]  # fmt: skip


@pytest.mark.parametrize("sync, found", [("", [RACE]), ("bar.warp.sync 0xffffffff;", [])])
def test_a_lane_that_zeroes_what_other_lanes_add_to(sync, found):
    """An atomic of one lane and a plain store of another race like two plain accesses."""
    body = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; setp.ne.u32 %p0, %r0, 0; @!%p0 st.shared.u32 [%r9], 0; {sync}
 red.shared.add.u32 [%r9], 1; bar.warp.sync 0xffffffff; ld.shared.u32 %r1, [%r9];"""
    assert kinds(body) == found
    after = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; setp.ne.u32 %p0, %r0, 0; @!%p0 st.shared.u32 [%r9], 0;
 bar.warp.sync 0xffffffff; red.shared.add.u32 [%r9], 1; {sync} @!%p0 ld.shared.u32 %r1, [%r9];"""
    assert kinds(after) == found


def test_a_lane_that_writes_for_the_others_in_divergent_code_is_found():
    """Lane 0 writes in a branch of its own and all lanes read after it: without a warp barrier they may be early."""
    body = """ mov.u32 %r0, %tid.x; mov.u32 %r9, buf; setp.ne.u32 %p0, %r0, 0; @%p0 bra READ; st.shared.u32 [%r9], 7;
READ: {} ld.shared.u32 %r3, [%r9];"""
    assert kinds(body.format("")) == [RACE]
    assert kinds(body.format("bar.warp.sync 0xffffffff;")) == []


@pytest.mark.parametrize("early, found", [("", [RACE]), ("ld.shared.u32 %r3, [%r9];", [])])
def test_a_warp_barrier_is_for_the_lanes_it_names(early, found):
    """Lanes 0 to 7 meet: they may read what lane 0 wrote, the others may not."""
    late = "" if early else "ld.shared.u32 %r3, [%r9];"
    body = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; setp.ne.u32 %p0, %r0, 0; @%p0 bra MEET; st.shared.u32 [%r9], 7;
MEET: setp.gt.u32 %p1, %r0, 7; @%p1 bra END; bar.warp.sync 0xff; {early}
END: {late}"""
    assert kinds(body) == found


@pytest.mark.parametrize("sync, beside, found", [
    ("", 0, [RACE]), ("bar.warp.sync 0xffffffff;", 0, []), ("", 12, [RACE]), ("", 16, []),
])  # fmt: skip
def test_rows_of_stmatrix_meet_only_the_bytes_that_they_are(sync, beside, found):
    """A lane writes within a row of 16 bytes, which all lanes then write together, twice, or between two rows."""
    body = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; and.b32 %r1, %r0, 7; shl.b32 %r1, %r1, 5; add.u32 %r1, %r1, %r9;
 add.u32 %r2, %r1, {beside}; setp.gt.u32 %p0, %r0, 7; @!%p0 st.shared.u32 [%r2], %r0; {sync}
 stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {{%r0}}; stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1], {{%r0}};"""
    assert kinds(body) == found


@pytest.mark.parametrize("value, at, found", [
    ("%r0", "%r9", [RACE]), ("7", "%r9", []), ("%r0", "%r1", []), ("%r0", "%r2", [RACE]), ("%r3", "%r2", []),
])  # fmt: skip
def test_lanes_that_store_to_one_address_have_to_agree(value, at, found):
    """Which of several lanes' values stays is undefined; two lanes share a word at %r2, and its value in %r3."""
    body = f""" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9;
 shr.u32 %r3, %r0, 1; shl.b32 %r2, %r3, 2; add.u32 %r2, %r2, %r9; st.shared.u32 [{at}], {value};"""
    assert kinds(body) == found


ARRIVAL = """ mov.u32 %r0, %tid.x; mov.u32 %r9, buf; and.b32 %r5, %r0, 31; shl.b32 %r1, %r5, 2; add.u32 %r1, %r1, %r9;
 setp.ne.u32 %p0, %r0, 0; setp.gt.u32 %p1, %r0, 31; @!%p1 st.shared.u32 [%r1+64], %r0;
 @!%p0 mbarrier.init.shared.b64 [%r9], {count}; @!%p0 mbarrier.init.shared.b64 [%r9+8], 1;
 @!%p0 mbarrier.arrive.shared.b64 _, [%r9+8]; bar.sync 0; @%p1 bra WAIT;
 {does}
 {who} mbarrier.arrive.shared.b64 _, [%r9];
 bra END;
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r9], 0; @!%p2 bra WAIT;
 {then}
END: mov.u32 %r4, 0;"""
READS, WRITES = "ld.shared.u32 %r3, [%r1+64];", "st.shared.u32 [%r1+64], %r0;"
LANE_0, MET = "@!%p0", "bar.warp.sync 0xffffffff;"
OVER = "LATE: mbarrier.try_wait.parity.shared.b64 %p3, [%r9+8], 0; @!%p3 bra LATE;"


@pytest.mark.parametrize("does, who, then, found", [
    (READS, LANE_0, WRITES, ["read-write race"]),
    (READS + MET, LANE_0, WRITES, []),
    (WRITES, LANE_0, READS, ["write-read race"]),
    (WRITES + MET, LANE_0, READS, []),
    # a wait that succeeds tells lanes of others, not others of the lanes
    (READS + OVER, LANE_0, WRITES, ["read-write race"]),
    (READS + MET + OVER, LANE_0, WRITES, []),
    # each lane for itself
    (READS, "", WRITES, []),
    # what lane 0 did alone, and what all did elsewhere; what all read at one address as one lane would
    (READS + "@!%p0 st.shared.u32 [%r9+16], 1;", LANE_0, "ld.shared.u32 %r3, [%r9+16];", []),
    ("ld.shared.u32 %r3, [%r9+64];", LANE_0, "st.shared.u32 [%r9+64], 7;", []),
    # half of a warp meets, and lane 0 arrives for it alone
    (READS + "@%p4 bra REST; bar.warp.sync 0xffff; REST:", LANE_0, "@!%p4 " + WRITES, []),
    (READS + "@%p4 bra REST; bar.warp.sync 0xffff; REST:", LANE_0, "@%p4 " + WRITES, ["read-write race"]),
])  # fmt: skip
def test_a_lane_arrives_for_others_only_where_they_have_met(does, who, then, found):
    """An mbarrier's arrival releases what its lane did, and what it knows of others (PTX ISA 8.9, 9.7.13.15)."""
    body = ARRIVAL.format(does=does, who=who, then=then, count=1 if who else 32)
    body = body.replace("setp.gt.u32 %p1", "setp.gt.u32 %p4, %r5, 15; setp.gt.u32 %p1")
    report = run(body, [], before=".shared .align 16 .b8 buf[256];", threads=64, races=True)
    assert [f.kind for f in report.findings] == found


def test_lanes_that_have_exited_are_not_waited_for():
    """The lanes that are left of a warp are all of it: bar.sync among them is not divergent."""
    body = " mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 7; @%p0 exit; bar.sync 0; mov.u32 %r1, 0;"
    assert kinds(body) == []


def test_lanes_that_reach_several_buffers_are_watched():
    """Half of a warp reads one array, half another: a warp that writes there meanwhile is a race."""
    body = """ mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 setp.gt.u32 %p0, %r0, 31; @%p0 bra READ; st.global.u32 [%rd1], 3; bra END;
READ: setp.gt.u32 %p1, %r0, 47; selp.u64 %rd2, %rd1, %rd0, %p1; ld.global.u32 %r3, [%rd2];
END: mov.u32 %r4, 0;"""
    both = [aligned(32, np.uint32), aligned(32, np.uint32)]
    found = run(body, both, threads=64, races=True).findings
    assert [f.kind for f in found] == ["write-read race"]


@pytest.mark.parametrize("barrier, found", [("bar.sync 1, 32;", True), ("barrier.sync 1, 32;", False)])
def test_a_barrier_in_divergent_code(barrier, found):
    """bar.sync is for all lanes of a warp at once; only barrier.sync without .aligned may stand alone (9.7.13.1)."""
    body = f""" mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 7; @%p0 bra.uni OTHER; {barrier}
OTHER: mov.u32 %r1, 0;"""
    body = body.replace("bra.uni", "bra")
    assert (kinds(body) == ["barrier in divergent code"]) == found


@pytest.mark.parametrize("source, found", [(3, []), (9, ["shfl from an inactive lane"])])
def test_shfl_from_an_inactive_lane(source, found):
    """A lane that took another path gives no value (PTX ISA 9.7.9.6: the result is undefined)."""
    body = f""" mov.u32 %r0, %tid.x; setp.gt.u32 %p0, %r0, 7; @%p0 bra OTHER;
 shfl.sync.idx.b32 %r1, %r0, {source}, 31, 0xff; mov.u32 %r2, %r1;
OTHER: mov.u32 %r3, 0;"""
    assert kinds(body) == found


MISSING = "lane missing from its member mask"
ACROSS = {  # an instruction with a member mask, and what its result is among lanes 0 to 7
    "redux.sync.add.u32 %r1, %r0, {};": 28,
    "vote.sync.ballot.b32 %r1, %p0, {};": 0xF0,
    "shfl.sync.idx.b32 %r1, %r0, 3, 31, {};": 3,
    "match.any.sync.b32 %r1, %r5, {};": 0xFF,
    "bar.warp.sync {}; mov.u32 %r1, 9;": 9,
}


@pytest.mark.parametrize("text", ACROSS)
def test_every_lane_names_itself_in_its_member_mask(text):
    """All 32 lanes give the mask 0xff: eight may, others are undefined (PTX ISA 9.7.13). A branch makes it right."""
    start = " mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; setp.gt.u32 %p0, %r0, 3; mov.u32 %r5, 1;"
    leave = " setp.gt.u32 %p1, %r0, 7; @%p1 bra END;"
    end = "\n mad.wide.u32 %rd1, %r0, 4, %rd0; st.global.u32 [%rd1], %r1;\nEND:"
    out = aligned(32, np.uint32)
    found = run(start + text.format("0xff") + end, [out], races=True).findings
    assert [f.kind for f in found][:1] == [MISSING] and "lane 8 with mask 0xff" in found[0].text
    assert out[:8].tolist() == [ACROSS[text]] * 8
    for races in (False, True):
        out[:] = 99
        assert not run(start + leave + text.format("0xff") + end, [out], races=races).findings
        assert out.tolist() == [ACROSS[text]] * 8 + [99] * 24


@pytest.mark.parametrize("threads, races", [(32, True), (64, False)])
def test_lanes_combine_with_those_of_their_own_mask(threads, races):
    """Each half of a warp names itself: sums and votes are of the half."""
    body = """ mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mov.u32 %r1, 0xffff; and.b32 %r2, %r0, 16;
 shl.b32 %r1, %r1, %r2; redux.sync.add.u32 %r3, %r0, %r1; and.b32 %r4, %r0, 1; setp.eq.u32 %p0, %r4, 1;
 vote.sync.ballot.b32 %r5, %p0, %r1; add.u32 %r6, %r3, %r5; mad.wide.u32 %rd1, %r0, 4, %rd0;
 st.global.u32 [%rd1], %r6;"""
    out = aligned(threads, np.uint32)
    assert not run(body, [out], threads=threads, races=races).findings
    halves = np.arange(threads).reshape(-1, 16)
    bits = np.where(np.arange(len(halves)) % 2, 0xAAAA0000, 0xAAAA).astype(np.uint32)
    assert (out.reshape(-1, 16) == (halves.sum(1).astype(np.uint32) + bits)[:, None]).all()


@pytest.mark.parametrize("mask, distance, found", [
    ("%r7", 4, [RACE]), ("%r8", 4, []), ("%r8", 64, [RACE]), ("0xffffffff", 64, []),
])  # fmt: skip
def test_a_warp_barrier_joins_lanes_of_the_same_mask_alone(mask, distance, found):
    """Lanes that each name themselves do not meet; halves that name themselves meet within the half."""
    masks = "mov.u32 %r6, 1; shl.b32 %r7, %r6, %r0; mov.u32 %r6, 0xffff; and.b32 %r8, %r0, 16; shl.b32 %r8, %r6, %r8;"
    text = EXCHANGE.format(
        sync=f"{masks} bar.warp.sync {mask};", between=f"bar.warp.sync {mask};", distance=distance
    )
    assert kinds(text) == found


def test_shfl_of_all_lanes_is_silent():
    """A butterfly over a full warp."""
    assert kinds(" mov.u32 %r0, %tid.x; shfl.sync.bfly.b32 %r1, %r0, 16, 31, 0xffffffff;") == []


def test_copies_that_an_mbarrier_tracks_need_no_wait_of_their_own():
    """cp.async.mbarrier.arrive.noinc tells of the copies: the waiters know of them, nothing is left over."""
    body = """ mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mov.u32 %r9, buf;
 shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra READY; mbarrier.init.shared.b64 [bar], 32;
READY: bar.sync 0; mad.wide.u32 %rd1, %r0, 4, %rd0;
 cp.async.ca.shared.global [%r1], [%rd1], 4; {arrive}
 mbarrier.arrive.shared.b64 _, [bar];
LOOP: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra LOOP;
 bar.sync 0; xor.b32 %r2, %r1, 64; ld.shared.u32 %r3, [%r2]; st.global.u32 [%rd1], %r3;"""
    before = SHARED + ".shared .align 8 .b8 bar[8];"
    data = aligned(32, np.uint32)
    data[:] = np.arange(32)
    tracked = body.replace(" mbarrier.arrive.shared.b64 _, [bar];\n", "")
    text = tracked.replace("{arrive}", "cp.async.mbarrier.arrive.noinc.shared.b64 [bar];")
    for options in ({}, {"policy": "lazy"}, {"policy": "random", "seed": 3}):
        data[:] = np.arange(32)
        report = run(text, [data], before=before, races=True, **options)
        assert not report.findings and data.tolist() == (np.arange(32) ^ 16).tolist()
    report = run(body.replace("{arrive}", ""), [data], before=before, races=True, policy="lazy")
    assert {"leftover", "read-write race"} & {f.kind for f in report.findings}


LOCK = """
extern "C" __global__ void k(int* lock, int* count) {
    if (threadIdx.x >= 5) return;
    LOOP
    UNLOCK
}
"""
WAIT = "while (atomicCAS(lock, 0, 1)) {} __threadfence(); count[0] += 1; __threadfence();"
TRY = """for (bool done = false; !done;)
        if (!atomicCAS(lock, 0, 1)) { FENCE; count[0] += 1; FENCE; atomicExch(lock, 0); done = true; }"""
FREE = "atomicExch(lock, 0);"


@pytest.mark.parametrize("loop, unlock, found", [
    (WAIT, FREE, []),
    (TRY.replace("FENCE", "__threadfence()"), "", []),
    (TRY.replace("FENCE", ""), "", [RACE]),
])  # fmt: skip
@pytest.mark.parametrize("policy", ["eager", "random"])
def test_lanes_take_turns_at_a_lock(loop, unlock, found, policy):
    """Lanes are scheduled independently, so one may spin until another unlocks; fences order what they do inside."""
    ptx = compile_cuda(LOCK.replace("LOOP", loop).replace("UNLOCK", unlock))
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    result = run_ptx(ptx, grid=1, block=32, args=[lock, count], options=Options(races=True, policy=policy))
    assert sorted({f.kind for f in result.findings}) == found and count[0] == 5


def test_a_lock_that_stays_locked_is_a_deadlock():
    """A failed compare-and-swap is no progress; without the report the run would not end."""
    ptx = compile_cuda(LOCK.replace("LOOP", WAIT).replace("UNLOCK", ""))
    with pytest.raises(EmulatorError, match="deadlock: no warp can make progress"):
        run_ptx(ptx, grid=1, block=32, args=[np.zeros(1, np.int32), np.zeros(1, np.int32)])


ONE_LANE = """
extern "C" __global__ void k(volatile int* flag, int* y) {
    __shared__ int tile[64];
    if (threadIdx.x >= 60) return;
    tile[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) { while (!flag[0]) {} } else if (threadIdx.x == STORES) flag[0] = 1;
    __syncthreads();
    y[threadIdx.x] = tile[59 - threadIdx.x];
}
"""


@pytest.mark.parametrize("policy", ["eager", "random"])
def test_a_lane_may_wait_for_another_lane_but_a_barrier_waits_for_all(policy):
    """Lane 1 stores what lane 0 waits for; if none does, no lane passes the barrier alone. Lanes may have returned."""
    options, flag, y = Options(races=True, policy=policy), np.zeros(1, np.int32), np.zeros(60, np.int32)
    ptx = compile_cuda(ONE_LANE.replace("STORES", "1"))
    assert not run_ptx(ptx, grid=1, block=64, args=[flag, y], options=options).findings
    assert y.tolist() == list(range(59, -1, -1))
    flag[0] = 0
    with pytest.raises(EmulatorError, match="warp 0 at .*: spinning on byte 0x0") as e:
        run_ptx(
            compile_cuda(ONE_LANE.replace("STORES", "99")), grid=1, block=64, args=[flag, y], options=options
        )
    assert not e.value.findings


def test_a_shuffle_from_outside_the_member_mask_is_found():
    """Lanes 0 to 7 read lanes 24 to 31, which take part in the same shfl.sync with another mask (9.7.9.6)."""
    body = """ mov.u32 %r0, %tid.x; and.b32 %r1, %r0, 24; mov.b32 %r2, 255; shl.b32 %r2, %r2, %r1;
 xor.b32 %r3, %r0, {}; shfl.sync.idx.b32 %r4, %r0, %r3, 31, %r2;"""
    assert kinds(body.replace("{}", "7")) == []
    assert kinds(body.replace("{}", "24")) == ["shfl from an inactive lane"]
