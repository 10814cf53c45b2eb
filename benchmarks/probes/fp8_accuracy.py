# SPDX-License-Identifier: Apache-2.0
"""Errors of GEMMs whose operands are quantized to 8 bits, for every kind of scales, by K.

    python -m benchmarks.probes.fp8_accuracy [--k 512,2048] [--device cpu] [--out FILE --commit HASH]

X and W of ROWS rows are drawn, quantized by `cutegemm.quantize` and multiplied, with D in fp32. An error is the mean
over D's rows of norm(D - exact) / norm(exact); exact is X Wᵀ in fp64 of what was drawn. On a CPU the reference backend
multiplies, whose sums are fp32's; a Hopper GPU also has the error of its tensor cores, about a twentieth of these.
Prints the table of docs/fp8.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

import torch

import cutegemm
from benchmarks import command_line
from benchmarks.probe_tables import SCALES, Lines
from benchmarks.probes import untimed
from benchmarks.results import Row
from benchmarks.suite_tables import markdown
from cutegemm import GemmSpec
from cutegemm.epilogue.scales import BLOCKS, ROW, TENSOR, Kind

SUITE = "fp8_accuracy"
ROWS = 128  # of X and of W
DEPTHS = (512, 2048, 8192, 28672)
E4M3 = torch.float8_e4m3fn
# name -> kinds of the scales of X and W, and their type; the first names are those of `benchmarks.probes.fp8`
CONTENDERS: dict[str, tuple[Kind, Kind, torch.dtype]] = {
    "tensor": (TENSOR, TENSOR, E4M3),
    "row": (ROW, ROW, E4M3),
    "block": (BLOCKS[0], BLOCKS[1], E4M3),
    "blocks": (BLOCKS[0], BLOCKS[0], E4M3),
    "int8": (ROW, ROW, torch.int8),
}
BF16 = "bf16"
WORDS = SCALES | {"int8": "int8, of rows", BF16: "bf16, none"}
# name -> (one in so many elements of K, one in so many rows of X, factor of these columns, of these rows)
OPERANDS = {
    "normal": (1, 1, 1.0, 1.0),
    "columns of X × 64": (128, 1, 64.0, 1.0),
    "rows of X × 32768": (1, 16, 1.0, 32768.0),
}
# problems of docs/fp8.md whose times `benchmarks.probes.fp8` measured
TIMED = ((8192, 8192, 8192), (4096, 28672, 8192), (16, 8192, 28672))


def drawn(operands: str, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """X and W of ROWS x K in fp32: normally distributed, some columns or rows of X larger."""
    draw = torch.Generator().manual_seed(k)
    x, w = (torch.randn(ROWS, k, generator=draw) for _ in range(2))
    columns, rows, wide, high = OPERANDS[operands]
    x[:, ::columns] *= wide
    x[::rows] *= high
    return x.to(device), w.to(device)


def product(contender: str, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """X Wᵀ in fp32, of quantized operands or of operands in bf16."""
    if contender == BF16:
        return cutegemm.linear(
            x.bfloat16(), w.bfloat16(), spec=GemmSpec(d_dtype="fp32"), fallback="reference"
        )
    kind_x, kind_w, dtype = CONTENDERS[contender]
    (a, scale_a), (b, scale_b) = cutegemm.quantize(x, kind_x, dtype), cutegemm.quantize(w, kind_w, dtype)
    spec = GemmSpec(scale_a=kind_x, scale_b=kind_w, d_dtype="fp32")
    found: torch.Tensor = cutegemm.linear(
        a, b, scale_a=scale_a, scale_b=scale_b, spec=spec, fallback="reference"
    )
    return found


def error(contender: str, operands: str, k: int, device: str) -> float:
    """The mean over rows of the error of D relative to the norm of the exact row."""
    x, w = drawn(operands, k, device)
    exact = x.double() @ w.double().T
    off = (product(contender, x, w).double() - exact).norm(dim=1) / exact.norm(dim=1)
    return float(off.mean())


def measured(depths: Sequence[int], device: str) -> Iterator[Row]:
    """A row for every kind of operands, K and contender."""
    for operands in OPERANDS:
        for k in depths:
            for name in (*CONTENDERS, BF16):
                what = {"suite": SUITE, "operands": operands, "m": ROWS, "n": ROWS, "k": k, "contender": name}
                yield what | {"error": error(name, operands, k, device)}


def lines(rows: Iterable[Row]) -> Lines:
    """Head and lines of the table of errors in percent: a line for each kind of operands and K."""
    found = {(x["operands"], x["k"], x["contender"]): f"{100 * x['error']:.2f}" for x in rows}
    names = (*CONTENDERS, BF16)
    keys = dict.fromkeys((operands, k) for operands, k, _ in found)
    head = ["operands", "K", *(WORDS[x] for x in names)]
    return head, [[what, str(k), *(found.get((what, k, x), "") for x in names)] for what, k in keys]


def time_lines(rows: Iterable[Row]) -> Lines:
    """Head and lines of the table of times in µs of `benchmarks.probes.fp8`: a line for each kind of scales."""
    found = {(x["what"].split()[0], x["contender"], (x["m"], x["n"], x["k"])): x["us"] for x in rows}
    head = ["scales", *(f"{m} × {n} × {k}" for m, n, k in TIMED)]
    kinds = [(words, kind, "ours auto") for kind, words in SCALES.items()]
    kinds.append((WORDS[BF16], "tensor", "ours bf16"))
    return head, [[words, *(f"{found[kind, name, x]:.1f}" for x in TIMED)] for words, kind, name in kinds]


def depths_of(text: str) -> list[int]:
    """Parse numbers, comma-separated.

    Raises:
        ArgumentTypeError: the text is malformed.
    """
    try:
        found = [int(x) for x in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be positive numbers, as in 512,2048")
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the table, and write the results if --out is given."""
    parser = command_line.parser("probes.fp8_accuracy", __doc__)
    parser.add_argument("--k", type=depths_of, default=list(DEPTHS))
    args = untimed.parsed(parser, arguments)
    rows = list(measured(args.k, args.device))
    print("\n".join(markdown(*lines(rows))))
    untimed.save(args, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
