# SPDX-License-Identifier: Apache-2.0
"""Meters against counts worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.emulator_launch import aligned, run
from tests.support.emulator_pipeline import compiled, run_pipeline

LOAD = " mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; mad.wide.u32 %rd1, %r0, {stride}, %rd0;"
LOAD += " ld.global.{kind} {{{regs}}}, [%rd1];"


@pytest.mark.parametrize("stride, kind, regs, sectors", [
    (4, "b32", "%r1", 4), (8, "b32", "%r1", 8), (32, "b32", "%r1", 32), (0, "b32", "%r1", 1),
    (16, "v4.b32", "%r1, %r2, %r3, %r4", 16), (64, "b32", "%r1", 32),
])  # fmt: skip
def test_global_sectors(stride, kind, regs, sectors):
    """A warp's request costs its distinct 32-byte sectors: 4 for 128 bytes in a row, 32 when spread out."""
    body = LOAD.format(stride=stride, kind=kind, regs=regs)
    body = body if "," in regs else body.replace("{" + regs + "}", regs)
    report = run(body, [aligned(1024, np.uint32)], meter=True)
    assert report.counters["global_load_sectors"] == sectors
    assert report.counters["global_load_requests"] == 1


@pytest.mark.parametrize("stride, size, wavefronts", [
    (4, 4, 1), (8, 4, 2), (64, 4, 16), (128, 4, 32), (132, 4, 1), (0, 4, 1), (8, 8, 2),
    (16, 16, 4), (128, 16, 32), (144, 16, 4),
])  # fmt: skip
def test_shared_wavefronts(stride, size, wavefronts):
    """Stride over 4-byte words decides the conflicts: 32 words apart is 32 ways, 33 words is none."""
    registers = {4: "%r1", 8: "{%r1, %r2}", 16: "{%r1, %r2, %r3, %r4}"}[size]
    kind = {4: "b32", 8: "v2.b32", 16: "v4.b32"}[size]
    body = f" mov.u32 %r0, %tid.x; mov.u32 %r9, buf; mad.lo.u32 %r10, %r0, {stride}, %r9;"
    body += f" ld.shared.{kind} {registers}, [%r10];"
    report = run(body, [aligned(32, np.uint32)], before=".shared .align 16 .b8 buf[8192];", meter=True)
    assert report.counters["shared_load_wavefronts"] == wavefronts
    assert report.lines[0].units == wavefronts


def test_wide_accesses_are_served_by_groups_of_eight_lanes():
    """16-byte lanes 128 bytes apart conflict 8 ways within their group, whatever banks the other groups use."""
    body = """
 mov.u32 %r0, %tid.x; mov.u32 %r9, buf; and.b32 %r5, %r0, 7; shl.b32 %r6, %r5, 7; shr.u32 %r7, %r0, 3;
 shl.b32 %r8, %r7, 4; add.u32 %r10, %r9, %r6; add.u32 %r11, %r10, %r8; ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r11];
"""
    report = run(body, [aligned(32, np.uint32)], before=".shared .align 16 .b8 buf[8192];", meter=True)
    assert report.counters["shared_load_wavefronts"] == 4 * 8


def test_operations_and_instructions_count_only_what_ran():
    """An fma under divergence counts the lanes that took it, the instruction once per warp that did."""
    body = """
 mov.u32 %r0, %tid.x; mov.f32 %f0, 0f3F800000; setp.ge.u32 %p0, %r0, 8; @%p0 bra END;
 fma.rn.f32 %f1, %f0, %f0, %f0;
END:
"""
    report = run(body, [aligned(32, np.uint32)], threads=64, meter=True)
    assert report.counters["simt_flops"] == 2 * 8
    assert report.instructions["fma.rn.f32"] == 1
    assert report.instructions["mov.u32"] == 2


def test_tensor_traffic_and_matrix_work_of_a_gemm():
    """128 x 128 x 128 in 64-tiles: 4 tiles of 2 steps load 16 KiB each, and multiply 2 * 128^3 operations."""
    counters = run_pipeline(compiled(), (128, 128, 128), meter=True).report.counters
    assert counters["tma_load_bytes"] == 4 * 2 * 2 * 8192
    assert counters["tma_store_bytes"] == 4 * 64 * 64 * 4
    assert counters["wgmma_flops"] == 2 * 128**3
    assert counters["wgmma"] == 4 * 2 * 4
