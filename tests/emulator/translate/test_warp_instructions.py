# SPDX-License-Identifier: Apache-2.0
"""Warp-wide instructions, atomics, fences and device functions against their definitions in the PTX ISA (9.0)."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from cutegemm.emulator import Buffer, Launch, Module, launch
from cutegemm.emulator.translate.emitter import EMITTERS
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import HEADER, aligned, kernel_text, run
from tests.support.emulator_launch import unary_on_lanes as on_lanes
from tests.support.emulator_pipeline import compile_cuda


@pytest.mark.parametrize("bits", [32, 64])
def test_match_finds_lanes_with_the_same_value(bits):
    """match.any and match.all over a member mask (9.7.13.10 match.sync)."""
    x = np.array([1, 2, 1, 1, 3, 2, 0, 1] * 4, f"uint{bits}")
    got = on_lanes(f"match.any.sync.b{bits} {{d}}, {{a}}, -1;", x)
    assert got.tolist() == [sum(1 << j for j in range(32) if x[j] == v) for v in x]
    text = f"match.all.sync.b{bits} {{d}}|%p1, {{a}}, -1; @!%p1 mov.b32 {{d}}, 77;"
    assert set(on_lanes(text, x).tolist()) == {77}
    assert set(on_lanes(text, np.full(32, 9, f"uint{bits}")).tolist()) == {0xFFFFFFFF}


def test_lanes_with_different_member_masks_are_apart():
    """Lanes that execute one match.sync or shfl.sync with different masks form groups of their own (9.7.13.10)."""
    x = np.array([1, 2, 1, 1, 3, 2, 0, 1] * 4, np.uint32)
    mask = " mov.u32 %r51, %tid.x; and.b32 %r51, %r51, 24; mov.b32 %r52, 255; shl.b32 %r52, %r52, %r51;"
    got = on_lanes(mask + "match.any.sync.b32 {d}, {a}, %r52;", x)
    assert got.tolist() == [
        sum(1 << j for j in range(i & 24, (i & 24) + 8) if x[j] == x[i]) for i in range(32)
    ]
    got = on_lanes(mask + "match.all.sync.b32 {d}|%p1, %r51, %r52;", x)
    assert got.tolist() == [0xFF << (i & 24) for i in range(32)]


def test_a_shuffle_of_one_value_knows_its_segment():
    """shfl.sync.idx beyond the clamp is out of range, although all lanes hold the same value (9.7.9.6 shfl.sync)."""
    text = "shfl.sync.idx.b32 {d}|%p1, 5, 10, {}, -1; @!%p1 add.u32 {d}, {d}, 100;"
    assert set(on_lanes(text.replace("{}", "7"), np.zeros(32, np.uint32)).tolist()) == {105}
    assert set(on_lanes(text.replace("{}", "31"), np.zeros(32, np.uint32)).tolist()) == {5}


def test_movmatrix_transposes():
    """movmatrix.trans: lane t holds two elements of row t / 4, and gets those of a column (9.7.15.5.17 movmatrix)."""
    x = np.random.default_rng(4).integers(0, 2**32, 32, dtype=np.uint32)
    got = on_lanes("movmatrix.sync.aligned.m8n8.trans.b16 {d}, {a};", x)
    assert (got.view(np.uint16).reshape(8, 8) == x.view(np.uint16).reshape(8, 8).T).all()


VOTES = {"all": all, "any": any, "uni": lambda p: len(set(p)) == 1}


@pytest.mark.parametrize("mode", list(VOTES))
@pytest.mark.parametrize("values", [[1] * 32, [0] * 32, [0] * 31 + [1], [1] + [0] * 31])
def test_votes(mode, values):
    """vote.sync.all, .any and .uni (9.7.13.9 vote.sync)."""
    text = f"setp.ne.u32 %p1, {{a}}, 0; vote.sync.{mode}.pred %p2, %p1, -1; selp.b32 {{d}}, 1, 0, %p2;"
    got = on_lanes(text, np.array(values, np.uint32))
    assert set(got.tolist()) == {int(VOTES[mode]([bool(v) for v in values]))}


REDUX = {
    "add.u32": sum,
    "min.s32": lambda x: min(v - 2**32 if v >> 31 else v for v in x),
    "max.u32": max,
    "and.b32": lambda x: functools.reduce(int.__and__, x),
    "or.b32": lambda x: functools.reduce(int.__or__, x),
    "xor.b32": lambda x: functools.reduce(int.__xor__, x),
}


@pytest.mark.parametrize("what", list(REDUX))
def test_redux(what):
    """redux.sync of 32 values, in two warps (9.7.13.12 redux.sync)."""
    x = np.random.default_rng(1).integers(0, 2**32, 64, dtype=np.uint32)
    got = on_lanes(f"redux.sync.{what} {{d}}, {{a}}, -1;", x)
    for warp in range(2):
        part = x[32 * warp : 32 * warp + 32].tolist()
        assert set(got[32 * warp : 32 * warp + 32].tolist()) == {REDUX[what](part) % 2**32}


def test_active_lanes_under_divergence():
    """activemask and vote.ballot within a branch name the lanes that took it (9.7.13.11 activemask)."""
    text = "mov.b32 {d}, 0; setp.lt.u32 %p1, {a}, 5; @!%p1 bra END; activemask.b32 {d};\nEND:"
    got = on_lanes(text, np.arange(32, dtype=np.uint32))
    assert got.tolist() == [31] * 5 + [0] * 27


def test_segmented_shuffles_report_who_is_in_range():
    """shfl.sync.down in segments of 8 lanes: past the end a lane keeps its value, p is false (9.7.9.6 shfl.sync)."""
    text = "shfl.sync.down.b32 {d}|%p1, {a}, 3, 0x181f, -1; @!%p1 add.u32 {d}, {d}, 100;"
    got = on_lanes(text, np.arange(32, dtype=np.uint32))
    assert got.tolist() == [i + 3 if i % 8 < 5 else i + 100 for i in range(32)]
    text = "shfl.sync.bfly.b32 {d}|%p1, {a}, 4, 31, -1;"
    assert on_lanes(text, np.arange(32, dtype=np.uint32)).tolist() == [i ^ 4 for i in range(32)]


ATOMICS = {  # instruction -> (type of the cell, its start, value per lane, final value)
    "red.global.add.f32": ("f32", 1.5, lambda i: i / 4, 1.5 + sum(i / 4 for i in range(32))),
    "red.global.add.f64": ("f64", 0.5, lambda i: i, 496.5),
    "red.global.add.u64": ("u64", 3, lambda i: i, 499),
    "red.global.min.s32": ("s32", 5, lambda i: i - 40, -40),
    "red.global.max.u32": ("u32", 5, lambda i: i, 31),
    "red.global.min.u32": ("u32", 5, lambda i: i + 2, 2),
    "red.global.max.s32": ("s32", -5, lambda i: i - 40, -5),
    "red.global.and.b32": ("u32", 0xFF, lambda i: 0xF0 | i, 0xFF & functools.reduce(
        int.__and__, [0xF0 | i for i in range(32)])),
    "red.global.xor.b32": ("u32", 1, lambda i: i, 1 ^ functools.reduce(int.__xor__, range(32))),
    "red.global.dec.u32": ("u32", 40, lambda i: 100, 8),
    "red.relaxed.gpu.global.add.u32": ("u32", 0, lambda i: 2, 64),
    "atom.add.release.gpu.global.u32 %r40,": ("u32", 0, lambda i: 2, 64),
    "atom.global.exch.b32 %r40,": ("u32", 0, lambda i: i, 31),
}  # fmt: skip
_NUMPY = {"f32": np.float32, "f64": np.float64, "u64": np.uint64, "s32": np.int32, "u32": np.uint32}


@pytest.mark.parametrize("text", list(ATOMICS))
def test_atomics_and_reductions(text):
    """red and atom on global memory (9.7.13.5 atom, 9.7.13.6 red)."""
    kind, start, value, want = ATOMICS[text]
    cell, values = aligned(2, _NUMPY[kind], 0), aligned(32, _NUMPY[kind])
    cell[0], values[:] = start, [value(i) for i in range(32)]
    wide = values.itemsize == 8
    register = "%rd9" if wide else "%r9"
    run(
        f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mad.wide.u32 %rd2, %r0, {values.itemsize}, %rd1;
 ld.global.b{64 if wide else 32} {register}, [%rd2]; {text} [%rd0], {register};
""",
        [cell, values],
    )
    assert cell[0] == want


