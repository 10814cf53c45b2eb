# SPDX-License-Identifier: Apache-2.0
"""What `batch_invariant=True` costs: our kernels under it beside those that are free to choose.

    python -m benchmarks.invariant --out benchmarks/results/invariant.json --commit HASH [--suites decode,prefill]

The problems are those of the suites; a row's ratio is the free kernel's time over the invariant one's, measured in the
same rounds. Where nobody would cut K, both have the same tiles, and differ at most in the direction of walks along K.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from benchmarks import command_line, contenders, gemm, results, runs, suites, timing
from benchmarks.results import Case
from cutegemm.running.backends.launcher import current_device

SUITE = "invariant_"  # before the name of the suite whose problems they are
NAMES = [contenders.OURS, contenders.INVARIANT]


def cases(names: list[str]) -> list[Case]:
    """The problems of suites, under names of their own."""
    return [dataclasses.replace(x, suite=SUITE + x.suite) for x in gemm.select(names, [], None, ["kk"])]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("invariant", __doc__)
    add = parser.add_argument
    add("--suites", type=runs.names_among(suites.PRODUCTS), default=["decode", "prefill"])
    add("--regime", choices=tuple(timing.REGIMES), default="short")
    runs.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command; 1 when a contender refused a problem or was wrong."""
    args = parse(arguments)
    console, sensors, out = runs.open_run(args)
    todo = cases(args.suites)
    bench = gemm.Bench(NAMES, timing.REGIMES[args.regime], sensors, baseline=contenders.OURS)
    left = [case for case in todo if not out.has(bench.keys(case))]
    console.print(f"{contenders.ready(NAMES, left, current_device()[1])} kernels ready")
    outcome = runs.run(todo, bench, out, seconds=args.seconds, console=console, describe=gemm.describe)
    for line in results.summary(out.rows):
        console.print(
            f"{line['suite']}: {line['geomean']:.3f} of the free kernels' speed, least {line['least']:.3f}"
        )
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
