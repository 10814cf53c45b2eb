# SPDX-License-Identifier: Apache-2.0
"""The race detector on global memory: bulk and tensor copies, proxies, memory orders; CTAs that wait for each other."""

from __future__ import annotations

import re

import numpy as np
import pytest

from cutegemm.emulator import Buffer, Launch, Module, Options, launch, run_ptx
from cutegemm.emulator.state.geometry import occupancy
from cutegemm.emulator.state.tensors import TensorMap, encode
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, kernel_text, run
from tests.support.emulator_pipeline import compile_cuda, compiled, run_pipeline
from tests.support.emulator_units import TMA_KERNEL

BUFFER = ".shared .align 128 .b8 buf[1024];"
BEGIN = """
 mov.u32 %r0, %tid.x; mov.u32 %r1, buf; mov.u32 %r2, %ctaid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 setp.ne.u32 %p0, %r0, 0; setp.ne.u32 %p9, %r2, 0; mad.wide.u32 %rd2, %r0, 4, %rd0;
 @!%p0 mbarrier.init.shared.b64 [%r1], 1; @!%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
"""
LOAD = """
 @%p0 bra LOADED; mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 128;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+128], [%rd0], 128, [%r1];
LOADED:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra LOADED;
"""


def kinds(body: str, **options) -> set[str]:
    """Kinds of findings of a body on 256 words at p0 and a flag at p1."""
    arrays = [aligned(256, np.uint32), aligned(4, np.uint32)]
    report = run(BEGIN + body, arrays, before=BUFFER, races=True, policy="random", seed=1, **options)
    return {f.kind for f in report.races}


@pytest.mark.parametrize("fence, found", [
    ("", {"missing proxy fence"}), ("fence.proxy.async.shared::cta;", {"missing proxy fence"}),
    ("fence.proxy.async.global;", set()), ("fence.proxy.async;", set()),
])  # fmt: skip
def test_a_plain_write_needs_a_proxy_fence_before_a_bulk_load(fence, found):
    """st.global, then cp.async.bulk of the same bytes: only a fence that covers global memory will do (PTX ISA 8.6)."""
    assert kinds(f" st.global.u32 [%rd2], %r0; {fence} bar.sync 0;" + LOAD) == found


STORE = """
 @%p0 bra STORED; cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r1+256], 128; cp.async.bulk.commit_group;
 {wait}
STORED:
 bar.sync 0; ld.global.u32 %r5, [%rd2];
"""


@pytest.mark.parametrize(
    "wait, found",
    [
        ("cp.async.bulk.wait_group 0;", set()),
        ("cp.async.bulk.wait_group.read 0;", {"write-read race"}),
    ],
)
def test_a_bulk_store_is_visible_after_its_full_wait_only(wait, found):
    """.read frees the source but says nothing of the destination (PTX ISA 9.7.9.25.3.2)."""
    fill = " shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7; st.shared.u32 [%r8+256], %r0;"
    fill += " fence.proxy.async.shared::cta; bar.sync 0;"
    assert kinds(fill + STORE.format(wait=wait)) == found