def test_a_vector_atomic_returns_each_element():
    """atom.add of two fp32 numbers, which atomicAdd(float2*) is; lanes in turn (9.7.13.5 atom, vectors)."""
    cells, out = aligned(2, np.float32), aligned(64, np.float32)
    run(
        """ ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x;
 mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000;
 atom.global.add.v2.f32 {%f2, %f3}, [%rd0], {%f0, %f1}; mad.wide.u32 %rd2, %r0, 8, %rd1;
 st.global.v2.f32 [%rd2], {%f2, %f3};""",
        [cells, out],
    )
    assert cells.tolist() == [32, 64] and sorted(out[::2]) == list(range(32)) == sorted(out[1::2] / 2)


def test_a_vector_of_reductions_adds_each_element():
    """red of four fp32 numbers in a row (9.7.13.6 red, vectors on global memory from sm_90 on)."""
    cells = aligned(4, np.float32, 1)
    run(
        """
 ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; cvt.rn.f32.u32 %f0, %r0; mov.f32 %f1, 0f3F800000;
 mov.f32 %f2, 0fC0000000; mov.f32 %f3, 0f00000000; red.relaxed.gpu.global.add.v4.f32 [%rd0], {%f0, %f1, %f2, %f3};
""",
        [cells],
    )
    assert cells.tolist() == [1 + 496, 1 + 32, 1 - 64, 1]


