# SPDX-License-Identifier: Apache-2.0
"""A kernel from outside: arguments of every kind, tensor maps, device printf and assert, suppressions."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from cutegemm import emulator
from cutegemm.emulator import Launch, Options, run_ptx, run_sequence
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import HEADER, aligned
from tests.support.emulator_pipeline import compile_cuda

SCALE = compile_cuda("""
extern "C" __global__ void scale(float* x, int n, float f, double g, long long m, unsigned char b) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * f + (float)g + (float)m + b;
}
""")
NOISY = compile_cuda(r"""
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void noisy(int* x) {
    int i = threadIdx.x;
    if (i == 3) printf("thread %d of %u: %5.2f %s %lld %c%%\n", i, 32u, 2.5, "text", 1234567890123ll, 'z');
    x[i] = i;
}
""")


@pytest.mark.parametrize(
    "make", [lambda: np.ones(100, np.float32), lambda: torch.ones(100)], ids=["numpy", "torch"]
)
def test_arguments_are_arrays_tensors_and_numbers(make):
    """Arrays go by pointer, numbers as their parameter's type says; the results are in the array."""
    x = make()
    result = run_ptx(SCALE, grid=4, block=(32,), args=[x, 100, 2.0, 0.5, np.int64(-3), True])
    assert np.array_equal(np.asarray(x), np.full(100, 2 + 0.5 - 3 + 1, np.float32))
    assert not result.findings and result.counters["global_store_requests"] == 4


REFUSED = {
    r"args=\('ndarray',\): scale has 6 parameters, not 1": [np.ones(4, np.float32)],
    r"args\[1\]=2.5: scale_param_1 is of type u32": [None, 2.5, 1.0, 0.0, 0, 0],
    r"args\[1\]=8589934592: does not fit the 4 bytes of scale_param_1; nearest legal value: 4294967295": [
        None,
        2**33,
        1.0,
        0.0,
        0,
        0,
    ],
    r"args\[1\]=<ndarray \(1,\) float64>: ndarray has 8 bytes, scale_param_1 has 4": [
        None,
        np.ones(1),
        1.0,
        0.0,
        0,
        0,
    ],
    r"args\[1\]='4': must be an array, a CPU tensor, a number, a tensor map, bytes or None": [
        None,
        "4",
        1.0,
        0.0,
        0,
        0,
    ],
    r"args\[0\]=<Tensor \(4,\) torch.float32>: on meta: must be a CPU tensor": [
        torch.ones(4, device="meta"),
        *[0] * 5,
    ],
}


@pytest.mark.parametrize("message", list(REFUSED))
def test_arguments_that_do_not_fit_are_refused(message):
    """Count, type and size are checked before anything runs; the message is pinned."""
    with pytest.raises(EmulatorError, match=f"^{message}$"):
        run_ptx(SCALE, grid=1, block=32, args=REFUSED[message])


@pytest.mark.parametrize(
    "name, value", [("grid", 0), ("block", (1, 2, 3, 4)), ("cluster", 1.5), ("smem", "all")]
)
def test_geometry_is_checked(name, value):
    """One to three positive whole numbers; bytes of shared memory or "auto"."""
    geometry = {"grid": 1, "block": 32, name: value}
    with pytest.raises(EmulatorError, match=f"^{name}="):
        run_ptx(SCALE, args=[None, 0, 0.0, 0.0, 0, 0], **geometry)


def test_device_printf():
    """vprintf prints with its values, and the result keeps what was printed."""
    x = np.zeros(32, np.int32)
    assert (
        run_ptx(NOISY, grid=1, block=32, args=[x]).printed == "thread 3 of 32:  2.50 text 1234567890123 z%\n"
    )
    assert x.tolist() == list(range(32))


