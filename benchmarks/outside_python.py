# SPDX-License-Identifier: Apache-2.0
"""Runs Python kernels of other projects on the emulator: the DSL's Hopper examples, Triton's matmul.

    git clone https://github.com/NVIDIA/cutlass && git clone https://github.com/triton-lang/triton
    python -m benchmarks.outside_python --cutlass cutlass --triton triton/python/tutorials/03-matrix-multiplication.py

It complements `outside_kernels`; this repository contains no code of those projects. The DSL's examples run their own
host code, whose launches are recorded. Triton (pip install triton) compiles for sm_90a without a GPU.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks import command_line
from benchmarks.outside_kernels import Row, commit_of, examine, report
from cutegemm.emulator import Launch, Module, tensor_buffer
from cutegemm.errors import EmulatorError

EXAMPLES = Path("examples/python/CuTeDSL/cute/hopper/kernel")
SMS = 4  # for persistent kernels, so that every CTA has several tiles
SCALE = 0.5  # of an fp8 operand


@dataclass(frozen=True)
class Example:
    """An example of the DSL: file, class, its arguments, types of operands and D, problem."""

    file: str
    name: str
    arguments: tuple[Any, ...]
    kinds: tuple[str, str]
    shape: tuple[int, int, int]
    clusters: int = 0  # maximum active clusters; 0 for a kernel that is not persistent
    scales: int = 0  # scale arguments: 2 tensors of one element, or 1 number
    gelu: bool = False


def examples() -> Iterator[Example]:
    """Dense GEMMs: one tile per CTA, persistent, fp8 with two accumulators, fp8 with GELU; each with clusters too."""
    bf16, fp8 = ("BFloat16", "BFloat16"), ("Float8E4M3FN", "BFloat16")
    for cluster in ((1, 1), (2, 1), (1, 2)):
        tile = (128, 128) if cluster[1] == 1 else (128, 256)
        size = cluster[0] * cluster[1]
        wanted = (tile, cluster)
        yield Example("dense_gemm", "HopperWgmmaGemmKernel", ("Float32", *wanted), bf16, (392, 520, 328))
        yield Example("dense_gemm_persistent", "HopperWgmmaGemmPersistentKernel", ("Float32", *wanted, 1, True), bf16,
                      (776, 520, 328), SMS // size)  # fmt: skip
        if tile == (128, 128):
            yield Example("dense_gemm_fp8_2xacc", "HopperFP8WarpSpecialized2xAccGemmKernel", (*wanted, 1, True), fp8,
                          (392, 264, 656), SMS // size, 2)  # fmt: skip
            yield Example("dense_gemm_fp8_gelu_persistent", "HopperFP8GeluPersistentGemmKernel",
                          ("Float32", *wanted, 1, True), fp8, (392, 264, 336), SMS // size, 1, True)  # fmt: skip


def loaded(path: Path) -> ModuleType:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    if spec is None or spec.loader is None:
        raise EmulatorError(f"{path}: must be a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def compiled(kernel: Any, tensors: list[tuple[str, tuple[int, ...], tuple[int, ...]]], arguments: list[Any]):  # type: ignore[no-untyped-def]
    """Object and PTX of a kernel's class with a driver that takes addresses; tensor types are names."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream

    from benchmarks.outside.dsl_driver import driver_of
    from cutegemm.compiling.loader import ENTRY

    driver = driver_of(kernel, [(getattr(cutlass, kind), *layout) for kind, *layout in tensors], arguments)
    with tempfile.TemporaryDirectory() as folder:
        options = f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch sm_90a"
        made = cute.compile(driver, *[cutlass.Int64(16)] * 5, make_fake_stream(), options=options)
        made.export_to_c(f"{folder}/kernel.o", function_name=ENTRY)
        return Path(folder, "kernel.o").read_bytes(), made.__ptx__


def launches_of(made: tuple[bytes, str], memory: list[Any]) -> list[Launch]:
    """The launches of an object's host code on five torch tensors."""
    from cutegemm.compiling.compiler import record_launches

    obj, ptx = made
    buffers = [tensor_buffer(x, f"operand {i}") for i, x in enumerate(memory)]
    found = record_launches(obj, ptx, (*(x.data_ptr() for x in memory), 0))
    return [
        Launch(Module.parse(ptx), grid=x.grid, block=x.block, cluster=x.cluster, smem_bytes=x.smem,
               params=list(x.params), buffers=buffers) for x in found
    ]  # fmt: skip