@pytest.mark.parametrize("place, kept", [("global", False), ("shared", True)])
def test_float_atomics_flush_subnormals_in_global_memory_only(place, kept):
    """atom.add.f32 flushes on global memory and keeps subnormals in shared memory (9.7.13.5 atom)."""
    cell = aligned(2, np.float32)
    cell[:] = 2.0**-130
    address = "%rd0" if place == "global" else "%rd1"
    run(
        f"""
 ld.param.u64 %rd0, [p0]; mov.u64 %rd1, buf; mov.b32 %r1, 0x00100000; ld.global.b32 %r2, [%rd0]; mov.u32 %r0, %tid.x;
 setp.ne.u32 %p0, %r0, 0; @%p0 ret; st.shared.b32 [%rd1], %r2;
 red.{place}.add.f32 [{address}], %r1; ld.shared.b32 %r3, [%rd1]; st.global.b32 [%rd0+4], %r3;
""",
        [cell],
        before=".shared .align 4 .b8 buf[4];",
    )
    assert cell[0 if place == "global" else 1] == (2.0**-130 + 2.0**-129 if kept else 0.0)


def test_compare_and_swap_takes_turns():
    """atom.cas as a lock: every lane of four CTAs adds once (9.7.13.5 atom, 9.7.13.4 fence)."""
    lock, cell = aligned(1, np.uint32), aligned(1, np.uint32)
    run(
        """
 ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
TAKE:
 atom.acquire.gpu.global.cas.b32 %r1, [%rd0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TAKE;
 ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 1; st.global.u32 [%rd1], %r2;
 fence.acq_rel.gpu; st.relaxed.gpu.global.u32 [%rd0], 0;
END:
""",
        [lock, cell],
        grid=(4, 1, 1),
        policy="random",
        seed=3,
    )
    assert cell[0] == 4 and lock[0] == 0