ASSERTS = (
    HEADER
    + """
.global .align 1 .b8 text[6] = {105, 32, 60, 32, 110, 0};
.global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};
.extern .func __assertfail (.param .b64 p0, .param .b64 p1, .param .b32 p2, .param .b64 p3, .param .b64 p4);
.visible .entry k()
{
 .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<4>;
 mov.u32 %r0, %tid.x; setp.lt.u32 %p0, %r0, 20; @%p0 bra END;
 mov.u64 %rd0, text; mov.u64 %rd1, file;
 { .param .b64 a0; st.param.b64 [a0], %rd0; .param .b64 a1; st.param.b64 [a1], %rd1; .param .b32 a2;
 st.param.b32 [a2], 17; .param .b64 a3; st.param.b64 [a3], %rd1; .param .b64 a4; st.param.b64 [a4], 1;
 call.uni __assertfail, (a0, a1, a2, a3, a4); }
END:
 ret;
}
"""
)


def test_a_failed_assertion_names_itself():
    """Text, file, line and lane of the first lane that fails."""
    with pytest.raises(EmulatorError, match=r"a\.cu:17: a\.cu: assertion `i < n` failed, lane 20"):
        run_ptx(ASSERTS, grid=1, block=32)


def test_an_unknown_function_is_refused():
    """Any other call without a body is an error with its name."""
    with pytest.raises(EmulatorError, match="call: 'cudaMalloc'"):
        run_ptx(ASSERTS.replace("__assertfail", "cudaMalloc"), grid=1, block=32)


COPY = (
    HEADER
    + """
.extern .shared .align 1024 .b8 dyn[];
.visible .entry k(.param .align 64 .b8 source[128], .param .align 64 .b8 target[128], .param .u32 bytes)
{
 .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .shared .align 8 .b8 bar[8];
 mov.u32 %r0, %tid.x; mov.u32 %r1, dyn; ld.param.u32 %r4, [bytes];
 mov.b64 %rd1, source; cvta.param.u64 %rd2, %rd1; mov.b64 %rd3, target; cvta.param.u64 %rd4, %rd3;
 setp.ne.u32 %p0, %r0, 0; @%p0 bra END;
 mbarrier.init.shared.b64 [bar], 1; fence.mbarrier_init.release.cluster;
 mbarrier.arrive.expect_tx.shared.b64 %rd5, [bar], %r4;
 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd2, {0, 8}], [bar];
LOOP:
 mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0; @!%p1 bra LOOP;
 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {0, 0}], [%r1];
 cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:
 ret;
}
"""
)


@pytest.mark.parametrize("swizzle", [None, 32, 64, 128, "128B"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32])
def test_tensor_maps_of_tensors(swizzle, kind):
    """A box goes in and out again under each swizzle; shared memory is sized by itself."""
    inner = 32 // kind.itemsize
    source = torch.arange(64 * inner, dtype=torch.float32).reshape(64, inner).to(kind)
    target = torch.zeros(16, inner, dtype=kind)
    maps = [emulator.tensor_map(x, (16, inner), swizzle=swizzle) for x in (source, target)]
    result = run_ptx(COPY, grid=1, block=32, args=[*maps, 16 * 32])
    assert torch.equal(target, source[8:24]) and not result.findings


def test_tensor_maps_of_arrays_have_the_arrays_order():
    """Extents, strides and box are given outermost first, as the array has them; the map holds them innermost first."""
    x = aligned(6 * 8 * 64, np.float16).reshape(6, 8, 64)[:, :, :40]
    made = emulator.tensor_map(x, (2, 4, 32), swizzle=64).map
    assert (made.dims, made.strides, made.box) == ((40, 8, 6), (128, 1024), (32, 4, 2))
    assert (made.kind, made.swizzle, made.base) == ("f16", 2, x.ctypes.data)


