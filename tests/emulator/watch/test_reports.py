# SPDX-License-Identifier: Apache-2.0
"""What a report names: variables in shared memory, inlined calls, the warps that wait and the last arrival."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.emulator import Module, run_ptx
from cutegemm.emulator.ptx.kernel import Variable
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import kernel_text
from tests.support.emulator_pipeline import SOURCE as SOURCE_FILE
from tests.support.emulator_pipeline import compile_cuda, compiled, run_pipeline

SOURCE = r"""
__device__ unsigned at(void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void put(int* p, int x) { *(volatile int*)p = x; }
__device__ void init(unsigned long long* b, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(b)), "r"(n));
}
__device__ void expect(unsigned long long* b, int n) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(at(b)), "r"(n) : "memory");
}
__device__ void wait(unsigned long long* b) {
    asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @p bra D; bra L; D: }"
                 :: "r"(at(b)) : "memory");
}
extern "C" __global__ void names(int* out) {
    __shared__ int tile[64];
    extern __shared__ int stages[];
    stages[threadIdx.x] = 1;
    put(&tile[threadIdx.x], 2);
    out[threadIdx.x] = tile[63 - threadIdx.x] + stages[63 - threadIdx.x];
}
extern "C" __global__ void beyond(int* out) {
    __shared__ int tile[8];
    extern __shared__ __align__(128) int stages[];
    tile[threadIdx.x % 8] = stages[0] = 1;
    out[threadIdx.x] = tile[threadIdx.x % 8 + out[32]];
}
__device__ void bulk(void* s, const void* g, int n, unsigned long long* b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(at(s)), "l"(g), "r"(n), "r"(at(b)) : "memory");
}
extern "C" __global__ void faulty(const float* x, int first, int bytes, int ready) {
    __shared__ __align__(128) float buffer[128];
    __shared__ unsigned long long done;
    if (threadIdx.x == 0 && ready) init(&done, 1);
    __syncthreads();
    if (threadIdx.x == 0) { expect(&done, bytes); bulk(buffer, x + first, bytes, &done); }
    wait(&done);
}
extern "C" __global__ void left_behind() {
    if (threadIdx.x < 96) __syncthreads(); else for (volatile int i = 0; i == 0;);
}
extern "C" __global__ void stuck(int arrivals, int bytes, int waits) {
    __shared__ unsigned long long empty[2], full[2];
    if (threadIdx.x == 0) { init(&empty[1], 1); init(&full[1], arrivals); }
    __syncthreads();
    if (threadIdx.x == 0) expect(&full[1], bytes);
    if (waits) wait(threadIdx.x < 96 ? &full[1] : &empty[1]);
}
"""


@pytest.fixture(scope="module")
def module():
    """The kernels of this file."""
    return Module.parse(compile_cuda(SOURCE))


def line_of(text: str) -> int:
    """The line of the source that holds a text."""
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def test_findings_name_the_variable_and_the_offset_in_it(module):
    """Static and dynamic arrays have the names of the source; an offset within them is in bytes."""
    result = run_ptx(module.kernel("names"), grid=1, block=64, args=[np.zeros(64, np.int32)])
    said = "\n".join(map(str, result.findings))
    assert "offset 0x400 (tile)" in said and "offset 0x480 (tile + 0x80)" in said, said
    assert "offset 0x500 (stages)" in said and "offset 0x580 (stages + 0x80)" in said, said


def test_a_read_behind_an_array_names_the_array(module):
    """Between two variables the report says how far the access is past the end of the first."""
    out = np.full(33, 10, np.int32)
    (found,) = run_ptx(module.kernel("beyond"), grid=1, block=32, args=[out]).findings
    assert "offset 0x428 (0x8 bytes past the end of tile), which nothing wrote" in str(found)


def test_findings_name_the_line_that_calls_an_inlined_function(module):
    """A helper's line does not tell which of its calls is wrong, so the line of the call follows it."""
    result = run_ptx(module.kernel("names"), grid=1, block=64, args=[np.zeros(64, np.int32)])
    helper, call = line_of("volatile int*"), line_of("put(&tile")
    assert any(f"(pipeline.cu:{helper}, inlined at pipeline.cu:{call})" in str(f) for f in result.findings)


def test_a_call_within_an_inlined_call_has_both_lines():
    """The place of a .loc's `inlined_at` has a .loc itself, which says where that was inlined (PTX ISA 11.5)."""
    place = "function_name $L, inlined_at"
    text = kernel_text(f"""
 .loc 1 9 2
 .loc 1 5 3, {place} 1 9 2
 .loc 1 2 1, {place} 1 5 3
 mov.u32 %r1, 1;
 .loc 1 5 3, {place} 1 8 2
 .loc 1 2 1, {place} 1 5 3
 mov.u32 %r1, 2;
 .loc 1 4 1
 mov.u32 %r1, 3;
""")
    first, second, third, *_ = Module.parse(text + '.file 1 "a.cu"\n').kernel("k").code
    assert first.place.endswith("(a.cu:2, inlined at a.cu:5, inlined at a.cu:9)")
    assert second.place.endswith("(a.cu:2, inlined at a.cu:5)")  # line 5 is inlined at lines 9 and 8
    assert third.place.endswith("(a.cu:4)")


