# SPDX-License-Identifier: Apache-2.0
"""8-bit operands of all majors and alignments compared with bf16 in cuBLAS, and int8 with `torch._int_mm`.

    python -m benchmarks.probes.majors --compile-only                    # without a GPU
    python -m benchmarks.probes.majors --out FILE --commit HASH [--kinds fp8,int8] [--seconds 540] [--all | --fresh]

fp8 has a scale per tensor and D in bf16: NN ("mk"), NT ("mn") and TT ("kn") of suites square and prefill, and TN and TT
of problems with unaligned leading dimensions. Copies of operands are part of every call. It is compared with cuBLAS and
our bf16 on operands of the same layout. int8 is TN with D in int32. Contenders are checked against fp64, then timed
interleaved by graph replay over input sets that exceed L2. Prints microseconds, and at the end the geometric mean and
the least of torch's time over ours. `benchmarks.probes.beside` describes the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks import command_line, fresh_draws, runs
from benchmarks.probes import beside
from benchmarks.probes.beside import CHECKED_ROWS, Case, Kind, Ours, normal
from benchmarks.suites import SUITES
from cutegemm import GemmSpec

E4M3 = torch.float8_e4m3fn
SHAPES = {
    "square": [(n, n, n) for n in (1024, 2048, 4096, 8192)],
    "prefill": [(4096, 6144, 4096), (4096, 4096, 14336), (4096, 28672, 8192), (2048, 2112, 7168)],
    "odd": SUITES["odd"],
    "odd_skinny": SUITES["odd_skinny"],
}
TURNED = tuple(fresh_draws.MAJORS.values())
# suite -> majors of fp8
MAJORS = {"square": TURNED, "prefill": TURNED, "odd": ("kk", "kn"), "odd_skinny": ("kk", "kn")}
# families of --fresh by kind; a family fixes its majors
FAMILIES = {
    "fp8": ("odd", "odd_skinny", *(f"{x}_{y}" for x in ("square", "prefill") for y in fresh_draws.MAJORS)),
    "int8": ("square", "prefill"),
}


@dataclass(frozen=True)
class Operands:
    """One input set: 8-bit and bf16 matrices of the same layout, B as K x N."""

    a: torch.Tensor
    b: torch.Tensor
    a16: torch.Tensor
    b16: torch.Tensor
    scale: torch.Tensor


def drawn(dtype: torch.dtype, case: Case, seed: int, device: str) -> Operands:
    """Normally distributed operands; integers have a standard deviation of 30."""
    extents = ((case.m, case.k, case.majors[0] == "k"), (case.k, case.n, case.majors[1] == "n"))
    found = [normal(*x[:2], 2 * seed + i, device, by_rows=x[2]) for i, x in enumerate(extents)]
    if not dtype.is_floating_point:
        found = [(30 * x).round().clamp(-128, 127) for x in found]
    a, b = (x.to(dtype) for x in found)
    return Operands(a, b, *found, torch.ones((), device=device))


def exact(x: Operands) -> torch.Tensor:
    """The first rows of D in fp64."""
    return x.a[:CHECKED_ROWS].double() @ x.b.double()


BF16 = Ours(GemmSpec(), lambda x: (x.a16, x.b16, {}))
KINDS = {
    "fp8": Kind(
        dtype="fp8_e4m3",
        size=1,
        draw=lambda *x: drawn(E4M3, *x),
        exact=exact,
        ours={
            "ours": Ours(
                GemmSpec(scale_a="tensor", scale_b="tensor", d_dtype="bf16"),
                lambda x: (x.a, x.b, {"scale_a": x.scale, "scale_b": x.scale}),
            ),
            "ours bf16": BF16,
        },
        others={"torch bf16": lambda x: torch.mm(x.a16, x.b16)},
        baseline="torch bf16",
    ),
    "int8": Kind(
        dtype="int8",
        size=1,
        draw=lambda *x: drawn(torch.int8, *x),
        exact=exact,
        ours={"ours": Ours(GemmSpec(), lambda x: (x.a, x.b, {})), "ours bf16": BF16},
        others={"torch int8": lambda x: torch._int_mm(x.a, x.b)},
        baseline="torch int8",
    ),
}


def cases(names: Sequence[str], suites: Sequence[str], every: bool) -> Iterator[Case]:
    """The problems of the suites: fp8 in each suite's majors, integers in TN if torch supports them."""
    for name in names:
        for suite, shapes in beside.shapes_of(suites, SHAPES, every).items():
            if name == "fp8":
                yield from beside.cases(KINDS, [name], {suite: shapes}, MAJORS[suite])
            elif not suite.startswith("odd"):
                yield from beside.cases(KINDS, [name], {suite: shapes}, ["kk"])


def main(arguments: Sequence[str]) -> int:
    """Time every kind on every suite; returns 1 if ours refused a problem or was wrong."""
    parser = command_line.parser("probes.majors", __doc__)
    beside.add_options(parser, KINDS, "sustained")
    parser.add_argument("--suites", type=runs.names_among(tuple(SHAPES)), default=list(SHAPES))
    args = parser.parse_args(arguments)
    beside.settle(parser, args)
    todo = list(cases(args.kinds, args.suites, args.all))
    if args.fresh:
        todo = [
            x
            for name in args.kinds
            for x in beside.drawn(KINDS, [name], FAMILIES[name], args.seed, args.count)
        ]
    return beside.carry_out(args, KINDS, todo)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
