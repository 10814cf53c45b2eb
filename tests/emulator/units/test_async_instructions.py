# SPDX-License-Identifier: Apache-2.0
"""Asynchronous stores and plain bulk copies, in every direction, against their definitions in the PTX ISA (9.0)."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, run

POLICIES = [{}, {"policy": "lazy"}, {"policy": "random", "seed": 3}, {"policy": "lazy", "races": True}]
SHARED = ".shared .align 128 .b8 buf[4096];"
BEGIN = """
 mov.u32 %r0, %tid.x; mov.u32 %r1, buf; mov.u32 %r2, %cluster_ctarank; xor.b32 %r3, %r2, 1;
 ld.param.u64 %rd0, [p0]; setp.ne.u32 %p0, %r0, 0;
 @!%p0 mbarrier.init.shared.b64 [%r1], 1; @!%p0 fence.mbarrier_init.release.cluster;
 @!%p0 fence.proxy.async.shared::cta;
 @!%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], {bytes};
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 mapa.shared::cluster.u32 %r4, %r1, %r3;
"""
WAIT = """
WAIT:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra WAIT;
"""
END = " barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


@pytest.mark.parametrize("options", POLICIES)
def test_st_async_writes_a_neighbour_and_completes_its_barrier(options):
    """st.async.v2: each lane's 8 bytes are in the other CTA once its mbarrier completes (9.7.9.12 st.async)."""
    out = aligned(128, np.uint32)
    report = run(
        BEGIN.format(bytes=256)
        + """
 shl.b32 %r5, %r0, 3; add.u32 %r6, %r4, %r5; mad.lo.u32 %r7, %r2, 1000, %r0; add.u32 %r8, %r7, 500;
 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r6+128], {%r7, %r8}, [%r4];
"""
        + WAIT
        + """
 add.u32 %r9, %r1, %r5; ld.shared.v2.u32 {%r10, %r11}, [%r9+128];
 mad.lo.u32 %r12, %r2, 256, %r5; cvt.u64.u32 %rd1, %r12; add.s64 %rd2, %rd0, %rd1;
 st.global.v2.u32 [%rd2], {%r10, %r11};
"""
        + END,
        [out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        before=SHARED,
        **options,
    )
    got = out.reshape(2, 32, 2)
    for rank in range(2):
        assert got[rank, :, 0].tolist() == [1000 * (1 - rank) + i for i in range(32)]
        assert got[rank, :, 1].tolist() == [1000 * (1 - rank) + i + 500 for i in range(32)]
    assert not report.findings


def test_an_async_store_read_before_its_barrier_is_a_race():
    """Without the wait the detector tells of the read (9.7.9.12 st.async: weak, ordered by the mbarrier alone)."""
    body = (
        BEGIN.format(bytes=128)
        + """
 shl.b32 %r5, %r0, 2; add.u32 %r6, %r4, %r5;
 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6+128], %r0, [%r4];
 add.u32 %r9, %r1, %r5; ld.shared.u32 %r10, [%r9+128];
"""
        + WAIT
        + END
    )
    report = run(body, [aligned(1, np.uint32)], grid=(2, 1, 1), cluster=(2, 1, 1), before=SHARED, races=True)
    assert "race" in " ".join(f.kind for f in report.findings)


REDUCTIONS = {"add": sum, "max": max, "or": lambda x: x[0] | x[1], "inc": None}


@pytest.mark.parametrize("operation", list(REDUCTIONS))
def test_red_async_reduces_into_a_neighbour(operation):
    """red.async acts on the other CTA's shared memory before its mbarrier completes (9.7.13.7 red.async)."""
    out = aligned(64, np.uint32)
    kind = "b32" if operation == "or" else "u32"
    run(
        BEGIN.format(bytes=128)
        + f"""
 shl.b32 %r5, %r0, 2; add.u32 %r9, %r1, %r5; add.u32 %r6, %r4, %r5; add.u32 %r13, %r0, 40;
 st.shared.u32 [%r9+128], %r13;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{operation}.{kind} [%r6+128], 50, [%r4];
"""
        + WAIT
        + """
 ld.shared.u32 %r10, [%r9+128]; mad.lo.u32 %r12, %r2, 128, %r5; cvt.u64.u32 %rd1, %r12; add.s64 %rd2, %rd0, %rd1;
 st.global.u32 [%rd2], %r10;
"""
        + END,
        [out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        before=SHARED,
    )
    act = REDUCTIONS[operation] or (lambda x: 0 if x[0] >= x[1] else x[0] + 1)
    assert out.tolist() == [act((i + 40, 50)) for i in range(32)] * 2


@pytest.mark.parametrize("options", POLICIES)
def test_bulk_load_with_multicast(options):
    """cp.async.bulk from global memory into both CTAs of a cluster (9.7.9.25.4.1 cp.async.bulk)."""
    data, out = aligned(64, np.uint32), aligned(128, np.uint32)
    data[:] = np.arange(64) + 7
    report = run(
        BEGIN.format(bytes=256)
        + """
 ld.param.u64 %rd5, [p1]; setp.eq.u32 %p2, %r2, 0; @%p0 bra SKIP; @!%p2 bra SKIP; mov.b16 %rs1, 3;
 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
  [%r1+128], [%rd5], 256, [%r1], %rs1;
SKIP:
"""
        + WAIT
        + """
 shl.b32 %r5, %r0, 3; add.u32 %r9, %r1, %r5; ld.shared.v2.u32 {%r10, %r11}, [%r9+128];
 mad.lo.u32 %r12, %r2, 256, %r5; cvt.u64.u32 %rd1, %r12; add.s64 %rd2, %rd0, %rd1;
 st.global.v2.u32 [%rd2], {%r10, %r11};
"""
        + END,
        [out, data],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        before=SHARED,
        meter=True,
        **options,
    )
    assert out.tolist() == data.tolist() * 2
    assert not report.findings
    assert report.counters["bulk_load_bytes"] == 256


@pytest.mark.parametrize("options", POLICIES)
@pytest.mark.parametrize("reduce", [False, True])
def test_bulk_copy_between_ctas(reduce, options):
    """cp.async.bulk and cp.reduce.async.bulk from shared memory to a neighbour's (9.7.9.25.4.1, 9.7.9.25.4.2)."""
    out = aligned(64, np.uint32)
    op = "cp.reduce.async.bulk" if reduce else "cp.async.bulk"
    tail = ".add.u32" if reduce else ""
    report = run(
        BEGIN.format(bytes=128)
        + f"""
 shl.b32 %r5, %r0, 2; add.u32 %r9, %r1, %r5; mad.lo.u32 %r7, %r2, 1000, %r0; st.shared.u32 [%r9+128], %r7;
 st.shared.u32 [%r9+256], 7; fence.proxy.async;
 barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; @%p0 bra SKIP;
 add.u32 %r13, %r1, 128; add.u32 %r14, %r4, 256;
 {op}.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{tail} [%r14], [%r13], 128, [%r4];
SKIP:
"""
        + WAIT
        + """
 ld.shared.u32 %r10, [%r9+256]; mad.lo.u32 %r12, %r2, 128, %r5; cvt.u64.u32 %rd1, %r12; add.s64 %rd2, %rd0, %rd1;
 st.global.u32 [%rd2], %r10;
"""
        + END,
        [out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        before=SHARED,
        **options,
    )
    extra = 7 if reduce else 0
    assert out.tolist() == [1000 * (1 - rank) + i + extra for rank in range(2) for i in range(32)]
    assert not report.findings, [str(f) for f in report.findings]


def test_a_bulk_copy_read_before_its_barrier_is_a_race():
    """The neighbour's bytes may be read once its mbarrier has completed, not before."""
    body = (
        BEGIN.format(bytes=128)
        + """
 shl.b32 %r5, %r0, 2; add.u32 %r9, %r1, %r5; st.shared.u32 [%r9+128], %r0; st.shared.u32 [%r9+256], 7;
 fence.proxy.async; barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; add.u32 %r13, %r1, 128;
 add.u32 %r14, %r4, 256;
 @!%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r14], [%r13], 128, [%r4];
 ld.shared.u32 %r10, [%r9+256];
"""
        + WAIT
        + END
    )
    report = run(body, [aligned(1, np.uint32)], grid=(2, 1, 1), cluster=(2, 1, 1), before=SHARED, races=True)
    assert "race" in " ".join(f.kind for f in report.findings)


BULK_REDUCTIONS = {  # operation and type -> (numpy type, definition)
    "add.u32": (np.uint32, np.add), "max.s32": (np.int32, np.maximum), "and.b32": (np.uint32, np.bitwise_and),
    "add.f32": (np.float32, np.add), "add.f64": (np.float64, np.add), "add.noftz.f16": (np.float16, np.add),
    "min.f16": (np.float16, np.minimum), "add.u64": (np.uint64, np.add), "xor.b64": (np.uint64, np.bitwise_xor),
    "inc.u32": (np.uint32, lambda old, new: np.where(old >= new, 0, old + 1)),
    "dec.u32": (np.uint32, lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
}  # fmt: skip
STORE = """
 mov.u32 %r0, %tid.x; mov.u32 %r1, buf; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; shl.b32 %r2, %r0, 4;
 add.u32 %r3, %r1, %r2; mad.wide.u32 %rd2, %r0, 16, %rd1; ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd2];
 st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}}; fence.proxy.async.shared::cta; bar.sync 0;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
 {op} [%rd0], [%r1], 512; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
"""


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize("reduction", [None, *BULK_REDUCTIONS])
def test_bulk_store_and_reduction_to_global(reduction, policy):
    """cp.async.bulk and cp.reduce.async.bulk from shared to global memory (9.7.9.25.4.1, 9.7.9.25.4.2)."""
    kind, act = BULK_REDUCTIONS.get(reduction, (np.uint32, lambda old, new: new))
    count = 512 // np.dtype(kind).itemsize
    rng = np.random.default_rng(1)
    out, data = aligned(count, kind), aligned(count, kind)
    out[:], data[:] = rng.integers(1, 9, count), rng.integers(1, 9, count)
    want = act(out, data).astype(kind)
    op = "cp.async.bulk.global.shared::cta.bulk_group"
    op = op if reduction is None else f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{reduction}"
    report = run(STORE.format(op=op), [out, data], before=SHARED, policy=policy, races=True)
    assert out.tolist() == want.tolist()
    assert not report.findings, [str(f) for f in report.findings]


def test_bulk_copies_are_checked():
    """A size off 16 bytes, or past the end of its buffer, is a fault (9.7.9.25.4.1 cp.async.bulk)."""
    op = "cp.async.bulk.global.shared::cta.bulk_group"
    with pytest.raises(EmulatorError, match="size and addresses must be multiples of 16 bytes"):
        run(STORE.format(op=op).replace("512;", "500;"), [aligned(128, np.uint32)] * 2, before=SHARED)
    with pytest.raises(EmulatorError, match="bulk copy of 512 bytes .* into 'p0'"):
        run(STORE.format(op=op), [aligned(64, np.uint32), aligned(128, np.uint32)], before=SHARED)


def test_prefetches_change_nothing():
    """prefetch, cp.async.bulk.prefetch.L2 and createpolicy only hint (9.7.9.15 prefetch, 9.7.9.25.4.3)."""
    cell = aligned(8, np.uint32, 5)
    run(
        """
 ld.param.u64 %rd0, [p0]; prefetch.global.L2 [%rd0]; cp.async.bulk.prefetch.L2.global [%rd0], 32;
 createpolicy.fractional.L2::evict_last.b64 %rd1, 0f3F800000; ld.global.L2::cache_hint.u32 %r1, [%rd0], %rd1;
 add.u32 %r1, %r1, 1; st.global.L2::cache_hint.u32 [%rd0+4], %r1, %rd1;
""",
        [cell],
    )
    assert cell[:3].tolist() == [5, 6, 5]
