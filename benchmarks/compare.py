# SPDX-License-Identifier: Apache-2.0
"""Whether B is better than A, worse, or no different: row by row, with a confidence interval.

    python -m benchmarks.compare before.json after.json
    python -m benchmarks.compare a1.json,a2.json,a3.json,a4.json b1.json,b2.json,b3.json,b4.json
    python -m benchmarks.compare one.json one.json --contenders cublas,cutegemm

It compares ratios to the baseline, which was timed in the same rounds, so clock and temperature of two runs cancel.
Without a baseline it compares times. Two contenders of one file are compared within their rounds.

Two runs differ by more than the rounds of one run: by up to 3 % at the power cap. So a row is better or worse only if
its whole interval lies beyond --margin. The margin is 3 %, or 0 if each side has four runs or more, or if the
contenders were timed in the same rounds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import command_line, results, runs
from benchmarks.contenders import OURS
from benchmarks.results import Row
from cutegemm.tuning import interval

RUN_TO_RUN = 0.03  # difference between ratios of two runs of the same sources at the power cap
ENOUGH_RUNS = 4  # runs per side that show the difference between runs
CONFIDENCE = 0.95
BETTER, WORSE, SAME = "better", "worse", "no difference"

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Change:
    """A row of A compared with the same row of B.

    Attributes:
        what: the problem.
        factor: speed-up of B over A.
        low, high: bounds of the factor; None if there are too few samples.
        verdict: on B.
    """

    what: str
    factor: float
    low: float | None
    high: float | None
    verdict: str


def verdict(low: float | None, high: float | None, margin: float) -> str:
    """The verdict on an interval of a factor; factors within `margin` of 1 do not count."""
    if low is not None and low > 1 + margin:
        return BETTER
    if high is not None and high < 1 / (1 + margin):
        return WORSE
    return SAME


def speeds(row: Row) -> list[float]:
    """The logarithm of a row's speed in every round, relative to the baseline if there is one."""
    samples, base = row.get("samples") or [row["us"]], row["baseline_us"]
    us_of_base = row.get("baseline_samples") or [base or 1.0] * len(samples)
    return [math.log(b / us) for b, us in zip(us_of_base, samples, strict=True)]


def _place(row: Row, *, contender: str | None = None) -> Key:
    """The key of comparable rows; `contender`, if given, replaces the row's own."""
    return tuple(
        contender if contender and field == "contender" else row.get(field) for field in results.KEY_FIELDS
    )


def with_baselines(documents: Iterable[dict[str, Any]]) -> list[list[Row]]:
    """The rows of each document, each with the samples of its own run's baseline."""
    found = []
    for document in documents:
        base = {
            _place(row, contender="*"): row
            for row in document["rows"]
            if row["contender"] == row["baseline"] and "samples" in row
        }
        rows = []
        for row in document["rows"]:
            its = base.get(_place(row, contender="*"))
            same_run = its is not None and its["us"] == row["baseline_us"]
            pairs = same_run and len(its["samples"]) == len(row.get("samples") or ())  # type: ignore[index]
            rows.append(row | ({"baseline_samples": its["samples"]} if pairs and its else {}))
        found.append(rows)
    return found


def compare(
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
    *,
    names: tuple[str, str] = (OURS, OURS),
    margin: float | None = None,
    confidence: float = CONFIDENCE,
) -> list[Change]:
    """Compare A's contender `names[0]` with B's `names[1]` on every common problem; a side has one or more runs."""
    sides = []
    for documents, name in zip((before, after), names, strict=True):
        places: dict[Key, list[Row]] = {}
        for rows in with_baselines(documents):
            for row in rows:
                if row["contender"] == name:
                    places.setdefault(_place(row, contender="*"), []).append(row)
        sides.append(places)
    first, second = sides
    together = list(before) == list(after)
    if margin is None:
        few = min(len(before), len(after)) < ENOUGH_RUNS
        margin = RUN_TO_RUN if few and not together else 0.0
    return [
        _change(first[place], second[place], together, margin, confidence)
        for place in first
        if place in second
    ]