def test_a_deadlock_lists_warps_that_wait_together_and_the_last_arrival(module):
    """Three warps wait for bytes that nobody brings, the fourth for an arrival that nobody makes: two lines."""
    with pytest.raises(EmulatorError) as e:
        run_ptx(module.kernel("stuck"), grid=1, block=128, args=[2, 64, 1])
    (*_, full, empty) = str(e.value).splitlines()
    call = f"pipeline.cu:{line_of('expect(&full')})"
    assert "CTA (0, 0, 0) warps 0..2 at PTX line" in full and "(full + 0x8) of CTA (0, 0, 0)" in full, full
    assert "1 of 2 arrivals and 64 bytes pending" in full, full
    assert "the last arrival was by CTA (0, 0, 0) warp 0 at PTX line" in full and full.endswith(call), full
    assert "CTA (0, 0, 0) warp 3 at PTX line" in empty and "(empty + 0x8)" in empty, empty
    assert empty.endswith("to complete phase parity 0; no thread has arrived")


def test_bytes_that_never_came_name_the_arrival_that_announced_them(module):
    """Nobody waits for them, so the CTA ends; the report has both numbers and the line."""
    (found,) = run_ptx(module.kernel("stuck"), grid=1, block=128, args=[1, 64, 0]).findings
    assert "64 bytes were announced in all, copies brought 0; the last arrival was by" in str(found)
    assert str(found).endswith(f"pipeline.cu:{line_of('expect(&full')})") and "PTX line 0" not in str(found)


FAULTS = {
    (
        64,
        512,
        1,
    ): "512 bytes out of bounds: begins 0x100 bytes into 'args[0]' (512 bytes), ends 256 bytes past the end of",
    (0, 500, 1): "500 bytes, shared offset 0x400 (buffer), global address 0x",
    (0, 512, 0): "no mbarrier was initialised at shared offset 0x600 (done) of CTA (0, 0, 0)",
}


@pytest.mark.parametrize("case", list(FAULTS))
def test_a_fault_names_what_is_out_of_bounds_unaligned_or_not_initialised(module, case):
    """A bulk copy beyond its source, one of a size that is not a multiple of 16 bytes, and an mbarrier without init."""
    x = np.zeros(160, np.float32)
    x = x[-(x.ctypes.data // 4) % 4 :][:128]  # begins at a multiple of 16 bytes
    with pytest.raises(EmulatorError) as e:
        run_ptx(module.kernel("faulty"), grid=1, block=32, args=[x, *case])
    assert FAULTS[case] in str(e.value), e.value


def test_a_barrier_of_the_whole_cta_says_how_many_threads_it_waits_for(module):
    """`bar.sync` without a count waits for every thread that has not exited."""
    with pytest.raises(EmulatorError, match="96 of 128 threads have arrived"):
        run_ptx(module.kernel("left_behind"), grid=1, block=128, args=[])


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_ZZ4gemmE4full", "full"),
        ("_ZZ4gemmE4tile_0", "tile"),  # the second of that name in the function
        ("_ZZN3abc4gemmIfEEvPT_E2a1", "a1"),  # in a template
        ("_ZN3abc4tileE", "tile"),
        ("_ZSomething", "_ZSomething"),
        ("buffer_0", "buffer_0"),
    ],
)
def test_variables_have_the_names_of_the_source(name, plain):
    """The last name of a mangled one (Itanium C++ ABI); others stay."""
    assert Variable(name, "shared", 4, 4).plain == plain


def test_an_operand_that_wgmma_reads_in_part_names_the_load_and_the_bytes():
    """Strides of 512 instead of 1024 bytes between groups of 8 rows: the last rows of the tile are never read."""
    found = run_pipeline(compiled("STRIDE"), (64, 64, 64), policy="lazy", races=True).report.findings
    said = "\n".join(map(str, found))
    assert "leftover: wgmma reads only a part of the tensor load by CTA (0, 0, 0) warp" in said, said
    assert "nothing reads 3584 bytes, shared memory of CTA (0, 0, 0), offset 0x" in said, said


def test_a_kernel_may_skip_what_lies_outside_the_matrix():
    """40 columns need three WGMMAs, because a fourth multiplies zeros; a whole tile needs four."""
    kernel = Module.parse(compile_cuda(SOURCE_FILE.read_text(), "-DWGMMAS=3")).kernel("gemm")
    assert run_pipeline(kernel, (64, 64, 40), races=True).silent
    outcome = run_pipeline(kernel, (64, 64, 64), races=True)
    assert set(outcome.findings) == {"leftover"} and not outcome.correct


def test_an_operand_outside_shared_memory_names_its_wgmma():
    """The fault is at wgmma.mma_async, not where the policy computes it, and has where the operand begins and ends."""
    error = run_pipeline(compiled("FAR"), (64, 64, 64), policy="lazy", races=True).error
    assert "`wgmma.mma_async" in error and "of 64 rows (descriptor 0x" in error, error
