# SPDX-License-Identifier: Apache-2.0
"""The frame of every measuring command: common options, results file, time budget, resume, report.

Results are written after every problem. A command that is called again skips the problems that its file holds.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rich import progress
from rich.console import Console

from benchmarks import environment, timing
from benchmarks.results import Results, Row
from cutegemm.arch.device import Device
from cutegemm.arch.records import RECORDS
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.errors import GemmError

LOG_COLUMNS = 120  # width of output to a file or pipe
REASON_LINES = 3  # lines of an error that are kept
Failures = list[tuple[str, str]]  # (contender, why)
_CaseT = TypeVar("_CaseT")
_CaseIn = TypeVar("_CaseIn", contravariant=True)


class Bench(Protocol[_CaseIn]):
    """Measures one case after another."""

    def keys(self, case: _CaseIn) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""

    def measure(self, case: _CaseIn) -> tuple[list[Row], Failures]:
        """Rows of the correct contenders, and (contender, reason) of the others."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run over cases.

    Attributes:
        skipped: number of cases that an earlier run measured.
        measured: number of cases measured now.
        failures: (case and contender, reason) where a contender refused a problem or was wrong.
        left: number of cases not reached in time.
    """

    skipped: int
    measured: int
    failures: Failures
    left: int


def run(
    cases: Sequence[_CaseT],
    bench: Bench[_CaseT],
    out: Results,
    *,
    seconds: float,
    console: Console,
    describe: Callable[[Row], str],
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Measure every case that `out` lacks, and write `out` after each.

    A case starts only if the longest case so far would end within `seconds`.
    """
    todo = [case for case in cases if not out.has(bench.keys(case))]
    failures: Failures = []
    start, longest, done = clock(), 0.0, 0
    with _progress(console) as bar:
        task = bar.add_task("", total=len(todo))
        for case in todo:
            began = clock()
            if began - start + longest > seconds:
                break
            bar.update(task, description=str(case))
            rows, failed = bench.measure(case)
            out.put(rows)
            for row in rows:
                console.print(describe(row), markup=False)
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


def positive_seconds(text: str) -> float:
    """Parse a time budget.

    Raises:
        argparse.ArgumentTypeError: the text is not a positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive number of seconds")
    return value


def add_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Add the options of every measuring command. Results file and commit are mandatory if `required`."""
    add_budget(parser)
    parser.add_argument("--out", type=Path, required=required, help="results file")
    parser.add_argument("--commit", required=required, help="hash of the measured commit")


def parsed_or_compiling(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Add the options of a command that measures, or with `--compile-only` compiles for a GPU's record, and read them.

    Raises:
        SystemExit: the options are illegal, or a measuring command has no results file or commit.
    """
    add_options(parser, required=False)
    parser.add_argument("--compile-only", action="store_true", help="compile the kernels and measure nothing")
    add_gpu(parser, "GPU that --compile-only plans for")
    args = parser.parse_args(arguments)
    if not args.compile_only and (args.out is None or args.commit is None):
        parser.error("--out and --commit must be given, or --compile-only")
    return args


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit the time and choose the GPU."""
    add = parser.add_argument
    add(
        "--seconds",
        type=positive_seconds,
        default=math.inf,
        help="time budget: no problem starts that would exceed it; the same command continues",
    )
    add("--device", type=int, default=0, help="number of the measured GPU, recorded with the results")


def add_gpu(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Add `--gpu`, the name of a GPU that has a record; `record_of` finds the record."""
    names = [record.name for record in RECORDS]
    parser.add_argument("--gpu", choices=names, default=names[0], help=f"{purpose}; default {names[0]}")


def record_of(name: str) -> Device:
    """The record of a GPU."""
    return next(record for record in RECORDS if record.name == name)


def console() -> Console:
    """The console of a command, wide enough for a row if the output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else LOG_COLUMNS, soft_wrap=True)


def open_run(args: argparse.Namespace) -> tuple[Console, timing.Readable, Results]:
    """Console, sensors and results file for the options of `add_options`; makes the GPU current."""
    out_console = console()
    environment.select(args.device)
    sensors = environment.sensors(args.device)
    out = Results(args.out, environment.record(args.commit, sensors, args.device))
    if out.dropped:
        out_console.print(f"{args.out}: {out.dropped} rows of another environment or other sources dropped")
    return out_console, sensors, out


def compiled(configs: Iterable[Config], problems: int, console: Console) -> int:
    """Compile kernels in parallel, each once. Returns the number of kernels."""
    wanted = list(dict.fromkeys(configs))
    console.print(f"{len(wanted)} kernels of {problems} problems")
    try:
        kernel_cache.ensure(wanted)
    except GemmError as error:
        # the problem that needs the kernel reports the error when it is measured
        console.print(str(error), markup=False)
    return len(wanted)


def report(outcome: Outcome, console: Console) -> int:
    """Print the result of a run. Returns 1 if a contender refused a problem or was wrong."""
    console.print(f"measured {outcome.measured}, already there {outcome.skipped}, left {outcome.left}")
    for what, why in outcome.failures:
        console.print(f"NOT TIMED {what}: {why}", markup=False)
    return 1 if outcome.failures else 0


def reason(error: Exception) -> str:
    """The first lines of an error on one line; compilers print pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines[:REASON_LINES])}"


def names_among(legal: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of comma-separated names that rejects unknown names."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(name for name in text.split(",") if name))
        if unknown := [name for name in names if name not in legal]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be among {', '.join(legal)}")
        return names

    return parse