def _change(
    before: Sequence[Row], after: Sequence[Row], together: bool, margin: float, confidence: float
) -> Change:
    x, y = ([speeds(row) for row in side] for side in (before, after))
    if together and all(p["baseline_us"] == q["baseline_us"] for p, q in zip(before, after, strict=True)):
        differences = [b - a for p, q in zip(x, y, strict=True) for a, b in zip(p, q, strict=True)]
        found = interval.paired(differences, confidence)
    else:
        found = interval.shift(_pooled(x), _pooled(y), confidence)
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Change(name_of(before[0]), math.exp(found.estimate), low, high, verdict(low, high, margin))


def _pooled(rounds: Sequence[Sequence[float]]) -> list[float]:
    """The samples of a side: the rounds of few runs, or the medians of `ENOUGH_RUNS` or more."""
    if len(rounds) < ENOUGH_RUNS:
        return [value for run in rounds for value in run]
    return [sorted(run)[len(run) // 2] for run in rounds]


def name_of(row: Row) -> str:
    """A row's problem in words."""
    if row["suite"] == "host":
        return str(row["what"])
    if row["suite"] == "chain":
        return f"chain {row['what']} M {row['m']}"
    size = results.size_of(row)
    fused = "" if row["epilogue"] == "none" else f" {row['epilogue']}"
    return f"{row['suite']} {size} {row['dtype']} {row['majors']}{fused}"


def show(changes: Sequence[Change], console: Console) -> None:
    """Print every row, the number of rows per verdict, and the geometric mean of the factors."""
    table = Table("problem", "B over A", "interval", "")
    for change in changes:
        bounds = "too few samples" if change.low is None else f"{change.low:.3f} to {change.high:.3f}"
        style = {BETTER: "green", WORSE: "red"}.get(change.verdict)
        table.add_row(change.what, f"{change.factor:.3f}", bounds, change.verdict, style=style)
    console.print(table)
    counts = ", ".join(f"{sum(c.verdict == v for c in changes)} {v}" for v in (BETTER, WORSE, SAME))
    mean = results.geometric_mean(change.factor for change in changes)
    console.print(f"{counts}; geometric mean {mean:.3f}")


def _margin(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a fraction from 0 to below 1, as 0.03 for 3 %")
    return value


def _confidence(text: str) -> float:
    value = _margin(text)
    if value == 0:
        raise argparse.ArgumentTypeError("'0': must be above 0")
    return value


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("compare", __doc__)

    def paths(text: str) -> list[Path]:
        return [Path(part) for part in text.split(",") if part]

    add = parser.add_argument
    add("before", type=paths, help="A: a results file, or several runs, comma-separated")
    add("after", type=paths, help="B: the same")
    add("--contenders", default=OURS, help="one name for both sides, or A's and B's; default cutegemm")
    add("--margin", type=_margin, help=f"smaller changes do not count; default {RUN_TO_RUN} or 0, see above")
    add("--confidence", type=_confidence, default=CONFIDENCE, help=f"default {CONFIDENCE}")
    args = parser.parse_args(arguments)
    names = args.contenders.split(",")
    if len(names) > 2 or "" in names:
        parser.error(f"argument --contenders: {args.contenders!r}: must be one name, or two")
    args.names = (names[0], names[-1])
    return args


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a row is worse, 2 if nothing can be compared."""
    args = parse(arguments)
    try:
        before, after = ([results.load(path) for path in side] for side in (args.before, args.after))
    except (OSError, ValueError) as error:
        print(f"python -m benchmarks.compare: {error}", file=sys.stderr)
        return 2
    changes = compare(before, after, names=args.names, margin=args.margin, confidence=args.confidence)
    if not changes:
        print("python -m benchmarks.compare: no problem is in the files of both sides", file=sys.stderr)
        return 2
    show(changes, runs.console())
    return 1 if any(change.verdict == WORSE for change in changes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