def test_addresses_know_their_space():
    """isspacep, cvta and getctarank of shared, local and global addresses (9.7.9.19, 9.7.9.20, 9.7.9.24)."""
    out = aligned(4, np.uint32)
    run(
        """
 .local .align 4 .b8 depot[4];
 ld.param.u64 %rd0, [p0]; mov.u64 %rd1, buf; cvta.shared.u64 %rd2, %rd1; mov.u64 %rd3, depot; cvta.local.u64 %rd4, %rd3;
 isspacep.shared %p1, %rd2; isspacep.shared %p2, %rd0; isspacep.global %p3, %rd0; isspacep.local %p4, %rd4;
 selp.b32 %r1, 1, 0, %p1; selp.b32 %r2, 2, 0, %p2; selp.b32 %r3, 4, 0, %p3; selp.b32 %r4, 8, 0, %p4;
 or.b32 %r1, %r1, %r2; or.b32 %r1, %r1, %r3; or.b32 %r1, %r1, %r4; st.global.u32 [%rd0], %r1;
 mov.u32 %r5, buf; mapa.shared::cluster.u32 %r6, %r5, 1; getctarank.shared::cluster.u32 %r7, %r6;
 st.global.u32 [%rd0+4], %r7;
""",
        [out],
        grid=(2, 1, 1),
        cluster=(2, 1, 1),
        before=".shared .align 4 .b8 buf[4];",
    )
    assert out[:2].tolist() == [1 + 4 + 8, 1]


def test_hints_to_the_hardware_change_nothing():
    """setmaxnreg, griddepcontrol, nanosleep, pmevent, discard, applypriority, membar: no result depends on them."""
    cell = aligned(32, np.uint32, 5)
    report = run(
        """
 ld.param.u64 %rd0, [p0]; setmaxnreg.inc.sync.aligned.u32 232; griddepcontrol.wait; griddepcontrol.launch_dependents;
 nanosleep.u32 20; pmevent.mask 3; prefetchu.L1 [%rd0]; applypriority.global.L2::evict_normal [%rd0], 128;
 membar.gl; fence.sc.sys; bar.warp.sync -1; barrier.sync 0; ldu.global.u32 %r1, [%rd0];
 add.u32 %r1, %r1, 1; discard.global.L2 [%rd0], 128; st.global.u32 [%rd0], %r1;
""",
        [cell],
        races=True,
    )
    assert cell[:2].tolist() == [6, 5] and not report.findings


