# SPDX-License-Identifier: Apache-2.0
"""Losses of a small model that trains in fp8, beside torch's bf16.

    python -m benchmarks.probes.fp8_training [--steps 200] [--width 1024] [--rows 4096] [--seeds 0,1,2]
        [--device cpu] [--out FILE --commit HASH]

A perceptron of LAYERS square layers learns another one from random inputs of few dimensions, by Adam with fp32 weights.
Its GEMMs multiply in bf16 by `torch.nn.functional.linear`, or in fp8 by `cutegemm.linear(..., fp8=recipe)`, forward and
backward. A seed draws both models and all inputs, so contenders of a seed see the same numbers. The difference of a
contender is that of its mean loss over the last LAST steps from bf16's, relative to bf16's. On a CPU the reference
backend multiplies: a few steps of a narrow model check the command there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch.nn import functional as F

import cutegemm
from benchmarks import command_line
from benchmarks.probe_tables import SCALES, Lines
from benchmarks.probes import untimed
from benchmarks.results import Row
from benchmarks.suite_tables import markdown

SUITE = "fp8_training"
LAYERS = 3
DIMENSIONS = 64  # of the inputs, which a fixed matrix maps to the layers' width
RATE = 1e-3  # of Adam
LAST = 20  # steps whose mean loss is compared
TENTHS = 10  # means of the losses that a row keeps
BF16 = "bf16"
RECIPES = ("row", "block")
Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def linear_of(contender: str) -> Linear:
    """The function that multiplies x by a weight."""
    if contender == BF16:
        return F.linear
    return lambda x, weight: cutegemm.linear(x, weight, fp8=contender, fallback="reference")


def output(linear: Linear, weights: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The perceptron's output, in bf16."""
    for i, weight in enumerate(weights):
        x = linear(x if i == 0 else F.gelu(x), weight.bfloat16())
    return x


def losses(linear: Linear, seed: int, steps: int, width: int, rows: int, device: str) -> list[float]:
    """The loss before each step of training."""
    draw = torch.Generator(device).manual_seed(seed)

    def drawn(m: int, n: int) -> torch.Tensor:
        return torch.randn(m, n, generator=draw, device=device)

    spread = drawn(DIMENSIONS, width) * DIMENSIONS**-0.5
    teacher = [drawn(width, width) * width**-0.5 for _ in range(LAYERS)]
    weights = [(drawn(width, width) * width**-0.5).requires_grad_() for _ in range(LAYERS)]
    optimizer = torch.optim.Adam(weights, RATE)
    found = []
    for _ in range(steps):
        x = (drawn(rows, DIMENSIONS) @ spread).bfloat16()
        with torch.no_grad():
            wanted = output(F.linear, teacher, x).float()
        loss = F.mse_loss(output(linear, weights, x).float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # read at the end: a copy to the host would wait for the GPU in each step
        found.append(loss.detach())
    return torch.stack(found).tolist()


def measured(seeds: Sequence[int], steps: int, width: int, rows: int, device: str) -> Iterator[Row]:
    """A row for every seed and contender."""
    for seed in seeds:
        plain = 0.0
        for contender in (BF16, *RECIPES):
            start = time.perf_counter()
            found = losses(linear_of(contender), seed, steps, width, rows, device)
            last = statistics.fmean(found[-LAST:])
            plain = last if contender == BF16 else plain
            tenth = max(1, steps // TENTHS)
            yield {
                "suite": SUITE,
                "contender": contender,
                "seed": seed,
                "steps": steps,
                "m": rows,
                "n": width,
                "k": width,
                "layers": LAYERS,
                "first": found[0],
                "final": found[-1],
                "last": last,
                "difference": last / plain - 1,
                "means": [statistics.fmean(found[i : i + tenth]) for i in range(0, steps, tenth)],
                "seconds": time.perf_counter() - start,
            }


def lines(rows: Iterable[Row]) -> Lines:
    """Head and lines of the table: a line for each seed and contender."""
    head = [
        "seed",
        "scales",
        "first loss",
        "final loss",
        f"mean of the last {LAST}",
        "of the first",
        "to bf16",
    ]
    found = []
    for x in rows:
        to_bf16 = "" if x["contender"] == BF16 else f"{100 * x['difference']:+.2f} %"
        values = (f"{x[name]:.6f}" for name in ("first", "final", "last"))
        scales = SCALES.get(x["contender"], "none, bf16")
        share = f"{100 * x['last'] / x['first']:.2f} %"
        found.append([str(x["seed"]), scales, *values, share, to_bf16])
    return head, found


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each recipe: the mean and the largest relative difference over seeds."""
    for recipe in RECIPES:
        off = [x["difference"] for x in rows if x["contender"] == recipe]
        most = max(off, key=abs)
        mean = statistics.fmean(off)
        yield f"scales {SCALES[recipe]}: {100 * mean:+.2f} % of bf16's loss, at most {100 * most:+.2f} %"


def seeds_of(text: str) -> list[int]:
    """Parse numbers, comma-separated.

    Raises:
        ArgumentTypeError: the text is malformed.
    """
    found = text.split(",")
    if not all(x.isdecimal() for x in found):
        raise argparse.ArgumentTypeError(f"{text}: must be numbers, as in 0,1,2")
    return [int(x) for x in found]


def main(arguments: Sequence[str]) -> int:
    """Train, print the table, and write the results if --out is given."""
    parser = command_line.parser("probes.fp8_training", __doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--seeds", type=seeds_of, default=[0, 1, 2])
    args = untimed.parsed(parser, arguments)
    if min(args.steps, args.width, args.rows) < 1:
        parser.error("--steps, --width and --rows must be at least 1")
    rows = list(measured(args.seeds, args.steps, args.width, args.rows, args.device))
    print("\n".join([*markdown(*lines(rows)), "", *summary(rows)]))
    untimed.save(args, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
