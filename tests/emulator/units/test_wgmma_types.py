# SPDX-License-Identifier: Apache-2.0
"""wgmma of every operand and accumulator type, and with operand A in registers (PTX ISA 9.0, 9.7.16.5)."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.numbers import tensor_core
from cutegemm.emulator.units import wgmma_operands
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, exact_fp8, run
from tests.support.emulator_units import DYNAMIC, place_operand, run_wgmma

FP8 = {"e4m3": (3, 7), "e5m2": (2, 15)}


@pytest.mark.parametrize("kinds", ["e4m3.e4m3", "e5m2.e5m2", "e4m3.e5m2"])
@pytest.mark.parametrize("mode", [0, 1, 3])
def test_fp8_operands(kinds, mode):
    """m64n64k32 of fp8 into fp32: sums of few small numbers, which any accumulation order gives exactly."""
    rng = np.random.default_rng(mode)
    tables = [np.array([exact_fp8(p, *FP8[kind]) for p in range(256)]) for kind in kinds.split(".")]
    small = [np.flatnonzero((np.abs(t) <= 4) & (t * 4 == np.rint(t * 4))).astype(np.uint8) for t in tables]
    a, b = rng.choice(small[0], (64, 32)), rng.choice(small[1], (64, 32))
    got = run_wgmma(a, b, kinds, (False, False), (mode, mode), 64, policy="lazy")
    assert np.array_equal(got, (tables[0][a] @ tables[1][b].T).astype(np.float32))


@pytest.mark.parametrize("kinds", ["s8.s8", "u8.u8", "s8.u8", "u8.s8"])
def test_integer_operands(kinds):
    """m64n32k32 of bytes into s32, extremes included."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (64, 32), dtype=np.uint8), rng.integers(0, 256, (32, 32), dtype=np.uint8)
    a[0], b[0] = 128, 128
    got = run_wgmma(a, b, kinds, (False, False), (1, 1), 32).view(np.int32)
    read = [
        x.view(np.int8 if kind == "s8" else np.uint8).astype(int) for x, kind in zip((a, b), kinds.split("."))
    ]
    assert np.array_equal(got, read[0] @ read[1].T)


@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("start", [0x7FFFFFF0, 0x80000010, 5])
def test_integer_sums_wrap_or_saturate(start, saturates):
    """Without .satfinite a sum beyond s32 wraps, with it the nearest s32 is kept, as the DSL asks for."""
    a, b = np.full((64, 32), 3, np.int8), np.full((32, 32), 1, np.int8)
    b[::2] = -1
    shape = "m64n32k32.satfinite" if saturates else ""
    got = run_wgmma(a, b, "s8.s8", (False, False), (1, 1), 32, start, shape).view(np.int32)
    exact = np.uint32(start).view(np.int32).astype(np.int64) + 3 * b.astype(np.int64).sum(1)
    want = np.clip(exact, -(1 << 31), (1 << 31) - 1) if saturates else exact
    assert np.array_equal(got, np.tile(want.astype(np.int32), (64, 1)))


def test_each_of_several_integer_steps_saturates():
    """Products joined along K saturate after each instruction's 32 of them, not once at the end."""
    a, b = np.ones((1, 64), np.float32), np.ones((1, 64), np.float32)
    b[:, 32:] = -1
    top = np.full((1, 1), (1 << 31) - 1, np.int32)
    assert tensor_core.accumulate_integers(a, b, top, 32, True)[0, 0] == (1 << 31) - 1 - 32
    assert tensor_core.accumulate_integers(a, b, top, 32, False)[0, 0] == (1 << 31) - 1


@pytest.mark.parametrize(
    "shape, kinds",
    [
        ("m64n64k16", "e4m3.e4m3"),
        ("m64n64k32", "e4m3.s8"),
        ("m64n40k32", "s8.s8"),
        ("m64n264k8", "tf32.tf32"),
    ],
)
def test_shapes_that_no_wgmma_has_are_refused(shape, kinds):
    """K and N follow from the operand types, and types mix only among fp8 and among bytes (9.7.16.2)."""
    a, b = np.zeros((64, 32), np.uint8), np.zeros((64, 32), np.uint8)
    with pytest.raises(EmulatorError, match="no wgmma of this shape and these types"):
        run_wgmma(a, b, kinds, (False, False), (1, 1), 64, 0, shape)


@pytest.mark.parametrize("kind, item", [("e4m3", 1), ("s8", 1), ("bf16", 2), ("tf32", 4)])
def test_the_fragment_of_operand_a(kind, item):
    """Register i of lane t holds row t / 4 + 8 (i % 2), and the 4 bytes from 4 (t % 4) + 16 (i / 2) on (9.7.16.5.1)."""
    rng = np.random.default_rng(item)
    matrix = rng.integers(0, 100, (64, 32), dtype=np.uint8)
    registers = [np.zeros(128, np.uint32) for _ in range(4)]
    for t in range(128):
        for i in range(4):
            row, byte = t // 32 * 16 + t % 32 // 4 + 8 * (i % 2), 4 * (t % 4) + 16 * (i // 2)
            registers[i][t] = matrix[row, byte : byte + 4].view(np.uint32)[0]
    read = wgmma_operands.fragment(registers, 4, kind)
    assert read.shape == (64, 32 // item) and np.array_equal(
        read, wgmma_operands.decode_elements(matrix, kind)
    )


