# SPDX-License-Identifier: Apache-2.0
"""Small problems for every kind of kernel, to run under compute-sanitizer.

    compute-sanitizer --tool memcheck python -m benchmarks.sanitized
    compute-sanitizer --tool racecheck --error-exitcode 9 python -m benchmarks.sanitized --only atomic,launch
    compute-sanitizer --tool synccheck python -m benchmarks.sanitized

The cases cover reductions across CTAs, loads by threads, scaled, copied and quantized 8-bit operands, D in 8 bits,
groups, and sums of rows. Each result is compared with fp64, or with torch's operations for `quantize` and sums of
rows; the command exits 1 if one is wrong. Racecheck only covers shared memory. The emulator's race detector covers
global memory (`tests/kernels`).
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch

import cutegemm
from benchmarks import command_line, runs
from cutegemm import DType, GemmSpec, Tile
from cutegemm import epilogue as epi
from cutegemm.epilogue import Graph
from cutegemm.ops.groups import row_sum
from cutegemm.ops.quantized import kernel
from cutegemm.ops.quantized.quantize import quantized
from cutegemm.running.backends.helper_launch import on_emulator
from cutegemm.running.numerics.group_reference import gathered

SMALL, BYTES = Tile(64, 64, 64), Tile(64, 64, 128)
BY_ROW, BY_SQUARE = ("block", 1, 128), ("block", 128, 128)
ENDS = (40, 40, 41, 130)
EARLY = GemmSpec(tile=Tile(2, 8, 512), schedule="simt", constant=("b",))


def quantizing(kind: Any) -> Graph:
    """An epilogue that quantizes D to e4m3 by blocks."""

    def made(acc: epi.Value) -> epi.Output:
        q = epi.quantize(acc, kind)
        return epi.Output(d=q.values, scale=q.scale)

    return epi.define(made)


# name -> (spec, (m, n, k)); for groups M is the total of their rows
CASES: dict[str, tuple[GemmSpec, tuple[int, int, int]]] = {
    "launch": (GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="launch"), (136, 72, 520)),
    # nine splits, reduced by two warpgroups of a CTA
    "launch_adders": (GemmSpec(tile=SMALL, swap=False, split_k=9, split_reduction="launch"), (136, 72, 1032)),
    "launch_clusters": (
        GemmSpec(tile=SMALL, swap=False, cluster=(1, 1, 2), split_k=4, split_reduction="launch"),
        (136, 72, 520),
    ),
    "cluster": (GemmSpec(tile=SMALL, swap=False, cluster=(1, 1, 4), sms=8, stages=2), (136, 136, 520)),
    "cluster_pairs": (GemmSpec(tile=SMALL, swap=False, cluster=(2, 1, 2), sms=8), (136, 136, 520)),
    "workspace": (
        GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="workspace", sms=8),
        (136, 136, 520),
    ),
    "atomic": (
        GemmSpec(tile=SMALL, swap=False, split_k=3, split_reduction="atomic", sms=8),
        (136, 136, 520),
    ),
    "atomic_clusters": (
        GemmSpec(tile=Tile(16, 64, 64), swap=True, cluster=(1, 1, 2), split_k=4, split_reduction="atomic"),
        (24, 136, 520),
    ),
    "stream_k": (GemmSpec(tile=SMALL, swap=False, scheduler="stream_k", sms=5, stages=2), (136, 136, 520)),
    "dynamic": (
        GemmSpec(tile=SMALL, swap=False, scheduler="dynamic", cluster=(2, 1), sms=4, stages=2),
        (264, 136, 264),
    ),
    "dynamic_alone": (
        GemmSpec(tile=SMALL, swap=False, scheduler="dynamic", sms=4, stages=2),
        (264, 136, 264),
    ),
    # unaligned loads by TMA
    "shift": (GemmSpec(tile=SMALL, swap=False, a_load="shift", b_load="shift"), (133, 77, 259)),
    # more columns than a TMA box has, so unaligned loads by cp.async
    "shift_wide": (
        GemmSpec(tile=Tile(64, 256, 16), stages=3, swap=False, b_load="shift", store="direct"),
        (66, 43, 80),
    ),
    "cp_async": (
        GemmSpec(tile=SMALL, swap=False, a_load="cp_async", b_load="cp_async"),
        (130, 78, 258),
    ),
    # D with an unaligned leading dimension, stored in whole sectors, with a partial tile
    "lines": (GemmSpec(tile=SMALL, swap=False, store="staged"), (133, 77, 264)),
    "lines_swapped": (GemmSpec(tile=Tile(32, 64, 64), swap=True, store="staged"), (21, 77, 264)),
    # so narrow that the last columns of a warp are outside D
    "lines_few": (GemmSpec(tile=Tile(64, 16, 64), swap=False, d_dtype="fp32", store="staged"), (69, 3, 264)),
    # a few rows or columns of D on the CUDA cores, whose rows of A and columns of B begin anywhere or at whole words
    "few_rows": (GemmSpec(tile=Tile(3, 8, 512), schedule="simt"), (3, 77, 1029)),
    "few_rows_aligned": (GemmSpec(tile=Tile(1, 8, 2048), schedule="simt"), (1, 77, 2056)),
    # constant columns, whose first words are loaded early, and a B so large that L2 evicts it first
    "few_rows_early_aligned": (EARLY, (2, 77, 1032)),
    "few_rows_early_first_aligned": (EARLY, (2, 121, 65544)),
    "few_rows_first": (GemmSpec(tile=Tile(1, 8, 1024), schedule="simt"), (1, 121, 65537)),
    "few_columns": (GemmSpec(tile=Tile(8, 4, 256), schedule="simt"), (77, 4, 1029)),
    "scaled_tensor": (
        GemmSpec(tile=BYTES, scale_a="tensor", scale_b="tensor", d_dtype="bf16", sms=4),
        (136, 136, 528),
    ),
    "scaled_row": (
        GemmSpec(tile=BYTES, scale_a="row", scale_b="row", d_dtype="bf16", sms=4),
        (136, 136, 528),
    ),
    # the producer also loads scales
    "scaled_block": (
        GemmSpec(tile=BYTES, scale_a=BY_ROW, scale_b=BY_SQUARE, d_dtype="bf16", sms=4),
        (136, 144, 528),
    ),
    "scaled_blocks": (
        GemmSpec(tile=BYTES, scale_a=BY_ROW, scale_b=BY_ROW, d_dtype="bf16", sms=4),
        (136, 144, 528),
    ),
    "scaled_cluster": (
        GemmSpec(tile=BYTES, cluster=(1, 1, 2), scale_a=BY_ROW, scale_b=BY_SQUARE, d_dtype="bf16"),
        (136, 144, 528),
    ),
    # three consumer warpgroups with promotion, which issue WGMMAs in turn
    "scaled_turns": (
        GemmSpec(tile=Tile(192, 64, 128), scale_a="row", scale_b="row", promote=256, d_dtype="bf16", sms=4),
        (200, 136, 528),
    ),
    # ue8m0 scales, which the producer's threads convert and store
    "scaled_exponents": (
        GemmSpec(tile=BYTES, scale_a=BY_ROW, scale_b=BY_SQUARE, d_dtype="bf16", sms=4),
        (136, 144, 528),
    ),
    "int8": (GemmSpec(tile=BYTES, sms=4), (136, 136, 528)),
    "int8_points": (GemmSpec(tile=BYTES, zero_point_a="row", zero_point_b="row", sms=4), (136, 136, 528)),
    # unaligned operands: transposed from M-major A and N-major B, copied row by row, and gathered
    "int8_transposed": (GemmSpec(tile=BYTES, a_load="relayout", b_load="relayout", sms=4), (133, 77, 531)),
    "int8_copied": (GemmSpec(tile=BYTES, a_load="relayout", b_load="relayout", sms=4), (133, 77, 531)),
    "int8_gathered": (GemmSpec(tile=BYTES, a_load="gather", b_load="gather", sms=4), (133, 77, 531)),
    # fp32 operands, rounded as TMA loads them
    "tf32": (GemmSpec(math="tf32", sms=4), (136, 136, 132)),
    # operands split into parts in place of fp32, three GEMMs
    "tf32x3": (GemmSpec(math="tf32x3", sms=4), (136, 136, 132)),
    # D in 8 bits, by TMA and as unaligned rows
    "stored_fp8": (GemmSpec(tile=BYTES, d_dtype="fp8_e4m3", sms=4), (136, 144, 272)),
    "stored_fp8_lines": (
        GemmSpec(tile=BYTES, d_dtype="fp8_e5m2", store="staged", swap=False),
        (133, 77, 272),
    ),
    "stored_int8": (GemmSpec(tile=BYTES, scale_a="tensor", d_dtype="int8", sms=4), (136, 144, 272)),
    # D quantized by the epilogue
    "stored_blocks": (GemmSpec(tile=Tile(64, 128, 128), epilogue=quantizing(BY_ROW), sms=2), (136, 272, 272)),
    "stored_squares": (
        GemmSpec(tile=Tile(128, 128, 128), epilogue=quantizing(BY_SQUARE), sms=2),
        (136, 272, 272),
    ),
    "groups": (GemmSpec(), (144, 136, 264)),
    # tokens along N of the instruction
    "groups_swapped": (GemmSpec(tile=Tile(16, 64, 64), swap=True), (144, 136, 264)),
    "groups_indexed": (GemmSpec(a_load="cp_async"), (144, 136, 264)),
    # tiles from a counter, by clusters that reset it
    "groups_dynamic": (
        GemmSpec(scheduler="dynamic", sms=4, cluster=(2, 1), tile=Tile(64, 64, 64)),
        (144, 136, 264),
    ),
    # groups along K, with an empty one
    "groups_depth": (GemmSpec(), (136, 72, 144)),
    "groups_dynamic_depth": (
        GemmSpec(scheduler="dynamic", schedule="pingpong", sms=2, tile=Tile(64, 64, 32)),
        (136, 72, 144),
    ),
    "groups_wide_depth": (
        GemmSpec(scheduler="dynamic", cluster=(1, 1), sms=2, tile=Tile(256, 192, 16)),
        (136, 72, 144),
    ),
    "groups_scaled_row": (GemmSpec(scale_a="row", scale_b="row", d_dtype="bf16"), (144, 144, 272)),
    "groups_scaled_block": (GemmSpec(scale_a=BY_ROW, scale_b=BY_SQUARE, d_dtype="bf16"), (144, 144, 272)),
    "groups_scaled_depth": (GemmSpec(scale_a="row", scale_b="row", d_dtype="bf16"), (144, 80, 144)),
    # blocks of K that groups share, whose other elements consumers zero
    "groups_scaled_block_depth": (
        GemmSpec(
            scale_a=BY_ROW, scale_b=BY_ROW, tile=Tile(64, 64, 128), schedule="pingpong", sms=4, d_dtype="bf16"
        ),
        (144, 80, 144),
    ),
}
# name -> (kind of scales, value type, (M, K), whether x is contiguous along M); "twin" also quantizes the transpose
QUANTIZED: dict[str, tuple[Any, torch.dtype, tuple[int, int], bool]] = {
    "quantize_row": ("row", torch.int8, (70, 1400), False),
    "quantize_tensor": ("tensor", torch.float8_e4m3fn, (136, 272), False),
    "quantize_blocks": (BY_ROW, torch.float8_e4m3fn, (136, 272), False),
    "quantize_squares": (BY_SQUARE, torch.float8_e5m2, (136, 272), False),
    "quantize_turned": (BY_ROW, torch.float8_e4m3fn, (272, 136), True),
    "quantize_turned_row": ("row", torch.int8, (272, 136), True),
    "quantize_twin_row": ("row", torch.float8_e4m3fn, (136, 272), False),
    "quantize_twin_tensor": ("tensor", torch.int8, (136, 272), False),
    "quantize_twin_blocks": (BY_ROW, torch.float8_e4m3fn, (136, 272), False),
    "quantize_twin_squares": (BY_SQUARE, torch.float8_e5m2, (136, 272), False),
}
# name -> (rows of the result, terms of each, rows and columns of the matrix)
ROW_SUMS = {"rows_copied": (131, 1, 40, 1032), "rows_summed": (131, 3, 40, 264)}
EVERY = (*CASES, *QUANTIZED, *ROW_SUMS)
TOLERANCE = 5e-3  # relative Frobenius error of results in bf16


def _draw(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, shape, generator=generator, device=generator.device, dtype=dtype)
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def _scale(
    kind: object, free: int, k: int, generator: torch.Generator, exponents: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale as an argument of `run`, and as a factor for each element of the operand, (free, k)."""
    shape = {"tensor": (), "row": (free,)}.get(kind) if isinstance(kind, str) else None
    if shape is not None:
        found = torch.rand(shape, generator=generator, device=generator.device) + 0.5
        return found, found.view(-1, 1).expand(free, k)
    _, rows, depth = kind  # type: ignore[misc]
    blocks = (-(-free // rows), -(-k // depth))
    found = torch.rand(blocks, generator=generator, device=generator.device) + 0.5
    if exponents:
        bytes_ = (found * 8 + 120).to(torch.uint8)
        found = torch.exp2(bytes_.float() - 127)
        return bytes_, found.repeat_interleave(rows, 0).repeat_interleave(depth, 1)[:free, :k]
    return found, found.repeat_interleave(rows, 0).repeat_interleave(depth, 1)[:free, :k]


def _dense(name: str, generator: torch.Generator, backend: str | None) -> list[float]:
    """Errors of a product of two matrices, D row-major and column-major."""
    spec, (m, n, k) = CASES[name]
    kinds = {
        "scaled": torch.float8_e4m3fn,
        "tf32": torch.float32,
        "tf32x3": torch.float32,
        "int8": torch.int8,
    }
    device, dtype = generator.device, kinds.get(name.split("_")[0], torch.bfloat16)
    a, b = (_draw(x, generator, dtype) for x in ((m, k), (n, k)))
    left, right = a.double(), b.double()
    more: dict[str, Any] = {}
    if name.startswith("scaled"):
        for x, kind, of, extent in (("a", spec.scale_a, left, m), ("b", spec.scale_b, right, n)):
            more[f"scale_{x}"], factor = _scale(kind, extent, k, generator, name == "scaled_exponents")
            of *= factor
    elif name == "int8_points":
        for x, of in (("a", left), ("b", right)):
            more[f"zero_point_{x}"] = points = _draw((len(of),), generator, dtype)
            of -= points.double()[:, None]
    elif name in ("int8_transposed", "int8_gathered"):
        a, b = a.T.contiguous().T, b.T.contiguous().T
    elif dtype is torch.bfloat16 and not name.startswith("few"):
        b = b.T.contiguous().T
    stored = {torch.float8_e4m3fn: torch.bfloat16, torch.int8: torch.int32}.get(dtype, dtype)
    stored = torch.float32 if spec.d_dtype is DType.FP32 else stored
    gemm = cutegemm.build(spec)
    wanted, errors = left @ right.T, []
    for shape, axes in (((m, n), (0, 1)), ((n, m), (1, 0))):
        poison = torch.nan if stored.is_floating_point else -1
        out = torch.full(shape, poison, device=device, dtype=stored).permute(axes)
        for _ in range(2):
            gemm.run(a, b.T, out=out, backend=backend, **more)
        errors.append(float((out.double() - wanted).norm() / wanted.norm()))
    return errors


def _grouped(name: str, generator: torch.Generator, backend: str | None) -> list[float]:
    """Error of a grouped GEMM whose last rows belong to no group."""
    spec, (m, n, k) = CASES[name]
    device, count, depth = generator.device, len(ENDS), name.endswith("depth")
    eight = name.startswith("groups_scaled")
    dtype = torch.float8_e4m3fn if eight else torch.bfloat16
    ends = torch.tensor([min(x, k) if depth else x for x in ENDS], device=device, dtype=torch.int32)
    a = _draw((m, k), generator, dtype)
    if depth and spec.scheduler == "dynamic":
        a = a.T.contiguous().T  # TMA loads only rows of K
    b = _draw((n, k) if depth else (count, n, k), generator, dtype).mT
    left, right = a.double(), b.double()
    scales: dict[str, Any] = {}
    if eight:
        scales["scale_a"], factor = _scale(spec.scale_a, m, k, generator)
        left *= factor
        drawn = [_scale(spec.scale_b, n, k, generator) for _ in range(1 if depth else count)]
        scales["scale_b"] = drawn[0][0] if depth else torch.stack([x for x, _ in drawn])
        right *= drawn[0][1].T if depth else torch.stack([x.T for _, x in drawn])
    else:
        b = b.contiguous()
    rows = torch.randperm(m, generator=generator, device=device) if name == "groups_indexed" else None
    wanted = group_products(left if rows is None else left[rows], right, ENDS)
    out = torch.full(wanted.shape, torch.nan, device=device, dtype=torch.bfloat16)
    for _ in range(2):
        cutegemm.grouped_mm(a, b, ends, rows=rows, out=out, spec=spec, fallback=backend or "error", **scales)
    return [float((out.double() - wanted).norm() / wanted.norm())]


def _quantized(name: str, generator: torch.Generator, backend: str | None) -> list[float]:
    """The share of values and of scales that differ from torch's operations on the CPU, of x and of its twin."""
    kind, dtype, shape, turned = QUANTIZED[name]
    twin = name.startswith("quantize_twin")
    x = _draw(shape, generator, torch.bfloat16)
    x = x.T.contiguous().T if turned else x
    found: Any
    if backend == "emulator":
        found = kernel.quantized_by(kernel.on_emulator, x, kind, dtype, None, False, twin)
    elif twin:
        found = cutegemm.quantize(x, kind, dtype, transposed=True)
    else:
        found = (cutegemm.quantize(x, kind, dtype), None)
    wanted = (quantized(x.cpu(), kind, dtype), quantized(x.cpu().mT, kind, dtype) if twin else None)
    pairs = [
        (mine, its)
        for one, other in zip(found, wanted)
        if other
        for mine, its in zip(one, other, strict=True)
    ]
    return [_differing(mine, its) for mine, its in pairs]


def _differing(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The share of elements that differ."""
    return float((found.cpu().float() != wanted.cpu().float()).double().mean())


def _stored(name: str, generator: torch.Generator, backend: str | None) -> list[float]:
    """The share of D in 8 bits, and of its scales, that differ from what the exact sums of small integers become."""
    spec, (m, n, k) = CASES[name]
    dtype = torch.int8 if name == "stored_int8" else torch.float8_e4m3fn
    a, b = (
        torch.randint(-2, 3, x, generator=generator, device=generator.device).to(dtype)
        for x in ((m, k), (n, k))
    )
    sums = a.float() @ b.float().T
    gemm, scales = cutegemm.build(spec), {"scale_a": 0.125} if name == "stored_int8" else {}
    if name in ("stored_blocks", "stored_squares"):
        wanted: Any = quantized(sums.cpu(), BY_ROW if name == "stored_blocks" else BY_SQUARE, dtype)
        found = [gemm.run(a, b.T, backend=backend) for _ in range(2)]
        return [_differing(*x) for y in found for x in zip((y.d, y.scale), wanted, strict=True)]
    stored: dict[Any, torch.dtype] = {DType.INT8: torch.int8, DType.FP8_E5M2: torch.float8_e5m2}
    kept = stored.get(spec.d_dtype, torch.float8_e4m3fn)
    wanted = (sums / 8).round().clamp(-128, 127) if scales else sums.to(kept)
    found = [gemm.run(a, b.T, backend=backend, **scales) for _ in range(2)]
    return [_differing(x, wanted) if x.dtype is kept else math.nan for x in found]


def _summed(name: str, generator: torch.Generator, backend: str | None) -> list[float]:
    """The share of sums of rows that differ from sums in fp32 in order; some indices are out of range."""
    sums, terms, *shape = ROW_SUMS[name]
    x = _draw((shape[0], shape[1]), generator, torch.bfloat16)
    index = torch.randint(-2, shape[0] + 2, (sums, terms), generator=generator, device=generator.device)
    emulated = backend == "emulator"
    found = row_sum.sum_by(on_emulator, x, index) if emulated else row_sum.launched(x, index)
    wanted: Any = sum(gathered(x, index[:, j]).float() for j in range(terms))
    return [float("nan") if found is None else float((found != wanted.bfloat16()).double().mean())]


def group_products(a: torch.Tensor, b: torch.Tensor, ends: tuple[int, ...]) -> torch.Tensor:
    """GEMMs of groups in fp64: of rows, (M, N) with zeros after the last group, or along K, (G, M, N)."""
    a, b, begins = a.double(), b.double(), (0, *ends[:-1])
    if b.dim() == 2:
        return torch.stack([a[:, x:y] @ b[x:y] for x, y in zip(begins, ends, strict=True)])
    found = torch.zeros(a.shape[0], b.shape[2], dtype=torch.float64, device=a.device)
    for x, y, matrix in zip(begins, ends, b, strict=True):
        found[x:y] = a[x:y] @ matrix
    return found


def error_of(name: str, device: str = "cuda", backend: str | None = None) -> float:
    """The largest relative error of a case.

    Each GEMM runs twice, so a state that the first run leaves behind affects the second.
    """
    generator = torch.Generator(device).manual_seed(1)
    kinds = {"groups": _grouped, "quantize": _quantized, "rows": _summed, "stored": _stored}
    errors = kinds.get(name.split("_")[0], _dense)(name, generator, backend)
    return max(errors, key=lambda x: (math.isnan(x), x))


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a result is wrong."""
    parser = command_line.parser("sanitized", __doc__)
    parser.add_argument(
        "--only", type=runs.names_among(EVERY), default=list(EVERY), help="cases, comma-separated"
    )
    given, wrong = parser.parse_args(arguments), []
    for name in given.only:
        error = error_of(name)
        if not error <= TOLERANCE:
            wrong.append(name)
        print(f"{'ok' if error <= TOLERANCE else 'WRONG':5} {name:16} relative error {error:.1e}", flush=True)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