def run_example(example: Example, checkout: Path) -> Row:
    """Run a dense GEMM of the DSL's examples."""
    import cutlass
    import torch

    tile, cluster = [x for x in example.arguments if isinstance(x, tuple)]
    label = f"{example.file}, {tile[0]}×{tile[1]}, cluster {cluster[0]}×{cluster[1]}"
    row = Row("CuTe DSL", label, commit_of(checkout), example.shape)
    m, n, k = example.shape
    generator = torch.Generator().manual_seed(1)
    kinds = {"BFloat16": torch.bfloat16, "Float8E4M3FN": torch.float8_e4m3fn}
    draw = lambda *s: torch.randint(-4, 5, s, generator=generator).float().to(kinds[example.kinds[0]])  # noqa: E731
    a, b, d = draw(m, k), draw(n, k), torch.zeros(m, n, dtype=kinds[example.kinds[1]])
    scales = [torch.full((4,), SCALE) for _ in range(2)]
    want = a.double() @ b.double().T * (SCALE * SCALE if example.scales else 1)
    if example.gelu:
        want = torch.nn.functional.gelu(want)
    try:
        module = loaded(checkout / EXAMPLES / "dense_gemm" / f"{example.file}.py")
        taken = [getattr(cutlass, x) if isinstance(x, str) else x for x in example.arguments]
        kernel = getattr(module, example.name)(*taken)
        sizes = zip((*[example.kinds[0]] * 2, example.kinds[1]), ((m, k), (n, k), (m, n)), strict=True)
        tensors = [
            (kind, (rows, columns, 1), (columns, 1, rows * columns)) for kind, (rows, columns) in sizes
        ]
        tensors += [("Float32", (1,), (1,))] * 2 if example.scales == 2 else []
        arguments: list[Any] = [SCALE * SCALE, True] if example.scales == 1 else []
        arguments += [example.clusters] if example.clusters else []
        launches = launches_of(compiled(kernel, tensors, arguments), [a, b, d, *scales])
        raw = d.view(torch.uint8).numpy().reshape(-1)
        examine(row, launches, raw, lambda: d.double().numpy(), want.numpy())
    except Exception as e:  # of the DSL's many kinds
        row.error = f"{type(e).__name__}: {e}"
    return row


def run_attention(checkout: Path) -> Row:
    """Run the DSL's attention with two query heads per key head; its persistent form needs the driver."""
    import cutlass
    import torch

    length, keys, heads, depth = 256, 384, 2, 64
    row = Row("CuTe DSL", "fmha, 64×128", commit_of(checkout), (length, keys, depth))
    generator = torch.Generator().manual_seed(1)
    draw = lambda *s: torch.randn(s, generator=generator).half()  # noqa: E731
    q, k, v = draw(length, heads, depth), draw(keys, depth), draw(keys, depth)
    o, lse = torch.zeros(length, heads, depth, dtype=torch.float16), torch.zeros(length, heads)
    weights = torch.softmax(torch.einsum("shd,kd->shk", q.double(), k.double()) / 8, -1)
    want = torch.einsum("shk,kd->shd", weights, v.double()).reshape(length, -1)
    try:
        sys.path.insert(0, str(checkout / "examples/python/CuTeDSL"))
        module = loaded(checkout / EXAMPLES / "attention" / "fmha.py")
        mask = module.fmha_utils.MaskEnum.WINDOW_MASK
        kernel = module.HopperFusedMultiHeadAttentionForward(
            cutlass.Float32, cutlass.Float32, (64, 128, depth), False, mask
        )
        row_of = heads * depth
        tensors = [
            ("Float16", (length, depth, heads, 1, 1), (row_of, 1, depth, row_of, length * row_of)),
            *[("Float16", (keys, depth, 1, 1, 1), (depth, 1, depth, depth, keys * depth))] * 2,
            ("Float16", (length, depth, heads, 1, 1), (row_of, 1, depth, row_of, length * row_of)),
            ("Float32", (length, 1, heads, 1, 1), (heads, 1, 1, heads, length * heads)),
        ]
        made = compiled(kernel, tensors, [0.125 * 1.4426950408889634, 0.125, 1.0, None, None])
        raw = o.view(torch.uint8).numpy().reshape(-1)
        values = lambda: o.double().reshape(length, -1).numpy()  # noqa: E731
        examine(row, launches_of(made, [q, k, v, o, lse]), raw, values, want.numpy())
    except Exception as e:  # of the DSL's many kinds
        row.error = f"{type(e).__name__}: {e}"
    return row


