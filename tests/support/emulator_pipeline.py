# SPDX-License-Identifier: Apache-2.0
"""Compiles `emulator_pipeline.cu` by NVRTC, with or without a planted defect, and runs it on the emulator."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from cuda.bindings import nvrtc

from cutegemm.emulator import Buffer, Kernel, Launch, Module, Options, Report, launch
from cutegemm.emulator.state.tensors import TensorMap, encode
from cutegemm.errors import EmulatorError
from tests.support.emulator_launch import aligned

SOURCE = Path(__file__).with_name("emulator_pipeline.cu")
SYNCHRONISATION = ("fence", "mbarrier", "bar.", "barrier", "wgmma.fence", "wgmma.commit", "wgmma.wait",
                   "cp.async.bulk.commit", "cp.async.bulk.wait", "cp.async.commit", "cp.async.wait")  # fmt: skip
SHARED_BYTES = 2 * 2 * 8192 + 64 * 64 * 4 + 64 + 1024  # two stages of A and B, D, barriers, room to align


def compile_cuda(source: str, *options: str) -> str:
    """PTX of CUDA C++ for sm_90a, by NVRTC."""
    (status, program) = nvrtc.nvrtcCreateProgram(source.encode(), b"pipeline.cu", 0, [], [])
    flags = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"-lineinfo", *(x.encode() for x in options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0")


@functools.cache
def compiled(bug: str = "") -> Kernel:
    """The kernel, with one `BUG_...` macro defined unless `bug` is empty."""
    options = [f"-DBUG_{bug}"] if bug else []
    return Module.parse(compile_cuda(SOURCE.read_text(), *options)).kernel("gemm")


def to_bf16(x: np.ndarray) -> np.ndarray:
    """fp32 to bf16 patterns, nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(x: np.ndarray) -> np.ndarray:
    """bf16 patterns to fp32."""
    return (x.astype(np.uint32) << 16).view(np.float32)


@dataclass
class Outcome:
    """What a run showed: kinds of findings, the error that stopped it, whether D is right."""

    findings: list[str]
    error: str
    correct: bool
    report: Report | None

    @property
    def silent(self) -> bool:
        """Nothing was found and the result is right."""
        return self.correct and not self.findings and not self.error


def matrix_map(x: np.ndarray, kind: str, box: tuple[int, int], swizzle: int) -> bytes:
    """Tensor map of a row-major matrix."""
    rows, columns = x.shape
    strides = (columns * x.dtype.itemsize,)
    return encode(TensorMap(x.ctypes.data, kind, (columns, rows), strides, box, swizzle))


def run_pipeline(
    kernel: Kernel, shape=(192, 128, 200), *, ctas: int = 2, box_rows: int = 64, **options
) -> Outcome:
    """Run D = A * B^T of a shape (M, N, K) and compare with NumPy."""
    m, n, k = shape
    rng = np.random.default_rng(3)
    a, b, d = (
        aligned(m * k, np.uint16).reshape(m, k),
        aligned(n * k, np.uint16).reshape(n, k),
        aligned(m * n, np.float32, np.nan).reshape(m, n),
    )
    a[...], b[...] = to_bf16(rng.standard_normal((m, k))), to_bf16(rng.standard_normal((n, k)))
    columns, tiles = -(-n // 64), -(-m // 64) * -(-n // 64)
    number = lambda x, size=4: int(x).to_bytes(size, "little")  # noqa: E731
    operands = [matrix_map(a, "bf16", (64, box_rows), 3), matrix_map(b, "bf16", (64, 64), 3)]
    maps = [*operands, matrix_map(d, "f32", (64, 64), 0)]
    params = [*maps, number(tiles), number(columns), number(-(-k // 64)), number(d.ctypes.data + d.nbytes, 8)]
    buffers = [Buffer(x.ctypes.data, x.nbytes, name) for x, name in ((a, "A"), (b, "B"), (d, "D"))]
    what = Launch(
        grid=(ctas, 1, 1), block=(160, 1, 1), smem_bytes=SHARED_BYTES, params=params, buffers=buffers
    )
    want = from_bf16(a).astype(np.float64) @ from_bf16(b).astype(np.float64).T
    try:
        report = launch(kernel, what, Options(max_seconds=30, **options))
    except EmulatorError as e:
        return Outcome([], str(e), False, None)
    correct = bool(np.abs(d - want).max() < 1e-4 * np.sqrt(k))  # NaN compares false
    return Outcome([f.kind for f in report.findings], "", correct, report)


def without(kernel: Kernel, index: int) -> Kernel:
    """The kernel with one instruction deleted; a deleted wait reads as one that succeeds at once."""
    ins = kernel.code[index]
    if ins.op.startswith(("mbarrier.try_wait", "mbarrier.test_wait")):
        code = list(kernel.code)
        code[index] = replace(ins, op="setp.eq.b32", operands=(ins.operands[0], "0", "0"))
        return replace(kernel, code=code)
    code = kernel.code[:index] + kernel.code[index + 1 :]
    return replace(kernel, code=code, labels={name: at - (at > index) for name, at in kernel.labels.items()})
