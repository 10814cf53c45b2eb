# SPDX-License-Identifier: Apache-2.0
"""cutegemm, cuBLAS, quack-kernels and torch.compile on three named problems of each suite, all in one run.

    python -m benchmarks.peers --out benchmarks/results/peers.json --commit HASH [--suites square,decode] [--part 0/4]

Each contender is checked before it is timed. A contender that is not installed, refuses a problem (quack: rows that are
not a multiple of 16 bytes) or is wrong has a row with the reason and no times. Large problems use the sustained regime,
problems of a few microseconds the short one. The same command continues a run that stopped. Parts of a run can use one
GPU each (`CUDA_VISIBLE_DEVICES`) and write separate files, which `python -m benchmarks.results` merges.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks import command_line, contenders, gemm, libraries, peer_rows, results, runs, suites, timing
from benchmarks.results import Case, Row

NAMES = [*contenders.NAMES, *libraries.NAMES]
# suites of problems too small to reach the power cap
SHORT = ("decode", "odd_skinny", "small")
Part = tuple[int, int]


class Bench(gemm.Bench):
    """Writes rows for contenders that are left out; only ours and cuBLAS count as failures."""

    def regime(self, case: Case) -> timing.Regime:
        """The short regime for suites of small problems, else that of the run."""
        small = case.suite.removeprefix(peer_rows.PREFIX) in SHORT
        return timing.REGIMES["short"] if small else super().regime(case)

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, and (contender, reason) if ours or cuBLAS has no times."""
        timed, failures = super().measure(case)
        rows = {row["contender"]: row | {"refused": None} for row in timed}
        regime = self.regime(case).name
        rows |= {name: peer_rows.left_out(case, name, why, regime) for name, why in failures}
        return [rows[name] for name in self.names], [x for x in failures if x[0] in contenders.NAMES]


def cases(names: list[str], part: Part = (0, 1)) -> list[Case]:
    """The named problems of suites, in suites with a prefix; part (i, n) has every n-th."""
    found = [
        Case(
            suite=peer_rows.PREFIX + suite,
            dtype=gemm.DEFAULT_DTYPE,
            majors="kk",
            batch=batch,
            m=m,
            n=n,
            k=k,
        )
        for suite in names
        for batch, m, n, k in suites.PEERS[suite].values()
    ]
    which, parts = part
    return found[which::parts]


def describe(row: Row) -> str:
    """A row on one line: its times, or why it has none."""
    if row["refused"] is None:
        energy = "" if row["tflop_per_j"] is None else f" | {row['tflop_per_j']:.3f} TFLOP/J"
        return gemm.describe(row) + energy
    size = results.size_of(row)
    return f"{row['suite']:8} {size:20} {row['contender']}: left out: {row['refused']}"


def summarize(rows: list[Row], console: Console) -> None:
    """Print our speed-up over each other contender."""
    for suite, peers in peer_rows.means(rows).items():
        words = [
            f"{peer} {mean:.3f} (least {least:.3f} of {count})"
            for peer, (mean, least, count) in peers.items()
        ]
        console.print(f"{suite}: times as fast as {', '.join(words)}", markup=False)


def part_of(text: str) -> Part:
    """Parse a part such as "0/4", the first of four.

    Raises:
        argparse.ArgumentTypeError: the text is malformed, or there is no such part.
    """
    try:
        which, parts = map(int, text.split("/"))
    except ValueError:
        which, parts = 0, 0
    if not 0 <= which < parts:
        raise argparse.ArgumentTypeError(f"{text}: must be I/N with 0 <= I < N, as in 0/4")
    return which, parts


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("peers", __doc__)
    add = parser.add_argument
    add("--suites", type=runs.names_among(tuple(suites.PEERS)), default=list(suites.PEERS))
    add("--contenders", type=runs.names_among(NAMES), default=NAMES)
    add("--regime", choices=tuple(timing.REGIMES), default="sustained", help="regime of large problems")
    add("--part", type=part_of, default=(0, 1), metavar="I/N", help="the I-th of N parts, from 0")
    runs.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if cutegemm or cuBLAS refused a problem or was wrong."""
    args = parse(arguments)
    return gemm.carry_out(args, cases(args.suites, args.part), Bench, describe, summarize)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