def triton_ptx(tutorial: Path, block: tuple[int, int, int], warps: int, stages: int) -> tuple[str, int]:
    """PTX of the tutorial's kernel for contiguous rows of fp16, and its shared memory."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kept = []
    for node in ast.parse(tutorial.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("matmul_kernel", "leaky_relu"):
            node.decorator_list = [x for x in node.decorator_list if ast.unparse(x) == "triton.jit"]
            kept.append(ast.unparse(node))
    with tempfile.TemporaryDirectory() as folder:  # Triton reads the source file
        path = Path(folder) / "tutorial.py"
        path.write_text("\n".join(["import triton", "import triton.language as tl", *kept]))
        kernel = loaded(path).matmul_kernel
        names = kernel.arg_names
        sizes = zip(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), block, strict=True)
        constants = {
            **dict(sizes),
            "GROUP_SIZE_M": 8,
            "ACTIVATION": "",
            "stride_ak": 1,
            "stride_bn": 1,
            "stride_cn": 1,
        }
        kinds = {
            x: "*fp16" if x.endswith("_ptr") else "constexpr" if x in constants else "i32" for x in names
        }
        aligned = {(i,): [["tt.divisibility", 16]] for i, x in enumerate(names) if kinds[x] != "constexpr"}
        source = ASTSource(kernel, kinds, {(names.index(x),): v for x, v in constants.items()}, aligned)
        options = {"num_warps": warps, "num_stages": stages}
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return made.asm["ptx"], made.metadata.shared


def run_triton(tutorial: Path, commit: str, block: tuple[int, int, int], warps: int, stages: int) -> Row:
    """Run Triton's matmul."""
    m, n, k = 400, 272, 208
    label = f"matmul, {block[0]}×{block[1]}×{block[2]}, {warps} warps, {stages} stages"
    row = Row("Triton", label, commit, (m, n, k))
    rng = np.random.default_rng(1)
    a, b, c = (_aligned(shape) for shape in ((m, k), (k, n), (m, n)))
    a[...], b[...] = rng.integers(-4, 5, a.shape), rng.integers(-4, 5, b.shape)
    try:
        text, shared = triton_ptx(tutorial, block, warps, stages)
        grid = -(-m // block[0]) * -(-n // block[1])
        arguments = [a, b, c, m, n, k, k, n, n, None, None]  # and two unused ones of the runtime
        launch = Launch(text, grid=grid, block=32 * warps, args=arguments, smem=shared)
        values: Callable[[], np.ndarray] = lambda: c.astype(np.float64)  # noqa: E731
        want = a.astype(np.float64) @ b.astype(np.float64)
        examine(row, [launch], c.reshape(-1).view(np.uint8), values, want)
    except EmulatorError as e:
        row.error = str(e)
    return row


def _aligned(shape: tuple[int, int]) -> np.ndarray:
    """fp16 zeros at an address that is a multiple of 16."""
    memory = np.zeros(shape[0] * shape[1] + 8, np.float16)
    start = -memory.ctypes.data % 16 // 2
    return memory[start : start + shape[0] * shape[1]].reshape(shape)


def main() -> None:
    """Run the command."""
    parser = command_line.parser("outside_python", __doc__)
    parser.add_argument("--cutlass", type=Path, help="a checkout of CUTLASS")
    parser.add_argument("--triton", type=Path, help="file of the tutorial")
    parser.add_argument("--triton-commit", default="", help="its commit, if it is not in a checkout")
    parser.add_argument("--only", default="", help="run examples whose file starts with this")
    parser.add_argument("--out", type=Path, help="folder of emulator_outside.json")
    given = parser.parse_args()
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # read when the DSL is first imported

    def rows() -> Iterator[Row]:
        for example in examples() if given.cutlass else ():
            if example.file.startswith(given.only):
                yield run_example(example, given.cutlass.absolute())
        if given.cutlass and "fmha".startswith(given.only):
            yield run_attention(given.cutlass.absolute())
        for block, warps, stages in (((128, 128, 64), 8, 3), ((64, 64, 32), 4, 2)) if given.triton else ():
            commit = given.triton_commit or commit_of(given.triton.resolve().parent)
            yield run_triton(given.triton, commit, block, warps, stages)

    report(rows(), given.out)


if __name__ == "__main__":
    main()
