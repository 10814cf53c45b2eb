# SPDX-License-Identifier: Apache-2.0
"""The cost of `batch_invariant=True`: our batch-invariant kernels compared with unrestricted ones.

    python -m benchmarks.invariant --out benchmarks/results/invariant.json --commit HASH [--suites decode,prefill]

A row's ratio is the unrestricted kernel's time over the invariant one's, measured in the same rounds. Without split-K
both have the same tiles and differ at most in the direction of the loop along K.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys

from rich.console import Console

from benchmarks import command_line, contenders, gemm, results, runs, suites, timing
from benchmarks.results import Case, Row

SUITE = "invariant_"  # prefix of the suite
NAMES = [contenders.OURS, contenders.INVARIANT]


def cases(names: list[str]) -> list[Case]:
    """The problems of suites, with prefixed suite names."""
    return [dataclasses.replace(x, suite=SUITE + x.suite) for x in gemm.select(names, [], None, ["kk"])]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("invariant", __doc__)
    add = parser.add_argument
    add("--suites", type=runs.names_among(suites.PRODUCTS), default=["decode", "prefill"])
    add("--regime", choices=tuple(timing.REGIMES), default="short")
    runs.add_options(parser)
    parser.set_defaults(contenders=NAMES)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender refused a problem or was wrong."""
    args = parse(arguments)
    bench = functools.partial(gemm.Bench, baseline=contenders.OURS)
    return gemm.carry_out(args, cases(args.suites), bench, gemm.describe, summarize)


def summarize(rows: list[Row], console: Console) -> None:
    """Print the relative speed per suite."""
    for line in results.summary(rows):
        console.print(
            f"{line['suite']}: {line['geomean']:.3f} of the free kernels' speed, least {line['least']:.3f}"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