WRONG_MAPS = {
    r"array=\[1\]: must be a NumPy array or a CPU tensor": lambda x: ([1], (1,), {}),
    "swizzle=16: one of None, 32, 64, 128": lambda x: (x, (8, 8), {"swizzle": 16}),
    r"box=\(8,\): one extent for each of the array's 2 dimensions": lambda x: (x, (8,), {}),
    r"box=\(300, 8\): each extent from 1 to 256 elements; nearest legal value: \(256, 8\)": lambda x: (
        x,
        (300, 8),
        {},
    ),
    r"array=<.*>: strides \(2, 128\) bytes, .* pass array.T of a column-major matrix": lambda x: (
        x.T,
        (8, 8),
        {},
    ),
    r"box=\(8, 64\): tensor map: box row of 128 bytes exceeds the 64-byte swizzle .*": lambda x: (
        x,
        (8, 64),
        {"swizzle": 64},
    ),
    r"array=<.*>: address and strides \[\d+\] bytes are not multiples of 16": lambda x: (
        x[:, 1:],
        (8, 8),
        {},
    ),
}


@pytest.mark.parametrize("message", list(WRONG_MAPS))
def test_tensor_maps_that_tma_refuses(message):
    """Each rule of tensor maps is an error of its own; the message is pinned."""
    array, box, options = WRONG_MAPS[message](aligned(64 * 64, np.float16).reshape(64, 64))
    with pytest.raises(EmulatorError, match=f"^{message}$"):
        emulator.tensor_map(array, box, **options)


def test_neither_torch_nor_the_dsl_is_loaded():
    """The door for outside kernels works where only NumPy is there."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['cutlass'] = None\n"
        "import numpy as np; from cutegemm import emulator; x = np.zeros(32, np.uint32)\n"
        f"text = {HEADER!r} + '.visible .entry k(.param .u64 p) {{ .reg .b64 %rd<2>; ld.param.u64 %rd0, [p]; ' \\\n"
        " + 'st.global.u32 [%rd0], 7; ret; }'\n"
        "emulator.run_ptx(text, grid=1, block=32, args=[x]); assert x[0] == 7"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


RACE = (
    HEADER
    + """
