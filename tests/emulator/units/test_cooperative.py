# SPDX-License-Identifier: Apache-2.0
"""Cooperative launches: `grid.sync()` orders the CTAs of a grid, and all of them must be resident."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from cutegemm.emulator import Kernel, Launch, Module, Options, run_ptx, run_sequence
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import HEADER
from tests.support.emulator_pipeline import compile_cuda

# As cooperative groups do it: the first CTA's arrival flips the counter's top bit once the others have come.
SOURCE = r"""
__device__ void grid_sync() {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned high, low, old, now;
        asm("mov.u32 %0, %%envreg1; mov.u32 %1, %%envreg2;" : "=r"(high), "=r"(low));
        unsigned* arrived = (unsigned*)(((unsigned long long)high << 32 | low) + 4);
        unsigned count = blockIdx.x ? 1 : 0x80000000u - (gridDim.x - 1);
        asm volatile("atom.add.release.gpu.u32 %0, [%1], %2;" : "=r"(old) : "l"(arrived), "r"(count) : "memory");
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(arrived) : "memory");
        while (!((now ^ old) & 0x80000000u));
    }
    __syncthreads();
}
extern "C" __global__ void reverse(int* x) {
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int step = 0; step < 3; step++) {
        x[i] = 10 * step + i;
        grid_sync();
        int other = x[n - 1 - i];
#ifndef BUG
        grid_sync();
#endif
        x[i] = other;
    }
}
"""


@functools.cache
def compiled(*options: str) -> Kernel:
    """The kernel, with or without its defect."""
    return Module.parse(compile_cuda(SOURCE, *options)).kernel("reverse")


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
def test_grid_sync_orders_all_ctas(policy):
    """Three rounds over four CTAs: right and silent, and a race where one of the two barriers is missing."""
    x = np.zeros(256, np.int32)
    options = Options(races=True, policy=policy)
    assert not run_ptx(compiled(), grid=4, block=64, args=[x], options=options).findings
    assert x.tolist() == [20 + i for i in reversed(range(256))]
    found = run_ptx(compiled("-DBUG"), grid=4, block=64, args=[x], options=options).findings
    assert found and all("race" in f.kind for f in found)


def test_a_cooperative_grid_that_does_not_fit_is_refused():
    """All CTAs must be resident together; the error names how many fit."""
    with pytest.raises(
        EmulatorError, match=r"^grid=\(4, 1, 1\): grid.sync needs .* 2 CTAs fit; .*: \(2, 1, 1\)$"
    ):
        run_ptx(
            compiled(), grid=4, block=64, args=[np.zeros(256, np.int32)], options=Options(resident_ctas=2)
        )


def test_a_special_register_that_is_unknown_is_refused_by_name():
    """The error names the register and its PTX line, not a key of a dictionary."""
    text = HEADER + ".visible .entry k() { .reg .b32 %r<2>;\n mov.u32 %r0, %envreg7; ret; }"
    with pytest.raises(EmulatorError, match=r"mov.u32 %r0, %envreg7.*\(special register %envreg7\)"):
        run_ptx(text, grid=1, block=32)


RACE_THEN_TRAP = """.visible .entry k(.param .u64 p0) { .reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<4>;
 mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p0]; st.global.u32 [%rd0], %r0; TRAP
 ret; }"""


def test_an_error_carries_the_findings_so_far():
    """Those of the launch that stops and of the launches before it, as objects and in the text."""
    x = np.zeros(4, np.int32)
    texts = [HEADER + RACE_THEN_TRAP.replace("TRAP", how) for how in ("", "trap;")]
    launches = [Launch(text, grid=1, block=64, args=[x]) for text in texts]
    with pytest.raises(EmulatorError, match="executed trap") as e:
        run_sequence(launches, Options(races=True))
    assert len(e.value.findings) >= 2 and {f.kind for f in e.value.findings} == {
        "race between lanes of a warp", "write-write race",
    }  # fmt: skip
    with pytest.raises(EmulatorError) as e:
        run_sequence(launches[1:], Options())
    assert e.value.findings == ()
