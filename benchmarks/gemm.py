# SPDX-License-Identifier: Apache-2.0
"""Speed of cutegemm beside cuBLAS on the project's suites, each problem checked before it is timed.

    python -m benchmarks.gemm --suites square,prefill --out benchmarks/results/gemm.json --commit HASH

Results are written after every problem; the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import progress
from rich.console import Console
from rich.table import Table

from benchmarks import contenders, correctness, environment, inputs, results, timing
from benchmarks.results import Case, Results, Row
from benchmarks.suites import SUITES
from cutegemm.errors import GemmError

LOG_COLUMNS = 120  # of output that goes to a file or pipe


@dataclass(frozen=True)
class Outcome:
    """What a run over cases came to.

    Attributes:
        skipped: problems that an earlier run had measured.
        measured: problems measured now.
        failures: (problem and contender, why), of contenders that refused a problem or were wrong.
        left: problems not reached in time.
    """

    skipped: int
    measured: int
    failures: list[tuple[str, str]]
    left: int


class Bench:
    """Checks and times one problem after another on the current CUDA device."""

    def __init__(self, names: list[str], regime: timing.Regime, sensors: timing.Readable) -> None:
        self.names = names
        self._regime = regime
        self._sensors = sensors

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that measuring `case` gives."""
        return [asdict(case) | {"contender": name, "regime": self._regime.name} for name in self.names]

    def measure(self, case: Case) -> tuple[list[Row], list[tuple[str, str]]]:
        """Rows of the contenders that are right, and (contender, why) of the others."""
        sets = inputs.make_sets(case, "cuda", inputs.set_count(case))
        right, failures = [], []
        for name in self.names:
            try:
                contender = contenders.make(name, case)
                correctness.check(contender.call, sets[0])
                right.append(contender)
            except (GemmError, correctness.WrongResult) as error:
                failures.append((name, str(error)))
        times = timing.measure(right, sets, self._regime, device=timing.Device(), sensors=self._sensors)
        plans = {contender.name: contender.plan for contender in right}
        rows = results.case_rows(
            case, times, plans=plans, regime=self._regime.name, baseline=contenders.BASELINE
        )
        return rows, failures


def run(
    cases: list[Case],
    bench: Bench,
    out: Results,
    *,
    max_seconds: float,
    console: Console,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure every case that `out` lacks until `max_seconds` would be exceeded; `out` is written after each.

    A case starts only when the longest so far would still fit.
    """
    todo = [case for case in cases if not out.has(bench.keys(case))]
    failures: list[tuple[str, str]] = []
    start, longest, done = clock(), 0.0, 0
    with _progress(console) as bar:
        task = bar.add_task("GEMM", total=len(todo))
        for case in todo:
            began = clock()
            if began - start + longest > max_seconds:
                break
            bar.update(task, description=str(case))
            rows, failed = bench.measure(case)
            out.put(rows)
            for row in rows:
                console.print(describe(row))
            for name, why in failed:
                failures.append((f"{case} {name}", why))
                console.print(f"{case} {name}: NOT TIMED: {why}", markup=False)
            longest = max(longest, clock() - began)
            done += 1
            bar.advance(task)
    return Outcome(len(cases) - len(todo), done, failures, len(todo) - done)


def _progress(console: Console) -> progress.Progress:
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=console,
    )


def describe(row: Row) -> str:
    """A row on one line: us | TFLOP/s | x baseline."""
    ratio = "" if row["ratio"] is None else f" | x {row['baseline']} {row['ratio']:.3f}"
    size = f"{row['m']}x{row['n']}x{row['k']}"
    return (
        f"{row['suite']:8} {size:20} {row['dtype']} {row['majors']} {row['contender']:10} "
        f"{row['us']:10.2f} us | {row['tflops']:7.1f} TFLOP/s{ratio}"
    )


def summarize(rows: list[Row], console: Console) -> None:
    """Print the geometric means."""
    table = Table("suite", "dtype", "majors", "regime", "contender", "rows", "geomean", "least", "greatest")
    for line in results.summary(rows):
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in line.values()))
    console.print(table)


def select(
    suites: list[str], shapes: list[tuple[int, int, int]], dtypes: list[str], majors: list[str]
) -> list[Case]:
    """Every problem of the suites, then the shapes as suite "custom", in each dtype and choice of majors."""
    sized = [(suite, size) for suite in suites for size in SUITES[suite]] + [
        ("custom", size) for size in shapes
    ]
    return [
        Case(suite=suite, dtype=dtype, majors=major, m=m, n=n, k=k)
        for dtype in dtypes
        for major in majors
        for suite, (m, n, k) in sized
    ]


def _names(legal: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in legal]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be among {', '.join(legal)}")
        return names

    return parse


def _shapes(text: str) -> list[tuple[int, int, int]]:
    try:
        return [(m, n, k) for m, n, k in (map(int, shape.split("x")) for shape in text.split(",") if shape)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: must be M x N x K, as in 4096x4096x512,64x64x64") from None


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gemm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--suites", type=_names(tuple(SUITES)), default=[], help=", ".join(SUITES))
    add("--shapes", type=_shapes, default=[], help="more problems, MxNxK,...: suite 'custom'")
    add("--dtype", type=_names(tuple(inputs.DTYPES)), default=["bf16"], help="default bf16")
    add(
        "--majors", type=_names(inputs.MAJORS), default=["kk"], help="unit-stride axes of A and B; default kk"
    )
    add("--contenders", type=_names(contenders.NAMES), default=list(contenders.NAMES))
    add("--regime", choices=tuple(timing.REGIMES), default="sustained")
    add_run_options(parser)
    return parser.parse_args(arguments)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark over cases has."""
    add = parser.add_argument
    add("--max-seconds", type=float, default=float("inf"), help="stop before a problem that would end later")
    add("--out", type=Path, required=True, help="results file")
    add("--commit", required=True, help="hash of the commit that is measured")


def open_run(args: argparse.Namespace) -> tuple[Console, timing.Readable, Results]:
    """Where a benchmark prints, reads clocks and power, and writes, from `add_run_options`."""
    console = Console(width=None if sys.stdout.isatty() else LOG_COLUMNS, soft_wrap=True)
    sensors = environment.sensors()
    out = Results(args.out, environment.record(args.commit, sensors))
    if out.dropped:
        console.print(f"{args.out}: {out.dropped} rows of another environment or other sources dropped")
    return console, sensors, out


def report(outcome: Outcome, console: Console) -> int:
    """Print what a run came to; 1 when a contender refused a problem or was wrong."""
    console.print(f"measured {outcome.measured}, already there {outcome.skipped}, left {outcome.left}")
    for what, why in outcome.failures:
        console.print(f"NOT TIMED {what}: {why}", markup=False)
    return 1 if outcome.failures else 0


def main(arguments: list[str]) -> int:
    """Run the command; 1 when a contender refused a problem or was wrong."""
    args = parse(arguments)
    console, sensors, out = open_run(args)
    todo = select(args.suites, args.shapes, args.dtype, args.majors)
    bench = Bench(args.contenders, timing.REGIMES[args.regime], sensors)
    outcome = run(todo, bench, out, max_seconds=args.max_seconds, console=console)
    summarize(out.rows, console)
    return report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
