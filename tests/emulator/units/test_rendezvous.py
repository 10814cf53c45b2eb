# SPDX-License-Identifier: Apache-2.0
"""A wgmma is one operation of its four warps: none begins before all have come, and one warp's wait covers all."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator.watch.findings import BY_THE_LETTER
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned, run
from tests.support.emulator_units import DYNAMIC, place_operand, wgmma_kernel
from tests.support.patience import PATIENCE

WAIT = "wgmma.wait_group.sync.aligned 0;"
N, BYTES, B_AT = 16, 16384, 8192
OVERWRITE = """
 setp.gt.u32 %p3, %r0, 31; @%p3 bra KEEP;
 shl.b32 %r6, %r0, 4; add.u32 %r6, %r6, %r1; mov.u32 %r7, 0;
 st.shared.v4.b32 [%r6+8192], {%r7, %r7, %r7, %r7};
KEEP:
"""


def multiply(change=lambda text: text, **options):
    """D of one wgmma by a changed kernel, what it should be, and the report."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-8, 9, (64, 16)).astype(np.float16), rng.integers(-8, 9, (N, 16)).astype(np.float16)
    smem, descriptors = aligned(BYTES, np.uint8), aligned(2, np.uint64)
    descriptors[:] = place_operand(smem, 0, a, False, 0), place_operand(smem, B_AT, b, False, 0)
    out = aligned(128 * N // 2, np.float32)
    text = change(wgmma_kernel(N, "f16.f16", 2, 0, 0, BYTES))
    report = run(
        text,
        [smem, out, descriptors],
        threads=128,
        smem=BYTES,
        before=DYNAMIC,
        races=True,
        max_seconds=PATIENCE,
        **options,
    )
    d = np.zeros((64, N), np.float32)
    for t in range(128):
        for i in range(N // 2):
            d[t // 32 * 16 + t % 32 // 4 + i // 2 % 2 * 8, i // 4 * 8 + t % 4 * 2 + i % 2] = out[
                t * N // 2 + i
            ]
    return d, a.astype(np.float32) @ b.astype(np.float32).T, report


def overwrite_after_wait(text: str) -> str:
    """Warp 0 writes zeros over B right after its own wait (the probe on the GPU did)."""
    return text.replace(WAIT, WAIT + OVERWRITE)


POLICIES = [{}, {"policy": "lazy"}, *({"policy": "random", "seed": seed} for seed in range(6))]


@pytest.mark.parametrize("options", POLICIES)
def test_operands_may_be_overwritten_after_the_wait_of_one_warp(options):
    """As on an H200: the sum of every warp is right and nothing is reported, in any order of the warps."""
    d, want, report = multiply(overwrite_after_wait, **options)
    assert np.array_equal(d, want) and not report.findings


def test_strict_runs_keep_to_the_letter():
    """PTX promises a warp its own products only: strict=True reports the overwriting, labelled, as one finding."""
    d, want, report = multiply(overwrite_after_wait, policy="lazy", strict=True)
    assert np.array_equal(d, want)
    assert [(f.kind, f.label) for f in report.findings] == [("read-write race", BY_THE_LETTER)]
    assert "read-write race (by the letter): store by" in str(report.findings[0])


@pytest.mark.parametrize("options", [{"policy": "lazy"}, {"policy": "lazy", "strict": True}])
def test_overwriting_without_any_wait_is_observed(options):
    """An operand overwritten before any wait is wrong on hardware too, strict or not."""
    _, _, report = multiply(lambda text: text.replace(WAIT, OVERWRITE + WAIT), **options)
    assert ("read-write race", "observed") in [(f.kind, f.label) for f in report.findings]


def test_a_warp_that_never_comes_holds_up_the_others():
    """wgmma is for whole warpgroups: a missing warp is a deadlock whose report names the warpgroup and its warps."""
    missing = "setp.gt.u32 %p4, %r0, 95; @%p4 bra END;\n wgmma.fence.sync.aligned;"
    with pytest.raises(
        EmulatorError, match=r"waiting for the warpgroup of warps 0..3, which issued \[1, 1, 1, 0\]"
    ):
        multiply(lambda text: text.replace("wgmma.fence.sync.aligned;", missing) + "\nEND:")


@pytest.mark.parametrize("align", [16, 128, 1024])
def test_dynamic_shared_memory_keeps_its_alignment_behind_static_variables(align):
    """ptxas honours the declared alignment of an extern array, whatever static variables lie before it."""
    out = aligned(2, np.uint32)
    before = f".shared .align 4 .b8 few[20];\n.extern .shared .align {align} .b8 dyn[];"
    body = """ ld.param.u64 %rd0, [p0]; mov.u32 %r1, dyn; mov.u32 %r2, few; st.shared.u32 [%r2], %r1;
 st.global.u32 [%rd0], %r1; sub.u32 %r3, %r1, %r2; st.global.u32 [%rd0+4], %r3;"""
    run(body, [out], before=before, smem=64)
    assert out[0] % align == 0 and out[1] == -(-20 // align) * align