.visible .entry k(.param .u64 p)
{
 .reg .b32 %r<4>; .reg .b64 %rd<4>;
 ld.param.u64 %rd0, [p]; mov.u32 %r0, %warpid; st.global.u32 [%rd0], %r0; st.global.u32 [%rd0+4], %r0;
 ret;
}
"""
)


def test_one_cause_is_one_finding_with_its_count():
    """Two words written by four warps in a row of stores: one finding, every time counted, an example shown."""
    (found,) = run_ptx(RACE, grid=1, block=128, args=[np.zeros(4, np.uint32)]).findings
    assert (found.kind, found.label) == ("write-write race", "observed")
    assert found.count == 6 and len(found.pairs) == 1
    assert str(found).endswith("offset 0x0 [6 times at 1 place]") or "6 times" in str(found)


def test_suppressed_findings_are_kept_apart(tmp_path):
    """A line of the file names kind and text by patterns; what it matches is listed as suppressed."""
    rules = tmp_path / "known"
    rules.write_text("# what is known\nwrite-write race : PTX line 8  # by design\n")
    launch = Launch(RACE, grid=1, block=128, args=[np.zeros(4, np.uint32)])
    report = run_sequence([launch], Options(races=True, suppressions=rules)).reports[0]
    assert not report.findings and [f.kind for f in report.suppressed] == ["write-write race"]
    rules.write_text("read-* : *\n")
    assert run_sequence([launch], Options(races=True, suppressions=rules)).findings
    rules.write_text("write-write race\n")
    with pytest.raises(
        EmulatorError, match="line 1 is 'write-write race'; write `KIND-PATTERN : TEXT-PATTERN`"
    ):
        run_sequence([launch], Options(races=True, suppressions=rules))


SPACES = compile_cuda("""
extern "C" __global__ void k(const int* x, const int* z, int* y, int first) {
    __shared__ int s[64], copied[64];
    int i = threadIdx.x, l[2] = {x[i], x[63 - i]}, which = (i + first) % 4;
    s[i] = i;
    __syncthreads();
    const int* from = which == 0 ? x + i : which == 1 ? z + i : which == 2 ? s + i : l + (x[i] & 1);
    y[i] = *from;
    unsigned to = (unsigned)__cvta_generic_to_shared(copied + i);
    from = i & 1 ? x + i : z + i;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(i % 3 ? 4 : 0));
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    y[64 + i] = copied[63 - i];
}
""")


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("races", [True, False])
def test_lanes_of_one_instruction_may_use_different_memory(first, races):
    """Two arrays, shared and local memory in one load, and two arrays in one cp.async, also if nothing is copied."""
    x, z, y = np.arange(64, dtype=np.int32) * 3, np.arange(64, dtype=np.int32) * 7, np.zeros(128, np.int32)
    result = run_ptx(SPACES, grid=1, block=64, args=[x, z, y, first], options=Options(races=races))
    local = [x[63 - i] if x[i] & 1 else x[i] for i in range(64)]
    assert not result.findings
    assert y[:64].tolist() == [(x[i], z[i], i, local[i])[(i + first) % 4] for i in range(64)]
    assert y[:63:-1].tolist() == [(x if i & 1 else z)[i] * (i % 3 > 0) for i in range(64)]


VARIABLES = compile_cuda("""
__device__ int table[4]; __device__ int* second = table + 1; __device__ const char* name = "abc";
extern "C" __global__ void fill() { if (threadIdx.x < 4) table[threadIdx.x] = 5 * threadIdx.x; }
extern "C" __global__ void read(int* y) { int i = threadIdx.x; if (i < 3) y[i] = second[i] + name[i]; }
""")


def test_kernels_of_a_module_share_its_variables_and_pointers_are_initialised():
    """A second kernel reads what the first one stored, through a pointer in the initial value of a variable."""
    y = np.zeros(3, np.int32)
    launches = [Launch(VARIABLES, grid=1, block=32, args=[], entry="fill")]
    assert not run_sequence([*launches, Launch(VARIABLES, grid=1, block=32, args=[y], entry="read")]).findings
    assert y.tolist() == [5 + 97, 10 + 98, 15 + 99]
    function = VARIABLES.replace("generic(table)", "generic(fill)")
    assert function != VARIABLES
    with pytest.raises(EmulatorError, match="second holds the address of fill, which is not a variable"):
        run_ptx(function, grid=1, block=32, args=[y], entry="read")


def test_initial_values_of_every_form_and_scopes_of_inline_assembly():
    """Hexadecimal, fp32, fp64 and negative values; `.reg.b32` without a space, as cuda_fp16.hpp has it."""
    text = f"""{HEADER} .global .b32 v[3] = {{-1, 0x10, 0f3F800000}}; .global .f64 w = 0d3FF8000000000000;
.visible .entry k(.param .u64 y) {{ .reg .b64 %rd<4>; .reg .b32 %r<4>; ld.param.u64 %rd0, [y];
 {{ .reg.b32 r, s; .reg.b64 t; mov.u64 %rd1, v; ld.global.v2.b32 {{r, s}}, [%rd1]; ld.global.b32 %r0, [%rd1+8];
 ld.global.b64 t, [w]; st.global.v2.b32 [%rd0], {{r, s}}; st.global.b32 [%rd0+8], %r0; st.global.b64 [%rd0+16], t; }}
 ret; }}"""
    y = np.zeros(3, np.uint64)
    run_ptx(text, grid=1, block=1, args=[y])
    assert y.view(np.int32)[:3].tolist() == [-1, 16, 0x3F800000] and y.view(np.float64)[2] == 1.5
    with pytest.raises(EmulatorError, match="initial value '0xff\\(y\\)' of v: not understood"):
        run_ptx(text.replace("-1, 0x10", "0xff(y), 0x10"), grid=1, block=1, args=[y])