PASSING = """
 @%p9 bra READER;
 st.global.u32 [%rd2], %r0; bar.sync 0; @%p0 bra DONE; {release} bra.uni DONE;
READER:
 @%p0 bra READ;
SPIN:
 {acquire} setp.eq.u32 %p1, %r3, 0; @%p1 bra SPIN; {after}
READ:
 bar.sync 0; ld.global.u32 %r5, [%rd2];
DONE:
"""
ORDERS = {
    "release, acquire": (("st.release.gpu.global.u32 [%rd1], 1;", "ld.acquire.gpu.global.u32 %r3, [%rd1];", ""), set()),
    "fences": (("fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd1], 1;",
                "ld.relaxed.gpu.global.u32 %r3, [%rd1];", "fence.acq_rel.gpu;"), set()),
    "membar, atomic, volatile": (("membar.gl; red.global.add.u32 [%rd1], 1;",
                                  "ld.volatile.global.u32 %r3, [%rd1];", "membar.gl;"), set()),
    "no release": (("red.global.add.u32 [%rd1], 1;", "ld.acquire.gpu.global.u32 %r3, [%rd1];", ""),
                   {"write-read race"}),
    "no acquire": (("st.release.gpu.global.u32 [%rd1], 1;", "ld.volatile.global.u32 %r3, [%rd1];", ""),
                   {"write-read race"}),
    "release within the CTA": (("st.release.cta.global.u32 [%rd1], 1;", "ld.acquire.gpu.global.u32 %r3, [%rd1];", ""),
                               {"write-read race"}),
    "acquire within the CTA": (("st.release.gpu.global.u32 [%rd1], 1;", "ld.acquire.cta.global.u32 %r3, [%rd1];", ""),
                               {"write-read race"}),
    "fence within the CTA": (("membar.cta; st.relaxed.gpu.global.u32 [%rd1], 1;",
                              "ld.acquire.gpu.global.u32 %r3, [%rd1];", ""), {"write-read race"}),
    "fence after within the CTA": (("st.release.gpu.global.u32 [%rd1], 1;", "ld.relaxed.gpu.global.u32 %r3, [%rd1];",
                                    "fence.acq_rel.cta;"), {"write-read race"}),
    "fence too late": (("st.relaxed.gpu.global.u32 [%rd1], 1; fence.acq_rel.gpu;",
                        "ld.acquire.gpu.global.u32 %r3, [%rd1];", ""), {"write-read race"}),
}  # fmt: skip


@pytest.mark.parametrize("order", list(ORDERS))
def test_a_flag_between_ctas_orders_as_its_accesses_say(order):
    """Relaxed accesses order nothing without a fence on their side (PTX ISA 8.8, release and acquire patterns)."""
    (release, acquire, after), found = ORDERS[order]
    body = PASSING.format(release=release, acquire=acquire, after=after)
    assert kinds(body, grid=(2, 1, 1), resident_ctas=2) == found


COPY = """
 shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7; {before}
 cp.async.ca.shared.global [%r8+256], [%rd2], 4; cp.async.commit_group; {wait}
"""
COPIES = {  # what follows a cp.async -> what must be found
    "cp.async.wait_group 0; ld.shared.u32 %r5, [%r8+256];": set(),
    "cp.async.wait_all; bar.sync 0; xor.b32 %r9, %r8, 32; ld.shared.u32 %r5, [%r9+256];": set(),
    "ld.shared.u32 %r5, [%r8+256]; cp.async.wait_group 0;": {"write-read race"},
    "cp.async.wait_group 1; ld.shared.u32 %r5, [%r8+256]; cp.async.wait_group 0;": {"write-read race"},
    "bar.sync 0; cp.async.wait_group 0; xor.b32 %r9, %r8, 128; ld.shared.u32 %r5, [%r9+256];": {
        "write-read race"
    },
    "st.global.u32 [%rd2], %r0; cp.async.wait_group 0;": {"read-write race"},
}


@pytest.mark.parametrize("after", list(COPIES))
def test_a_cp_async_is_over_at_its_wait_and_not_before(after):
    """Its bytes may be read, and its source written, after a wait by the same thread; by others after a barrier too
    (PTX ISA 9.7.9.25.3, cp.async and its groups)."""
    assert kinds(COPY.format(before="", wait=after), threads=64) == COPIES[after]


def test_an_mbarrier_carries_finished_copies():
    """cp.async.mbarrier.arrive completes once the copies have; who waits for it may read (9.7.13.15.16)."""
    wait = """
 cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];
SPIN:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra SPIN;
 xor.b32 %r9, %r8, 128; ld.shared.u32 %r5, [%r9+256]; cp.async.wait_all;
"""
    start = "@!%p0 mbarrier.init.shared.b64 [%r1], 64; bar.sync 0;"
    assert kinds(COPY.format(before=start, wait=wait), threads=64) == set()


WITHIN = """
 setp.ge.u32 %p8, %r0, 32; @%p8 bra READER;
 st.global.u32 [%rd2], %r0; bar.warp.sync -1; {release} bra.uni DONE;
READER:
 {acquire} setp.eq.u32 %p1, %r3, 0; @%p1 bra READER; {after} ld.global.u32 %r5, [%rd2+-128];
DONE:
"""


