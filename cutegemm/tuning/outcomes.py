# SPDX-License-Identifier: Apache-2.0
"""The results of tuning, problem by problem, and its progress display."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich import progress
from rich.console import Console

from cutegemm.database.entry import Entry
from cutegemm.problems import Problem

TUNED, KNOWN, ELSEWHERE, INTERRUPTED, REFUSED = "tuned", "known", "elsewhere", "interrupted", "refused"
BEGUN = "begun"


@dataclass(frozen=True)
class Outcome:
    """The result of one problem."""

    problem: Problem
    # "tuned" now; "known" already; tuned by another process ("elsewhere"); "interrupted" by Ctrl-C; "begun", if the
    # time limit ended it before its last candidate; "refused"
    status: str
    entry: Entry | None = None  # of the database, if there is one
    why: str = ""  # the reason if it was refused or has no entry yet

    def __str__(self) -> str:
        what = words(self.problem)
        if self.entry is None:
            return f"{what}: {self.status}" + (f": {self.why}" if self.why else "")
        gain = self.entry.model_us / self.entry.us
        fields = ", ".join(f"{name} {value}" for name, value in self.entry.fields.items())
        own = not fields or self.entry.us == self.entry.model_us
        chosen = "the model's choice" if own else fields
        return f"{what}: {self.status}, {self.entry.us:,.1f} us, {gain:.3f} x the model's choice: {chosen}"


@dataclass(frozen=True)
class Report:
    """The result of one call of `tune`."""

    outcomes: tuple[Outcome, ...]

    @property
    def interrupted(self) -> bool:
        """Whether it ended before all problems were done."""
        return any(x.status in (INTERRUPTED, BEGUN) for x in self.outcomes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outcomes))


def words(problem: Problem) -> str:
    """A problem in short."""
    batch = f"{problem.batch} x " if problem.batch > 1 else ""
    return f"{batch}{problem.m} x {problem.n} x {problem.k} {problem.types}"


class Screen:
    """A progress bar over problems with the best time so far; shown only on a terminal."""

    def __init__(self, console: Console | None, problems: int) -> None:
        console = console or Console(stderr=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("tuning", total=problems)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def report(self, problem: Problem, text: str, *, within: float = math.inf) -> None:
        """Show the current step; the next report should follow `within` this many seconds."""
        self._bar.update(self._task, description=f"{words(problem)}: {text}")

    def done(self, outcome: Outcome) -> None:
        """Print a finished problem."""
        self._bar.console.print(str(outcome), markup=False)
        self._bar.advance(self._task)
