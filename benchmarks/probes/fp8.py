# SPDX-License-Identifier: Apache-2.0
"""fp8 GEMMs compared with torch's and our bf16, for all kinds of scales; int8 and tf32 compared with cuBLAS.

    python -m benchmarks.probes.fp8 --compile-only                       # without a GPU
    python -m benchmarks.probes.fp8 --out FILE --commit HASH [--suites square,prefill,decode]
        [--kinds tensor,row,block,blocks,int8,tf32,tf32x3] [--regime sustained] [--seconds 540] [--all | --fresh]

A and B are K-major (TN), D of fp8 operands is bf16, elements are normally distributed. Contenders of a problem and kind
are checked against fp64, then timed interleaved by graph replay over input sets that exceed L2. `--promote 128,512`
also times ours with each value. Prints microseconds, and at the end the geometric mean and the least of torch's time
over ours for every kind and suite. `benchmarks.probes.beside` describes the file.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import command_line, fresh_draws, runs
from benchmarks.probes import beside
from benchmarks.probes.beside import CHECKED_ROWS, Case, Given, Kind, Ours, normal
from cutegemm import GemmSpec

E4M3 = torch.float8_e4m3fn
BLOCK = 128
SHAPES = {
    "square": [(n, n, n) for n in (1024, 2048, 4096, 8192)],
    "prefill": [
        (4096, 6144, 4096),
        (4096, 4096, 14336),
        (4096, 28672, 8192),
        (4096, 7168, 16384),
        (2048, 2112, 7168),
    ],
    "decode": [(m, n, k) for m in (1, 16, 64) for n, k in ((4096, 4096), (7168, 7168), (8192, 28672))],
}
# kind -> extents of the blocks of A and B along (M or N, K); 0 is the whole axis
SCALED = {
    "tensor": ((0, 0), (0, 0)),
    "row": ((1, 0), (1, 0)),
    "block": ((1, BLOCK), (BLOCK, BLOCK)),
    "blocks": ((1, BLOCK), (1, BLOCK)),
}
FP32 = ("tf32", "tf32x3")
INT8 = "int8"
KINDS = (*SCALED, INT8, *FP32)


@dataclass(frozen=True)
class Operands:
    """One input set: fp8 and bf16 matrices with B as N x K, and scales as (blocks of rows, blocks of K)."""

    a: torch.Tensor
    b: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    a16: torch.Tensor
    b16: torch.Tensor


def quantised(x: torch.Tensor, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in e4m3 and its scales: the largest magnitude of each block over e4m3's maximum."""
    rows, depth = (full if size == 0 else size for size, full in zip(block, x.shape))
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % depth, 0, -x.shape[0] % rows))
    tiles = padded.unflatten(1, (-1, depth)).unflatten(0, (-1, rows))  # (blocks, rows, blocks of K, depth)
    scale = tiles.abs().amax((1, 3)).clamp(min=1e-12) / torch.finfo(E4M3).max
    shrunk = (tiles / scale[:, None, :, None]).flatten(2, 3).flatten(0, 1)
    return shrunk[: x.shape[0], : x.shape[1]].to(E4M3).contiguous(), scale


def drawn(kind: str, case: Case, seed: int, device: str) -> Operands:
    """Normally distributed operands."""
    a16, b16 = (normal(x, case.k, 2 * seed + i, device) for i, x in enumerate((case.m, case.n)))
    (a, scale_a), (b, scale_b) = (quantised(x, y) for x, y in zip((a16, b16), SCALED[kind], strict=True))
    # torch needs scales of 1 x 128 blocks column-major, and other scales with a row pitch that is a multiple of four
    lies = {True: lambda x: x.T.contiguous().T, False: _padded}
    scale_a, scale_b = (
        lies[block[0] == 1](x) if block[1] else x
        for x, block in zip((scale_a, scale_b), SCALED[kind], strict=True)
    )
    return Operands(a, b, scale_a, scale_b, a16, b16)


def _padded(x: torch.Tensor) -> torch.Tensor:
    wide = torch.nn.functional.pad(x, (0, -x.shape[1] % 4))
    return wide[:, : x.shape[1]]