@pytest.mark.parametrize(
    "release, acquire, after",
    [
        ("st.release.cta.global.u32 [%rd1], 1;", "ld.acquire.cta.global.u32 %r3, [%rd1];", ""),
        (
            "fence.acq_rel.cta; st.relaxed.cta.global.u32 [%rd1], 1;",
            "ld.relaxed.cta.global.u32 %r3, [%rd1];",
            "fence.acq_rel.cta;",
        ),
    ],
)
def test_the_scope_of_the_cta_is_enough_within_it(release, acquire, after):
    """Two warps of one CTA pass data by a flag in the scope of the CTA (PTX ISA 8.5, scope)."""
    assert kinds(WITHIN.format(release=release, acquire=acquire, after=after), threads=64) == set()
    assert kinds(
        WITHIN.format(release="st.relaxed.cta.global.u32 [%rd1], 1;", acquire=acquire, after=after),
        threads=64,
    ) == {"write-read race"}


@pytest.mark.parametrize("before, arrive, wait, after, found", [
    ("", "", "", "", set()),
    ("", ".relaxed.cta", "", "", {"write-read race"}), ("", "", ".relaxed.cta", "", {"write-read race"}),
    ("fence.acq_rel.cta;", ".relaxed.cta", ".relaxed.cta", "fence.acq_rel.cta;", set()),
])  # fmt: skip
def test_relaxed_arrivals_and_waits_order_with_fences_alone(before, arrive, wait, after, found):
    """An mbarrier passes data on between warps if both sides are release and acquire, or fenced (9.7.13.15)."""
    body = f""" .shared .align 8 .b8 mb[8]; mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0];
 setp.ne.u32 %p0, %r0, 0; @%p0 bra READY; mbarrier.init.shared.b64 [mb], 32;
READY: bar.sync 0; setp.gt.u32 %p1, %r0, 31; @%p1 bra WAIT; mad.wide.u32 %rd1, %r0, 4, %rd0;
 st.global.u32 [%rd1], 1; {before} mbarrier.arrive{arrive}.shared.b64 _, [mb]; bra END;
WAIT: mbarrier.try_wait.parity{wait}.shared.b64 %p2, [mb], 0; @!%p2 bra WAIT; {after} ld.global.u32 %r2, [%rd0+4];
END: mov.u32 %r3, 0;"""
    assert kinds(body, threads=64) == found


@pytest.mark.parametrize(
    "writer, found",
    [
        ("st.global.u32 [%rd2], %r0;", True),
        ("st.global.u32 [%rd2+128], %r0;", False),
    ],
)
@pytest.mark.parametrize("first", ["reader", "writer"])
def test_a_write_under_a_bulk_load_of_another_cta_is_a_race(writer, found, first):
    """One CTA loads 128 bytes while the other writes them, or the bytes beside them; either may come first."""
    parts = (LOAD, f" {writer}") if first == "reader" else (f" {writer}", LOAD)
    body = f" @%p9 bra OTHER;{parts[0]} bra.uni DONE;\nOTHER:\n {parts[1]}\nDONE:\n"
    arrays = [aligned(256, np.uint32), aligned(4, np.uint32)]
    report = run(BEGIN + body, arrays, before=BUFFER, races=True, grid=(2, 1, 1))  # eager: CTA 0 comes first
    assert ("race" in " ".join(f.kind for f in report.races)) == found


REDUCE = """
 @%p0 bra END; {other}
 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0], [%r1+256], 128; cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;
END:
"""


@pytest.mark.parametrize("other, found", [("", False), ("@%p9 st.global.u32 [%rd0+4], 5;", True)])
def test_reductions_do_not_race_with_each_other(other, found):
    """Two CTAs add into the same bytes; a plain store among them is a race (PTX ISA 9.7.9.25.4.2)."""
    fill = " shl.b32 %r7, %r0, 2; add.u32 %r8, %r1, %r7; st.shared.u32 [%r8+256], %r0;"
    body = fill + " fence.proxy.async.shared::cta; bar.sync 0;" + REDUCE.format(other=other)
    assert ("race" in " ".join(kinds(body, grid=(2, 1, 1), resident_ctas=2))) == found


