# SPDX-License-Identifier: Apache-2.0
"""Verifies files of `benchmarks.fresh`, and prints their figures over the last three trees.

    python -m benchmarks.fresh_check benchmarks/results/fresh-*.json

A file is valid if its seed follows from its trees, its trees are those of its commit, its rows are the first of the
drawn problems in order, and every plan is the model's choice with the sources of that commit. Drawn problems without a
row count as not timed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import (
    candidates,
    chain,
    command_line,
    contenders,
    fresh_bench,
    fresh_tree,
    gemm,
    results,
    runs,
    sweep,
)
from benchmarks.fresh_bench import AGAIN, CHAIN, CHAINED, FINAL, FIRST, PREFIX, SCREEN, SINGLE
from benchmarks.results import Case, Row

Document = dict[str, Any]
POOLED = 3  # number of last trees in the figures
LOWEST = 3  # rows per family that are measured again
# runs `fresh_check --here` with a tree's own sources
TIES = Path(__file__).with_name("fresh_ties.py")
_CASE = ("suite", "dtype", "majors", "batch", "m", "n", "k")


def describe(row: Row) -> str:
    """A row on one line: its times, or the reason for missing times."""
    if row["refused"]:
        return f"{row['suite']} {row.get('what') or ''} {row['m']} {row['contender']}: {row['refused']}"
    return chain.describe(row) if row["suite"] == CHAIN else gemm.describe(row)


def problem_of(row: Row) -> tuple[Any, ...]:
    """The identity of a row's problem."""
    return (row["suite"], row["m"], row["what"]) if row["suite"] == CHAIN else tuple(row[x] for x in _CASE)


def known_by(case: Case) -> tuple[Any, ...]:
    """The same identity of a problem."""
    if case.suite == CHAIN:
        return case.suite, case.m, chain.label(fresh_bench.chain_of(case).layers)
    return tuple(getattr(case, x) for x in _CASE)


def contenders_of(suite: str) -> tuple[str, ...]:
    """The contenders of a suite; the first is ours."""
    return CHAINED if suite == CHAIN else SINGLE


def lowest(cases: Sequence[Case], rows: Iterable[Row]) -> list[Case]:
    """The problems with our lowest first ratios, in the family's order; none until all problems have rows."""
    ours = {
        problem_of(row): row["ratio"]
        for row in rows
        if row["regime"] == FIRST.name and row["contender"] == contenders_of(row["suite"])[0]
    }
    if not all(known_by(case) in ours for case in cases):
        return []
    timed = [case for case in cases if ours[known_by(case)] is not None]
    found = sorted(timed, key=lambda case: float(ours[known_by(case)]))[:LOWEST]
    return [case for case in cases if case in found]


def complaints(document: Document, *, plans: bool = False) -> list[str]:
    """The defects of a results file, judged by the present sources.

    Args:
        document: the file.
        plans: whether to plan every problem again; only the measured sources give the same plans.
    """
    said = document["environment"].get("fresh")
    if said is None:
        return ["there is no header"]
    if said["trees"] is None or fresh_tree.Trees(**said["trees"]).seed != said["seed"]:
        return ["the seed does not follow from the trees"]
    families = {x: fresh_bench.cases_of(x, said["seed"], said["count"]) for x in said["families"]}
    rows = document["rows"]
    found = [
        f"{row['suite']}: no such family" for row in rows if row["suite"].removeprefix(PREFIX) not in families
    ]
    for family, cases in families.items():
        mine = [row for row in rows if row["suite"] == PREFIX + family]
        found += _of_regret(family, cases, mine) if said["regret"] else _of_family(family, cases, mine)
    if plans and not found:
        record = runs.record_of(document["environment"]["gpu"])
        drawn = [case for cases in families.values() for case in cases]
        expected = {known_by(case): fresh_bench.planned(case, record) for case in drawn}
        found += list(_tuned(rows, expected))
    return found