BEGIN = """
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; mov.u32 %r1, dyn;
 ld.global.b64 %rd4, [%rd2];
 shl.b32 %r2, %r0, 2;
COPY:
 setp.ge.u32 %p2, %r2, 8192; @%p2 bra DONE;
 add.u32 %r3, %r1, %r2; cvt.u64.u32 %rd5, %r2; add.s64 %rd6, %rd0, %rd5; ld.global.u32 %r4, [%rd6];
 st.shared.u32 [%r3], %r4; add.u32 %r2, %r2, 512; bra.uni COPY;
DONE:
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 %r5, %r1, 4; cvt.u64.u32 %rd7, %r5; add.s64 %rd4, %rd4, %rd7; ld.param.u64 %rd3, [p3];
 mad.wide.u32 %rd8, %r0, 16, %rd3; ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd8];
 mov.b32 %r14, %r10; mov.b32 %r15, %r11; mov.b32 %r16, %r12; mov.b32 %r17, %r13;
"""
MULTIPLY = """
 wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, {%r14, %r15, %r16, %r17}, %rd4, 0, 1, 1, 0;
"""
COMMIT, WAIT = " wgmma.commit_group.sync.aligned;", " wgmma.wait_group.sync.aligned 0;"
FENCE = " wgmma.fence.sync.aligned;"
STORE = " mad.wide.u32 %rd9, %r0, 16, %rd1; st.global.v4.f32 [%rd9], {%f0, %f1, %f2, %f3};"


def run_with_registers(body: str, **options):
    """D (64 x 8) of a body that multiplies A from registers with B in shared memory, what it should be, findings."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(-8, 9, (64, 16)).astype(np.float16), rng.integers(-8, 9, (8, 16)).astype(np.float16)
    smem, descriptors = aligned(8192, np.uint8), aligned(1, np.uint64)
    descriptors[0] = place_operand(smem, 0, b, False, 0)
    fragments, out = aligned(512, np.uint32), aligned(512, np.float32)
    for t in range(128):
        row, column = t // 32 * 16 + t % 32 // 4, 2 * (t % 4)
        for i in range(4):
            r, c = row + 8 * (i % 2), column + 8 * (i // 2)
            fragments[4 * t + i] = a[r, c : c + 2].view(np.uint32)[0]
    report = run(
        BEGIN + body, [smem, out, descriptors, fragments], threads=128, smem=8192, before=DYNAMIC, **options
    )
    d = np.zeros((64, 8), np.float32)
    for t in range(128):
        for i in range(4):
            d[t // 32 * 16 + t % 32 // 4 + i // 2 * 8, t % 4 * 2 + i % 2] = out[4 * t + i]
    return d, a.astype(np.float32) @ b.astype(np.float32).T, [f.kind for f in report.findings]


CORRECT = FENCE + MULTIPLY + COMMIT + WAIT + " mov.b32 %r14, 0;" + STORE


@pytest.mark.parametrize("options", [{}, {"policy": "lazy"}, {"policy": "lazy", "races": True}])
def test_operand_a_in_registers(options):
    """The A fragment of 16-bit types, and its registers free again after the wait (9.7.16.5.1.1)."""
    got, want, findings = run_with_registers(CORRECT, **options)
    assert np.array_equal(got, want)
    assert not findings


DEFECTS = {  # body -> what must be found
    FENCE + MULTIPLY + COMMIT + " mov.b32 %r14, 0;" + WAIT + STORE: "wgmma register used before its wait",
    FENCE + " mov.b32 %r15, %r11;" + MULTIPLY + COMMIT + WAIT + STORE: "missing wgmma.fence",
    FENCE + MULTIPLY + COMMIT + STORE + WAIT: "wgmma register used before its wait",
}


@pytest.mark.parametrize("body", list(DEFECTS), ids=["overwritten", "unfenced", "read early"])
def test_misused_registers_are_found(body):
    """A fragment overwritten before the wait, or written after the fence; accumulators read early (9.7.16.7)."""
    assert DEFECTS[body] in run_with_registers(body, races=True)[2]


def test_an_overwritten_fragment_changes_a_late_result():
    """Under late completion the product reads what the registers hold at its wait."""
    body = FENCE + MULTIPLY + COMMIT + " mov.b32 %r14, 0;" + WAIT + STORE
    got, want, _ = run_with_registers(body, policy="lazy")
    assert not np.array_equal(got, want)


@pytest.mark.parametrize("policy", ["eager", "lazy"])
def test_accumulators_of_fp16(policy):
    """m64n8k16 into fp16: two columns in one register, sums rounded to fp16 (9.7.16.5.1.1.2)."""
    body = """
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r20, %r21}, {%r14, %r15, %r16, %r17}, %rd4, 0, 1, 1, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r20, %r21}, {%r14, %r15, %r16, %r17}, %rd4, 1, 1, 1, 0;
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
 mov.b32 {%rs1, %rs2}, %r20; mov.b32 {%rs3, %rs4}, %r21;
 cvt.f32.f16 %f0, %rs1; cvt.f32.f16 %f1, %rs2; cvt.f32.f16 %f2, %rs3; cvt.f32.f16 %f3, %rs4;
"""
    got, want, _ = run_with_registers(body + STORE, policy=policy)
    assert np.array_equal(got, (2 * want).astype(np.float16).astype(np.float32))