@pytest.mark.parametrize("row, column, at, found", [
    (3, 5, (0, 0), True), (3, 70, (0, 0), False), (20, 5, (0, 0), False), (3, 5, (8, 0), False),
    (3, 5, (0, 4), False), (20, 75, (16, 8), True), (0, 0, (-8, -8), True), (8, 0, (-8, -8), False),
])  # fmt: skip
def test_a_tensor_load_touches_its_box_and_no_more(row, column, at, found):
    """A write before a tensor load without a proxy fence is found where the box reaches, and only there."""
    source = aligned(24 * 80, np.uint16).reshape(24, 80)
    out = aligned(2048, np.uint8)
    offset = (row * 80 + column) * 2
    text = TMA_KERNEL.replace(
        " setp.ne.u32 %p0, %r0, 0;",
        f" setp.ne.u32 %p0, %r0, 0; ld.param.u64 %rd9, [where]; @!%p0 st.global.u16 [%rd9+{offset}], 7;",
    ).replace(".param .u32 x,", ".param .u64 where, .param .u32 x,")
    tensor = TensorMap(source.ctypes.data, "u16", (80, 24), (160,), (64, 16), 3)
    number = lambda x, n: int(x % (1 << 8 * n)).to_bytes(n, "little")
    params = [encode(tensor), number(out.ctypes.data, 8), number(source.ctypes.data, 8)]
    params += [number(x, 4) for x in (*at, 2048)]
    buffers = [Buffer(x.ctypes.data, x.nbytes) for x in (source, out)]
    what = Launch(grid=(1, 1, 1), block=(64, 1, 1), smem_bytes=40960, params=params, buffers=buffers)
    report = launch(Module.parse(text), what, Options(races=True))
    assert {f.kind for f in report.races} == ({"missing proxy fence"} if found else set())


TURNS = """
 mov.u32 %r0, %ctaid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r1, %nctaid.x; sub.u32 %r2, %r1, 1;
 {order}
WAIT:
 ld.acquire.gpu.global.u32 %r4, [%rd0]; setp.ne.u32 %p1, %r4, %r3; @%p1 bra WAIT;
 ld.global.u32 %r5, [%rd1]; mul.lo.u32 %r6, %r5, 3; add.u32 %r7, %r6, %r0; st.global.u32 [%rd1], %r7;
 add.u32 %r8, %r4, 1; st.release.gpu.global.u32 [%rd0], %r8;
"""


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_ctas_that_finish_in_order_run_when_few_are_resident(policy):
    """Each CTA waits for the one before it, as in an ordered split-K reduction: right, in order, without a race."""
    flag, total = aligned(1, np.uint32), aligned(1, np.uint32)
    body = TURNS.format(order="mov.u32 %r3, %r0;")
    report = run(body, [flag, total], grid=(9, 1, 1), policy=policy, resident_ctas=2, races=True)
    want = 0
    for i in range(9):
        want = 3 * want + i
    assert total[0] == want and flag[0] == 9
    assert not report.findings


def test_ctas_that_wait_for_one_without_room_are_a_deadlock():
    """In the opposite order the last CTA never starts: reported, with who waits on what."""
    body = TURNS.format(order="sub.u32 %r3, %r2, %r0;")
    arrays = [aligned(1, np.uint32), aligned(1, np.uint32)]
    run(body, arrays, grid=(4, 1, 1), resident_ctas=4)
    with pytest.raises(EmulatorError) as e:
        run(body, [aligned(1, np.uint32)] * 2, grid=(4, 1, 1), resident_ctas=2)
    assert "2 of 4 clusters have not started: 2 CTAs fit" in str(e.value)
    assert re.search(r"CTA \(0, 0, 0\) warp 0 at PTX line \d+ `.*`: spinning on byte 0x0 of p0", str(e.value))


def test_a_finding_names_both_accesses_and_their_source_lines():
    """PTX line, line of the source, CTA and warp, memory and offset of a race in compiled CUDA code."""
    findings = run_pipeline(compiled("NO_BARRIER"), policy="lazy", races=True).report.findings
    text = next(str(f) for f in findings if "race" in f.kind)
    source = r"pipeline\.cu:\d+(, inlined at pipeline\.cu:\d+)*"
    place = rf"by CTA \(\d, 0, 0\) warp \d at PTX line \d+ \({source}\)"
    assert re.search(rf"race: .* {place} and earlier .* {place}, shared memory of CTA .*, offset 0x", text), (
        text
    )