def _of_family(family: str, cases: Sequence[Case], rows: Sequence[Row]) -> list[str]:
    """The defects of a family's rows that compare with cuBLAS."""
    first = [(problem_of(x), x["contender"]) for x in rows if x["regime"] == FIRST.name]
    again = [(problem_of(x), x["contender"]) for x in rows if x["regime"] == AGAIN.name]
    found = [
        f"{family}: {x['regime']}: no such regime"
        for x in rows
        if x["regime"] not in (FIRST.name, AGAIN.name)
    ]
    for what, seen, drawn in (("", first, cases), (" again", again, lowest(cases, rows))):
        expected = [(known_by(x), name) for x in drawn for name in contenders_of(x.suite)]
        if seen != expected[: len(seen)]:
            place = next(i for i, x in enumerate([*expected, None]) if x != seen[i])
            found.append(f"{family}{what}: row {place} is {seen[place]}, not what was drawn")
    return found


def _of_regret(family: str, cases: Sequence[Case], rows: Sequence[Row]) -> list[str]:
    """The defects of a family's candidate rows: wrong problems, or problems without the model's choice."""
    own = candidates.label({})
    seen = [problem_of(x) for x in rows if x["contender"] == own and x["regime"] == FINAL.name]
    found = [] if seen == [known_by(x) for x in cases][: len(seen)] else [f"{family}: not the drawn problems"]
    strange = {problem_of(x) for x in rows} - set(seen) or {
        x["regime"] for x in rows if x["regime"] not in (SCREEN.name, FINAL.name)
    }
    return found + [f"{family}: {x}: not measured to the end" for x in strange]


def _tuned(rows: Iterable[Row], expected: dict[Any, dict[str, str]]) -> Iterable[str]:
    """Rows whose plan is not the model's choice."""
    for row in rows:
        name = contenders.MODEL if row["contender"] == candidates.label({}) else row["contender"]
        plan = expected[problem_of(row)].get(name)
        if plan is not None and row["us"] is not None and row["plan"] != plan:
            yield f"{problem_of(row)}: measured {row['plan']!r}, but the model chooses {plan!r}"


def verify(path: Path, root: Path = fresh_tree.ROOT) -> list[str]:
    """The defects of a file, judged by the measured sources.

    Raises:
        ValueError: the repository lacks the file's commit.
    """
    environment = results.load(path)["environment"]
    commit, said = environment["commit"], environment.get("fresh") or {}
    trees = fresh_tree.trees_of(commit, root)
    if trees._asdict() != said.get("trees"):
        return [f"the trees are not those of commit {commit}"]
    with tempfile.TemporaryDirectory() as folder:
        fresh_tree.export(commit, Path(folder), root)
        command = [sys.executable, "-c", TIES.read_text(), "--here", str(path.resolve())]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()


def pooled(documents: Sequence[Document]) -> list[Row]:
    """The figures of all documents together by family.

    `first` and `again` are the ratios of first and repeated rows, `undeclared` those of chains to undeclared weights,
    and `missing` counts problems without times. With candidates, `first` is our speed over that of the best one, as in
    `_over_best`.
    """
    found: dict[tuple[str, bool], Row] = {}
    for document in documents:
        said = document["environment"]["fresh"]
        for family in said["families"]:
            rows = [row for row in document["rows"] if row["suite"] == PREFIX + family]
            line = found.setdefault(
                (family, said["regret"]), {"first": [], "again": [], "undeclared": [], "missing": 0}
            )
            values = _chosen_over_best(rows) if said["regret"] else _ratios(rows, FIRST.name, family)
            line["first"] += values
            line["again"] += _ratios(rows, AGAIN.name, family)
            line["undeclared"] += _over_undeclared(rows)
            line["missing"] += said["count"] - len(values)
    return [{"family": family, "regret": regret} | line for (family, regret), line in found.items()]


def _ratios(rows: Iterable[Row], regime: str, family: str) -> list[float]:
    ours = contenders_of(PREFIX + family)[0]
    mine = [row for row in rows if row["regime"] == regime and row["contender"] == ours]
    return [row["ratio"] for row in mine if row["ratio"] is not None]


def _over_undeclared(rows: Iterable[Row]) -> list[float]:
    """Speed-ups of chains with weights declared constant over undeclared ones."""
    us: dict[Any, dict[str, float]] = {}
    for row in rows:
        if row["suite"] == CHAIN and row["us"] is not None:
            us.setdefault((problem_of(row), row["regime"]), {})[row["contender"]] = row["us"]
    both = [x for x in us.values() if contenders.OURS in x and chain.UNDECLARED in x]
    return [x[chain.UNDECLARED] / x[contenders.OURS] for x in both]


