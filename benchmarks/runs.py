# SPDX-License-Identifier: Apache-2.0
"""What every measuring command does: read its common options, open its file, run within a budget, resume, report.

A call may be cut short and made again: results are written after every problem, and what a file holds is skipped.
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
from cutegemm.compiling import kernel_cache
from cutegemm.config import Config
from cutegemm.errors import GemmError

LOG_COLUMNS = 120  # of output that goes to a file or pipe
REASON_LINES = 3  # of an error's text
Failures = list[tuple[str, str]]  # (contender, why)
_CaseT = TypeVar("_CaseT")
_CaseIn = TypeVar("_CaseIn", contravariant=True)


class Bench(Protocol[_CaseIn]):
    """Measures one case after another."""

    def keys(self, case: _CaseIn) -> list[Row]:
        """The key fields of the rows that measuring `case` gives."""

    def measure(self, case: _CaseIn) -> tuple[list[Row], Failures]:
        """Rows of the contenders that are right, and (contender, why) of the others."""


@dataclass(frozen=True)
class Outcome:
    """What a run over cases came to.

    Attributes:
        skipped: cases that an earlier run had measured.
        measured: cases measured now.
        failures: (case and contender, why), of contenders that refused a problem or were wrong.
        left: cases not reached in time.
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
    """Measure every case that `out` lacks until `seconds` would be exceeded; `out` is written after each.

    A case starts only when the longest so far would still fit.
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
    """Read a budget.

    Raises:
        argparse.ArgumentTypeError: it is not a positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a positive number of seconds")
    return value


def add_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """The options that every measuring command has; `required` are a file and a commit, where it does measure."""
    add = parser.add_argument
    add(
        "--seconds",
        type=positive_seconds,
        default=math.inf,
        help="budget: stop before a problem that would end later; the same command goes on",
    )
    add("--device", type=int, default=0, help="number of the GPU that is measured, recorded with the results")
    add("--out", type=Path, required=required, help="results file")
    add("--commit", required=required, help="hash of the commit that is measured")


def console() -> Console:
    """Where a command prints; wide enough for a row where that is no terminal."""
    return Console(width=None if sys.stdout.isatty() else LOG_COLUMNS, soft_wrap=True)


def open_run(args: argparse.Namespace) -> tuple[Console, timing.Readable, Results]:
    """Where a command prints, reads clocks and power, and writes, from `add_options`; its GPU becomes current."""
    out_console = console()
    environment.select(args.device)
    sensors = environment.sensors(args.device)
    out = Results(args.out, environment.record(args.commit, sensors, args.device))
    if out.dropped:
        out_console.print(f"{args.out}: {out.dropped} rows of another environment or other sources dropped")
    return out_console, sensors, out


def compiled(configs: Iterable[Config], problems: int, console: Console) -> int:
    """Compile the kernels of so many problems, side by side and each once; returns how many there are."""
    wanted = list(dict.fromkeys(configs))
    console.print(f"{len(wanted)} kernels of {problems} problems")
    try:
        kernel_cache.ensure(wanted)
    except GemmError as error:
        # whose kernel it is, says so when it is measured
        console.print(str(error), markup=False)
    return len(wanted)


def report(outcome: Outcome, console: Console) -> int:
    """Print what a run came to; 1 when a contender refused a problem or was wrong."""
    console.print(f"measured {outcome.measured}, already there {outcome.skipped}, left {outcome.left}")
    for what, why in outcome.failures:
        console.print(f"NOT TIMED {what}: {why}", markup=False)
    return 1 if outcome.failures else 0


def reason(error: Exception) -> str:
    """An error on one line: its beginning, as those of compilers run to pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' / '.join(lines[:REASON_LINES])}"


def names_among(legal: Sequence[str]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names that refuses those that are not legal."""

    def parse(text: str) -> list[str]:
        names = list(dict.fromkeys(name for name in text.split(",") if name))
        if unknown := [name for name in names if name not in legal]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: must be among {', '.join(legal)}")
        return names

    return parse