@pytest.mark.parametrize("word, between", [(0, ""), (32, ""), (0, "ld.shared.u32 %r5, [%r3];"), (64, "")])
def test_the_earlier_access_is_the_one_that_touched_the_bytes(word, between):
    """One warp stores to three rows between two barriers; another reads one row: that row's store is named."""
    body = f""" .shared .align 16 .b8 rows[384]; mov.u32 %r0, %tid.x; mov.u32 %r1, rows; and.b32 %r2, %r0, 31;
 shl.b32 %r2, %r2, 2; add.u32 %r3, %r1, %r2; setp.gt.u32 %p0, %r0, 31; @%p0 bra READ;
 st.shared.u32 [%r3], 1;
 st.shared.u32 [%r3+128], 2;
 st.shared.u32 [%r3+256], 3;
 {between} bra.uni END;
READ:
 ld.shared.u32 %r4, [%r3+{4 * word}];
END:"""
    lines = kernel_text(body, params=0).split("\n")
    (found,) = run(body, [], threads=64, races=True, policy="eager").races
    assert found.kind == "write-read race"
    assert [lines[n - 1].strip() for n in found.lines] == [
        f"st.shared.u32 [%r3{f'+{4 * word}' if word else ''}], {1 + word // 32};",
        f"ld.shared.u32 %r4, [%r3+{4 * word}];",
    ]


UNROLLED = r"""
extern "C" __global__ void unrolled(const float* x, float* out, int n) {
    __shared__ float tile[16 * 64];
    #pragma unroll
    for (int j = 0; j < 16; j++)
        if (j * 64 + threadIdx.x < n) tile[j * 64 + threadIdx.x] = x[j * 64 + threadIdx.x];
#ifndef BUG
    __syncthreads();
#endif
    float sum = 0;
    #pragma unroll
    for (int j = 0; j < 16; j++) {
        int i = (j * 64 + threadIdx.x + 32) % 1024;
        if (i < n) sum += tile[i];
    }
    out[threadIdx.x] = sum;
}
"""


def test_one_cause_in_unrolled_code_is_one_finding():
    """A missing barrier between loops of 16 unrolled steps: one finding for each kind and pair of source lines."""

    def found(*flags: str) -> list:
        x, out = np.ones(1024, np.float32), np.zeros(64, np.float32)
        options = Options(races=True)
        ptx = compile_cuda(UNROLLED, *flags)
        return run_ptx(ptx, grid=1, block=64, args=[x, out, 1000], options=options).findings

    assert not found()
    made = found("-DBUG")
    assert sorted(f.kind for f in made) == ["read-write race", "uninitialised read", "write-read race"]
    assert all(f.count >= 16 and len(f.pairs) == 16 for f in made)
    assert all(str(f).endswith("times at 16 places]") for f in made)


OCCUPANCY = {
    (128, 0): 16,
    (1024, 0): 2,
    (32, 0): 32,
    (96, 0): 21,
    (128, 100_000): 2,
    (128, 116_700): 1,
    (384, 232_448): 1,
}


@pytest.mark.parametrize("threads, shared", list(OCCUPANCY))
def test_the_resident_set_follows_threads_and_shared_memory(threads, shared):
    """2048 threads, 32 CTAs and 228 KiB an SM, of which each CTA takes 1 KiB for the system."""
    assert occupancy(threads, shared) == OCCUPANCY[threads, shared]


FULL = """
 mov.u32 %r0, %ctaid.x; ld.param.u64 %rd0, [p0]; mov.u32 %r1, %nctaid.x; sub.u32 %r2, %r1, 1; setp.eq.u32 %p0, %r0, %r2;
 @%p0 bra LAST;
WAIT:
 ld.acquire.gpu.global.u32 %r3, [%rd0]; setp.eq.u32 %p1, %r3, 0; @%p1 bra WAIT; bra.uni DONE;
LAST:
 st.release.gpu.global.u32 [%rd0], 1;
DONE:
"""


def test_ctas_wait_for_the_last_that_fits_beside_them():
    """264 CTAs of 1024 threads are resident together on 132 SMs; a 265th never starts."""
    flag = aligned(1, np.uint32)
    run(FULL, [flag], grid=(264, 1, 1), threads=1024)
    assert flag[0] == 1
    with pytest.raises(EmulatorError, match="1 of 265 clusters have not started: 264 CTAs fit"):
        run(FULL, [aligned(1, np.uint32)], grid=(265, 1, 1), threads=1024)