def _chosen_over_best(rows: Iterable[Row]) -> list[float]:
    final = [row for row in rows if row["regime"] == FINAL.name]
    found = []
    for group in sweep.best(final).values():
        found += [
            _over_best(row["samples"], [x["samples"] for x in group]) for row in group if not row["spec"]
        ]
    return found


def _over_best(chosen: list[float], everyone: list[list[float]]) -> float:
    """The speed of one config over that of the fastest, from samples of the same rounds.

    Samples vary by some percent, so of several equal configs the one with the least measured time is not faster. The
    config that is fastest in every second round is therefore timed in the other rounds, and the reverse.
    """
    ratios = []
    for odd in (0, 1):
        fastest = min(everyone, key=lambda samples: statistics.median(samples[odd::2]))
        ratios.append(statistics.median(fastest[1 - odd :: 2]) / statistics.median(chosen[1 - odd :: 2]))
    return results.geometric_mean(ratios)


def table(documents: Sequence[Document]) -> Table:
    """The figures for a terminal."""
    shown = Table("family", "ratio", "problems", "geomean", "least", "least again", "not timed")
    for line in pooled(documents):
        for what, values in (("cuBLAS", line["first"]), ("undeclared", line["undeclared"])):
            if values:
                name = "best candidate" if line["regret"] else what
                numbers = [f"{results.geometric_mean(values):.3f}", f"{min(values):.3f}"]
                again = f"{min(line['again']):.3f}" if line["again"] and what == "cuBLAS" else ""
                shown.add_row(line["family"], name, str(len(values)), *numbers, again, str(line["missing"]))
    return shown


def brief(documents: Sequence[Document]) -> list[str]:
    """The README's line of all families, except chains and unaligned problems, which are far faster."""
    families = pooled(documents)
    plain = [x for x in families if not x["family"].startswith(("odd", "chain"))]
    ratios = [ratio for x in plain for ratio in x["first"]]
    if not ratios:
        return []
    figures = f"**{results.geometric_mean(ratios):.2f}** | {min(ratios):.2f} | {max(ratios):.2f}"
    what = "drawn anew after the fit (latest three versions), aligned, any majors, by the cost model alone"
    return [f"| {what} | {len(ratios)} | {figures} |"]


def unseen(documents: Sequence[Document]) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a table of all families: we over cuBLAS, and our choice over the tuner's best candidate."""
    found: dict[str, list[str]] = {}
    for line in sorted(pooled(documents), key=lambda x: x["regret"]):
        cells = found.setdefault(line["family"], [line["family"], *[""] * 6])
        if line["regret"]:
            cells[5:] = [_mean_and_least(line["first"]), str(len(line["first"]))]
        else:
            values = (line[x] for x in ("first", "again", "undeclared"))
            cells[1:5] = [str(len(line["first"])), *map(_mean_and_least, values)]
    over = ["× cuBLAS (least)", f"the lowest {LOWEST} again", "× undeclared"]
    return ["family", "problems", *over, "× best candidate", "problems"], list(found.values())


def _mean_and_least(ratios: Sequence[float]) -> str:
    return f"**{results.geometric_mean(ratios):.3f}** ({min(ratios):.3f})" if ratios else ""


def last_trees(documents: Sequence[Document]) -> list[Document]:
    """The documents of the last measured trees."""
    dates: dict[str, str] = {}
    documents = [x for x in documents if "fresh" in x["environment"]]
    for document in documents:
        environment = document["environment"]
        seed = str(environment["fresh"]["seed"])
        dates[seed] = max(dates.get(seed, ""), environment["date"])
    kept = sorted(dates, key=lambda seed: dates[seed])[-POOLED:]
    return [x for x in documents if str(x["environment"]["fresh"]["seed"]) in kept]


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a file has defects."""
    parser = command_line.parser("fresh_check", __doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--here", action="store_true", help="judge by the present sources, not by those of the commit"
    )
    args = parser.parse_args(arguments)
    wrong, documents = 0, []
    for path in args.files:
        document = results.load(path)
        documents.append(document)
        found = complaints(document, plans=True) if args.here else verify(path)
        print("".join(f"{path}: {line}\n" for line in found), end="")
        wrong += len(found)
    Console().print(table(last_trees(documents)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
