# SPDX-License-Identifier: Apache-2.0
"""Shared-memory wavefronts and global sectors of single warp instructions, as the hardware counts them.

Each pattern is a launch of one warp with one access at given lane addresses, counted by Nsight Compute. The emulator's
meter is fitted to these counts and tested with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.emulator_probes import HEADER, Draws

IDLE = 0xFFFFFFFF  # offset of an inactive lane
SHARED_BYTES = 8192
LANES = np.arange(32)
_DATA = {4: "b32", 8: "v2.b32", 16: "v4.b32"}


@dataclass(frozen=True)
class Access:
    """One instruction: kernel name, bytes per lane address, and PTX."""

    name: str
    size: int  # alignment of the offsets
    text: str  # PTX over the shared address %r3 and the global address %rd3


def _registers(size: int) -> str:
    return {4: "%r10", 8: "{%r10, %r11}", 16: "{%r10, %r11, %r12, %r13}"}[size]


def _accesses() -> Iterator[Access]:
    for size in (4, 8, 16):
        yield Access(f"ld_shared_{size}", size, f"ld.shared.{_DATA[size]} {_registers(size)}, [%r3];")
        yield Access(f"st_shared_{size}", size, f"st.shared.{_DATA[size]} [%r3], {_registers(size)};")
    yield Access("ld_global_16", 16, "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd3];")
    yield Access("st_global_8", 8, "st.global.v2.b32 [%rd3], {%r10, %r11};")
    matrix = "matrix.sync.aligned.m8n8.x4.shared.b16"
    yield Access("ldmatrix_4", 16, f"ld{matrix} {{%r10, %r11, %r12, %r13}}, [%r3];")
    yield Access("stmatrix_4", 16, f"st{matrix} [%r3], {{%r10, %r11, %r12, %r13}};")
    yield Access("cp_async_16", 16, "cp.async.cg.shared.global [%r3], [%rd4], 16;")
    yield Access("cp_async_ca_4_fill", 4, "cp.async.ca.shared.global [%r4], [%rd3], 4, %r20;")
    yield Access("cp_async_ca_16", 16, "cp.async.ca.shared.global [%r3], [%rd4], 16;")
    # %r20: 0 in inactive lanes
    yield Access("cp_async_16_fill", 16, "cp.async.cg.shared.global [%r4], [%rd3], 16, %r20;")


ACCESSES = {a.name: a for a in _accesses()}


def module() -> str:
    """Kernels (out, offsets, data): lane i accesses shared offset offsets[i] and global `data` + offsets[i]."""
    out = HEADER
    for access in ACCESSES.values():
        whole_warp = "matrix" in access.name or access.name.endswith("fill")
        guard = "" if whole_warp else "@%p1 "
        out += f"""
.visible .entry {access.name}(.param .u64 out, .param .u64 offsets, .param .u64 data)
{{
 .shared .align 128 .b8 room[{SHARED_BYTES}];
 .reg .pred %p<3>; .reg .b32 %r<30>; .reg .b64 %rd<10>;
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [out]; ld.param.u64 %rd1, [offsets]; ld.param.u64 %rd2, [data];
 mad.wide.u32 %rd0, %r0, 4, %rd0; mad.wide.u32 %rd1, %r0, 4, %rd1; mov.u32 %r2, room;
 ld.global.b32 %r1, [%rd1];
 mov.b32 %r10, %r1; mov.b32 %r11, %r0; mov.b32 %r12, %r1; mov.b32 %r13, %r0;
 setp.ne.u32 %p1, %r1, {IDLE}; selp.b32 %r20, {access.size}, 0, %p1; selp.b32 %r1, %r1, 0, %p1;
 add.u32 %r3, %r2, %r1; cvt.u64.u32 %rd6, %r1; add.u64 %rd3, %rd2, %rd6;
 mad.lo.u32 %r4, %r0, {access.size}, %r2; mad.wide.u32 %rd4, %r0, {access.size}, %rd2;
 {guard}{access.text}
 cp.async.wait_all;
 xor.b32 %r10, %r10, %r11; xor.b32 %r12, %r12, %r13; xor.b32 %r10, %r10, %r12; st.global.b32 [%rd0], %r10;
 ret;
}}
"""
    return out


def patterns(access: Access, seed: int = 17) -> np.ndarray:
    """Offsets of the 32 lanes, (patterns, 32): strides, broadcasts, swizzles, random offsets, inactive lanes."""
    size, rng = access.size, Draws(seed, *access.name.encode())
    out = [LANES * size * k for k in (0, 1, 2, 4)] + [LANES % 16 * 128 + LANES // 16 * size, LANES * 144]
    out += [LANES % 8 * 128 + LANES // 8 * size, (LANES % 8 ^ LANES // 8) * 16 + LANES // 8 * 128]
    for distance in (1, 2, 4, 8):  # lanes `distance` apart share an address
        out.append((LANES // (2 * distance) * distance + LANES % distance) * size)
    out += [np.where(LANES < 16, LANES // 2, LANES) * size, np.where(LANES < 16, LANES, LANES // 2) * size]
    out += [LANES % 8 * size, LANES // 8 * size]
    for words in (16, 32, 64, 128, 512):
        out += [rng.integers(0, max(words * 4 // size, 2) - 1, 32) * size for _ in range(2)]
    out = [np.asarray(x) // size * size % SHARED_BYTES for x in out]
    if "matrix" not in access.name:
        masks = [LANES < 8, LANES % 2 == 0, LANES % 4 < 2, rng.integers(0, 1, 32) == 1]
        out += [np.where(mask, LANES * size, IDLE) for mask in masks]
        out += [np.where(mask, rng.integers(0, 255, 32) * size, IDLE) for mask in masks]
    return np.array(out, np.uint32)