def exact(kind: str, x: Operands) -> torch.Tensor:
    """The first rows of D in fp64."""

    def whole(values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
        rows, depth = (full if size == 0 else size for size, full in zip(block, values.shape))
        wide = scale.double().repeat_interleave(rows, 0).repeat_interleave(depth, 1)
        return values.double() * wide[: values.shape[0], : values.shape[1]]

    a, b = (whole(*y) for y in zip((x.a, x.b), (x.scale_a, x.scale_b), SCALED[kind], strict=True))
    return a[:CHECKED_ROWS] @ b.T


def ours(kind: str, promote: Any) -> Ours:
    """Our GEMM with one kind of scale."""
    names = [("block", *x) if x[1] else "row" if x[0] else "tensor" for x in SCALED[kind]]
    spec = GemmSpec(scale_a=names[0], scale_b=names[1], promote=promote, d_dtype="bf16")
    shape = {"tensor": (), "row": (-1,)}.get(kind)

    def given(x: Operands) -> Given:
        a, b = (y if shape is None else y.reshape(shape) for y in (x.scale_a, x.scale_b))
        return x.a, x.b.T, {"scale_a": a, "scale_b": b}

    return Ours(spec, given)


def torchs(kind: str, fast: bool) -> Callable[[Operands], torch.Tensor]:
    """torch's GEMM with the same kind of scale."""

    def run(x: Operands) -> torch.Tensor:
        whole = kind == "tensor"
        scales = (x.scale_a.reshape(()), x.scale_b.reshape(())) if whole else (x.scale_a, x.scale_b.T)
        return torch._scaled_mm(x.a, x.b.T, *scales, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


def scaled(kind: str, promotes: Sequence[Any]) -> Kind:
    """fp8 operands with scales: ours for each promotion, torch's, and our bf16."""
    # scales of blocks determine the promotion interval
    blocks = SCALED[kind][0][1] > 0
    own = {f"ours {x}": ours(kind, x) for x in (["auto"] if blocks else promotes)}
    fasts = (False,) if blocks else (True, False)
    return Kind(
        dtype="fp8_e4m3",
        size=1,
        draw=functools.partial(drawn, kind),
        exact=functools.partial(exact, kind),
        ours=own | {"ours bf16": Ours(GemmSpec(), lambda x: (x.a16, x.b16.T, {}))},
        others={f"torch {'fast' if x else 'exact'}": torchs(kind, x) for x in fasts},
        # with scales of rows torch always accumulates fast
        baseline="torch exact",
    )


def integers() -> Kind:
    """int8 operands with an exact D in int32: ours, and torch's if it supports the problem."""

    def draw(case: Case, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (
            normal(x, case.k, 2 * seed + i, device).mul(32).clamp(-128, 127).to(torch.int8)
            for i, x in enumerate((case.m, case.n))
        )
        return a, b.T

    return Kind(
        dtype="int8",
        size=1,
        draw=draw,
        exact=lambda x: x[0][:CHECKED_ROWS].double() @ x[1].double(),
        ours={"ours int8": Ours(GemmSpec(d_dtype="int32"), lambda x: (*x, {}))},
        others={"torch int8": lambda x: torch._int_mm(*x)},
        baseline="torch int8",
    )


def single(math: str) -> Kind:
    """fp32 operands on the tensor cores: ours, and cuBLAS with and without tf32."""

    def draw(case: Case, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (
            normal(x, case.k, 2 * seed + i, device, dtype=torch.float32)
            for i, x in enumerate((case.m, case.n))
        )
        return a, b.T

    def cublas(tf32: bool, x: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch.mm(*x)

    names = {"torch tf32": True, "torch fp32": False}
    return Kind(
        dtype="fp32",
        size=4,
        draw=draw,
        exact=lambda x: x[0][:CHECKED_ROWS].double() @ x[1].double(),
        ours={f"ours {math}": Ours(GemmSpec(math=math), lambda x: (*x, {}))},
        others={name: functools.partial(cublas, tf32) for name, tf32 in names.items()},
        baseline="torch tf32" if math == "tf32" else "torch fp32",
    )


def kinds(promotes: Sequence[Any]) -> dict[str, Kind]:
    """All kinds by name."""
    eight = {name: scaled(name, promotes) for name in SCALED} | {INT8: integers()}
    return eight | {name: single(name) for name in FP32}


def promotions(text: str) -> list[Any]:
    """Parse "auto", "none" and numbers, comma-separated.

    Raises:
        ArgumentTypeError: a word is something else.
    """
    words = {"none": None, "auto": "auto"}
    try:
        return [words[x] if x in words else int(x) for x in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be auto, none or numbers") from None


def main(arguments: Sequence[str]) -> int:
    """Time every kind on every suite; returns 1 if ours refused a problem or was wrong."""
    parser = command_line.parser("probes.fp8", __doc__)
    beside.add_options(parser, kinds(["auto"]), "short")
    names = (*SHAPES, *fresh_draws.FAMILIES)
    parser.add_argument(
        "--suites",
        type=runs.names_among(names),
        default=list(SHAPES),
        help="suites, or families with --fresh",
    )
    parser.add_argument("--promote", type=promotions, default=["auto"])
    args = parser.parse_args(arguments)
    beside.settle(parser, args)
    every = kinds(args.promote)
    if args.fresh:
        todo = beside.drawn(every, args.kinds, args.suites, args.seed, args.count)
    else:
        shapes = beside.shapes_of(args.suites, SHAPES, args.all)
        todo = beside.cases(every, args.kinds, shapes, ["kk"])
    return beside.carry_out(args, every, list(todo))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
