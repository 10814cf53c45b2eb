# SPDX-License-Identifier: Apache-2.0
"""Kernels of one unit: a tensor load that is copied out, a wgmma whose operands a test lays out itself."""

from __future__ import annotations

import numpy as np

from tests.support.emulator_launch import HEADER, aligned, run

DYNAMIC = ".extern .shared .align 1024 .b8 dyn[];"
SPAN = {0: 16, 1: 128, 2: 64, 3: 32}  # descriptor swizzle field -> bytes of the swizzle pattern

TMA_KERNEL = f"""{HEADER}
{DYNAMIC}
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out, .param .u32 x, .param .u32 y, .param .u32 bytes)
{{
 .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>;
 mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; ld.param.u32 %r2, [x]; ld.param.u32 %r3, [y]; ld.param.u32 %r4, [bytes];
 ld.param.u64 %rd0, [out]; mov.b64 %rd1, map; cvta.param.u64 %rd2, %rd1;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra WAIT;
 mbarrier.init.shared.b64 [%r1], 1; fence.proxy.async.shared::cta;
 mbarrier.arrive.expect_tx.shared.b64 %rd3, [%r1], %r4;
 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [%rd2, {{%r2, %r3}}], [%r1];
WAIT:
 bar.sync 0;
LOOP:
 mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0; @!%p1 bra LOOP;
 shl.b32 %r5, %r0, 2;
COPY:
 setp.ge.u32 %p2, %r5, %r4; @%p2 bra END;
 add.u32 %r6, %r1, %r5; ld.shared.u32 %r7, [%r6+1024]; cvt.u64.u32 %rd4, %r5; add.s64 %rd5, %rd0, %rd4;
 st.global.u32 [%rd5], %r7; add.u32 %r5, %r5, 256; bra.uni COPY;
END:
 ret;
}}
"""


def wgmma_kernel(
    n: int,
    kinds: str,
    item: int,
    a_major: int,
    b_major: int,
    chunk_bytes: int,
    start: int = 0,
    shape: str = "",
) -> str:
    """One wgmma: shared memory arrives as raw bytes, the accumulators leave in register order.

    start: what the accumulators hold before, as bits; shape: what stands between `aligned` and the type of D.
    """
    d = ", ".join(f"%f{i}" for i in range(n // 2))
    k = 32 // item
    integer = kinds[1] == "8"  # s8 and u8 take neither signs nor majors
    flags = "" if integer else f"1, 1, {a_major}, {b_major}" if item == 2 else "1, 1"
    zero = "\n".join(f" mov.f32 %f{i}, 0f{start:08X};" for i in range(n // 2))
    stores = "\n".join(f" st.global.f32 [%rd9+{4 * i}], %f{i};" for i in range(n // 2))
    d_type, shape = "s32" if integer else "f32", shape or f"m64n{n}k{k}"
    return f"""
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u64 %rd2, [p2]; mov.u32 %r1, dyn;
 ld.global.b64 %rd3, [%rd2]; ld.global.b64 %rd4, [%rd2+8];
 shl.b32 %r2, %r0, 2;
COPY:
 setp.ge.u32 %p2, %r2, {chunk_bytes}; @%p2 bra DONE;
 add.u32 %r3, %r1, %r2; cvt.u64.u32 %rd5, %r2; add.s64 %rd6, %rd0, %rd5; ld.global.u32 %r4, [%rd6];
 st.shared.u32 [%r3], %r4; add.u32 %r2, %r2, 512; bra.uni COPY;
DONE:
 fence.proxy.async.shared::cta; bar.sync 0;
 shr.u32 %r5, %r1, 4; cvt.u64.u32 %rd7, %r5; add.s64 %rd3, %rd3, %rd7; add.s64 %rd4, %rd4, %rd7;
{zero}
 wgmma.fence.sync.aligned;
 wgmma.mma_async.sync.aligned.{shape}.{d_type}.{kinds} {{{d}}}, %rd3, %rd4, 1{", " + flags if flags else ""};
 wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
 mad.wide.u32 %rd9, %r0, {n // 2 * 4}, %rd1;
{stores}
"""


def place_operand(smem: np.ndarray, start: int, values: np.ndarray, mn_major: bool, mode: int) -> int:
    """Write an operand (rows of M or N, columns of K) into shared bytes as the canonical layouts say; its descriptor.

    The layout is written from the definition, element by element, independently of the emulator's own formula.
    """
    item = values.dtype.itemsize
    span = SPAN[mode]
    extent, depth = values.shape
    per = 16 // item
    rows_at_once = span // item  # elements of a swizzle row
    for i in range(extent):
        for k in range(depth):
            if not mn_major and mode == 0:  # ((8, n), (T, 2)) : ((1T, SBO), (1, LBO))
                offset = i % 8 * 16 + i // 8 * 256 + k % per * item + k // per * 128
            elif not mn_major:
                offset = i % 8 * span + i // 8 * 8 * span + k * item
            elif mode == 0:  # ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
                offset = i % per * item + i // per * 128 + k % 8 * 16 + k // 8 * (extent // per * 128)
            else:  # ((T, span, m), (8, k)) : ((1, T, LBO), (span, SBO))
                groups = -(-extent // rows_at_once)
                offset = (
                    i % rows_at_once * item
                    + i // rows_at_once * 8 * span
                    + k % 8 * span
                    + k // 8 * (groups * 8 * span)
                )
            address = start + offset
            address ^= (address >> 7 & (span // 16 - 1)) << 4
            smem[address : address + item] = values[i, k : k + 1].view(np.uint8)
    if not mn_major:
        leading, stride = (128, 256) if mode == 0 else (16, 8 * span)
    elif mode == 0:
        leading, stride = extent // per * 128, 128
    else:
        leading, stride = 8 * span, -(-extent // rows_at_once) * 8 * span
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


def run_wgmma(a, b, kinds, majors, modes, n, start=0, shape="", **options) -> np.ndarray:
    """D of one wgmma as a 64 x n matrix."""
    smem = aligned(65536, np.uint8, 0x7F)
    smem_offset = 32768
    # the emulator's shared base is not 1024-aligned to byte 0 of `dyn` unless declared so; `dyn` is
    descriptors = aligned(2, np.uint64)
    descriptors[0] = place_operand(smem, 0, a, majors[0], modes[0])
    descriptors[1] = place_operand(smem, smem_offset, b, majors[1], modes[1])
    out = aligned(128 * n // 2, np.float32)
    text = wgmma_kernel(n, kinds, a.dtype.itemsize, int(majors[0]), int(majors[1]), len(smem), start, shape)
    run(text, [smem, out, descriptors], threads=128, smem=65536, before=DYNAMIC, **options)
    registers = out.reshape(128, n // 2)
    d = np.zeros((64, n), out.dtype)
    for t in range(128):
        for i in range(n // 2):
            d[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = registers[t, i]
    return d