def test_special_registers_tell_where_a_thread_is():
    """tid, ntid, ctaid, nctaid, laneid, warpid, lane masks; clocks never run backwards (10, special registers)."""
    names = [
        "tid.x",
        "tid.y",
        "ntid.x",
        "ntid.y",
        "ctaid.x",
        "nctaid.x",
        "laneid",
        "warpid",
        "lanemask_lt",
        "lanemask_ge",
    ]
    out = aligned(2 * 64 * 12, np.uint32).reshape(2, 64, 12)
    reads = " ".join(
        f"mov.u32 %r{20 + i}, %{name}; st.global.u32 [%rd1+{4 * i}], %r{20 + i};"
        for i, name in enumerate(names)
    )
    text = kernel_text(f"""
 ld.param.u64 %rd0, [p0]; mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r1, 16, %r0;
 mad.lo.u32 %r4, %r2, 64, %r3; mad.wide.u32 %rd1, %r4, 48, %rd0; {reads}
 mov.u64 %rd2, %clock64; mov.u32 %r5, %clock; mov.u64 %rd3, %globaltimer; bra.uni NEXT;
NEXT:
 mov.u64 %rd4, %clock64; mov.u64 %rd5, %globaltimer; setp.ge.u64 %p0, %rd4, %rd2; setp.ge.and.u64 %p1, %rd5, %rd3, %p0;
 selp.b32 %r6, 1, 0, %p1; st.global.u32 [%rd1+40], %r6;
""")
    what = Launch(
        grid=(2, 1, 1),
        block=(16, 4, 1),
        params=[out.ctypes.data.to_bytes(8, "little")],
        buffers=[Buffer(out.ctypes.data, out.nbytes)],
    )
    launch(text, what)
    for cta in range(2):
        for i in range(64):
            lane = i % 32
            want = [i % 16, i // 16, 16, 4, cta, 2, lane, i // 32, (1 << lane) - 1, 2**32 - (1 << lane), 1]
            assert out[cta, i, :11].tolist() == want


CUDA = r"""
struct Pair { float a; int b; };
__device__ __noinline__ Pair twice(Pair p, int n) { if (n > 2) return Pair{p.a * 2, p.b + n}; return Pair{p.a, -p.b}; }
extern "C" __global__ void k(float* x, int* y) {
    int i = threadIdx.x;
    Pair p = twice(twice(Pair{x[i], y[i]}, i), i - 1);
    x[i] = p.a; y[i] = p.b;
}
"""


def test_a_function_that_nvrtc_does_not_inline():
    """A structure by value, divergent returns, two calls of one function, as NVRTC compiles them."""
    text = compile_cuda(CUDA)
    assert ".func" in text and "call" in text
    x, y = aligned(32, np.float32), aligned(32, np.int32)
    x[:], y[:] = np.arange(32) / 4, np.arange(32)
    run("", [x, y], text=text)
    for i in range(32):
        a, b = i / 4, i
        for n in (i, i - 1):
            a, b = (a * 2, b + n) if n > 2 else (a, -b)
        assert (x[i], y[i]) == (a, b)


FUNCTIONS = """
.extern .func (.param .b32 result) nowhere(.param .b32 x);
.func (.param .b32 result) triple(.param .b32 x)
{
 .reg .b32 %r<9>; .reg .pred %p<3>;
 ld.param.b32 %r1, [x]; { .reg .pred q; setp.gt.u32 q, %r1, 100; @!q bra SMALL; bra BIG; SMALL: }
 mul.lo.u32 %r2, %r1, 3; st.param.b32 [result], %r2; ret;
BIG:
 mov.b32 %r2, 7; st.param.b32 [result+0], %r2; ret;
}
.func (.param .align 8 .b8 result[8]) swap(.param .align 8 .b8 pair[8])
{
 .reg .b32 %r<9>;
 ld.param.v2.b32 {%r1, %r2}, [pair]; st.param.v2.b32 [result], {%r2, %r1}; ret;
}
.func (.reg .u32 %out) sum(.reg .u32 %x, .reg .u32 %y)
{
 .reg .b32 %t;
 { .param .b32 p; .param .b32 q; st.param.b32 [p], %x; call (q), triple, (p); ld.param.b32 %t, [q]; }
 add.u32 %out, %t, %y; ret.uni;
}
.func forever() { call forever; ret; }
"""


def test_device_functions_return_through_parameters_and_registers():
    """Arguments in .param and .reg, structures, nested and guarded calls, labels of a scope (9.7.12.5, 9.7.12.6)."""
    text = """
 {{ .param .b32 a; .param .b32 r; st.param.b32 [a], {a}; call.uni (r), triple, (a); ld.param.b32 %r50, [r]; }}
 {{ .param .align 8 .b8 a[8]; .param .align 8 .b8 r[8]; st.param.v2.b32 [a], {{%r50, {a}}};
   call (r), swap, (a); ld.param.v2.b32 {{%r51, %r52}}, [r]; }}
 mov.b32 {d}, 0; setp.lt.u32 %p9, {a}, 104;
 @%p9 call ({d}), sum, (%r51, %r52);
"""
    x = np.arange(80, 112, dtype=np.uint32)
    triple = lambda v: 7 if v > 100 else 3 * v
    got = on_lanes(text, x, before=FUNCTIONS)
    assert got.tolist() == [triple(v) + triple(v) if v < 104 else 0 for v in x.tolist()]


@pytest.mark.parametrize("call", ["call (%r1), nowhere, (%r2);", "call forever;", "call %rd1, proto;"])
def test_calls_that_cannot_be_followed_are_refused(call):
    """A function without a body, a recursion, a call through a register: with text and line."""
    text = (
        HEADER
        + FUNCTIONS
        + ".visible .entry k()\n{\n .reg .b32 %r<9>; .reg .b64 %rd<9>;\n "
        + call
        + "\n ret;\n}\n"
    )
    line = text[: text.rindex(call)].count("\n") + 1
    with pytest.raises(EmulatorError, match=r"does not know this instruction") as e:
        run("", [], text=text)
    assert call.split()[1].split(",")[0].rstrip(";") in str(e.value)
    assert f"ptx: line {line}:" in str(e.value) or "forever" in call
    assert "k" in Module.parse(text).kernels


REFUSED = """
add.rz.f64 %fd1, %fd2, %fd3; add.sat.u32 %r1, %r2, %r3; add.sat.ftz.bf16 %rs1, %rs2, %rs3; max.f32 %f1, %f2, %f3, %f4;
fma.rn.relu.f32 %f1, %f2, %f3, %f4; rcp.rz.f64 %fd1, %fd2; sqrt.rm.f64 %fd1, %fd2; tanh.approx.ftz.f32 %f1, %f2;
mul24.hi.u32 %r1, %r2, %r3; abs.sat.s32 %r1, %r2; lop3.or.b32 %r1|%p1, %r2, %r3, %r4, 1, %p2; popc.sat.b32 %r1, %r2;
setp.lt.sat.f32 %p1, %f1, %f2; cvt.rm.f64.f32 %fd1, %f1; cvt.rn.e4m3x2.f32 %rs1, %f1, %f2; cvt.s32.f32 %r1, %f1;
cvt.pack.sat.u8.s32.b32 %r1, %r2, %r3, %r4; redux.sync.min.f32 %f1, %f2, -1; fns.b32 %r1, %r2, %r3, %r4;
st.bulk.weak.shared::cta [%rd1], 64, 0; ld.global.b128 %rd1, [%rd2]; atom.global.exch.b128 %rd1, [%rd2], %rd3;
atom.global.nand.b32 %r1, [%rd2], %r3; call.uni (%r1), recursive, (%r2);
brx.idx %r1, table; tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 2;
cp.async.bulk.tensor.3d.shared::cta.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3, %r4}], [%r5];
wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8.satfinite {%r1, %r2, %r3, %r4}, %rd1, %rd2, 1;
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1, %f2, %f3, %f4}, %rd1, %rd2, %r1, 0, 1, 1, 1, 0, 0;
ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];
mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, {%r9, %r10}, {%r1, %r2};
"""


@pytest.mark.parametrize("text", [f"{x.strip()};" for x in REFUSED.split(";") if x.strip()])
def test_forms_that_are_not_emulated_are_refused(text):
    """A modifier or form the emulator does not carry out is an error with text and line, never a near miss."""
    with pytest.raises(EmulatorError, match=r"^ptx: line 9: .* does not know this instruction") as e:
        run(f" {text}", [aligned(1, np.uint32)])
    assert text.split()[0] in str(e.value)


def test_every_instruction_is_tested():
    """Every opcode the emulator executes occurs in a test of this folder."""
    from pathlib import Path

    run(" mov.u32 %r0, 1;", [aligned(1, np.uint32)])  # fills EMITTERS
    tests = Path(__file__).parents[2]
    files = [*(tests / "emulator").rglob("test_*.py"), *(tests / "support").glob("emulator_*.*")]
    sources = "".join(p.read_text() for p in files)
    assert [head for head in EMITTERS if f"{head}." not in sources] == []
