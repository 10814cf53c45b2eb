# SPDX-License-Identifier: Apache-2.0
"""Plots a results file: ratio to the baseline and TFLOP/s, one PNG per suite.

python -m benchmarks.plot benchmarks/results/gemm.json --out FOLDER

A suite of cubes has lines over the size. In any other suite each shape has its own labelled row, sorted by work.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # writes files, since there may be no display

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from benchmarks import command_line, results  # noqa: E402
from benchmarks.results import Row  # noqa: E402

LINES_INCHES = (8, 7)
ROWS_INCHES = (10, 1.6)  # width, and height without the rows
ROW_INCHES = 0.22
DPI = 150


def work(row: Row) -> int:
    """Multiplications."""
    return int(row["batch"] * row["m"] * row["n"] * row["k"])


def size(row: Row) -> float:
    """The side of the cube with equally many multiplications."""
    return float(work(row) ** (1 / 3))


def lines(rows: list[Row], suite: str) -> dict[str, list[Row]]:
    """Rows of one suite by contender, dtype, majors and regime, each sorted by size."""
    found: dict[str, list[Row]] = {}
    for row in sorted((r for r in rows if r["suite"] == suite), key=work):
        name = f"{row['contender']} {row['dtype']} {row['majors']}, {row['regime']}"
        found.setdefault(name, []).append(row)
    return found


def shapes(rows: list[Row]) -> list[str]:
    """Names of the shapes in the rows, sorted by work, then by extents."""

    def order(row: Row) -> tuple[int, ...]:
        return work(row), row["batch"], row["m"], row["n"], row["k"]

    return list(dict.fromkeys(_name(row) for row in sorted(rows, key=order)))


def _name(row: Row) -> str:
    """A row's shape, with its epilogue if there is one."""
    text = results.size_of(row)
    return text if row["epilogue"] == "none" else f"{row['epilogue'].replace('_', ' ')} {text}"


def draw(document: dict[str, Any], suite: str) -> Figure:
    """Draw one suite of a results document."""
    found = lines(document["rows"], suite)
    rows = [row for group in found.values() for row in group]
    cubes = all(row["m"] == row["n"] == row["k"] and row["epilogue"] == "none" for row in rows)
    figure = _over_size(found) if cubes else _by_shape(found, shapes(rows))
    environment = document["environment"]
    measured = f"{environment['gpu']}, {environment['date'][:10]}, commit {environment['commit'][:10]}"
    figure.suptitle(f"{suite}: {measured}")
    return figure


def _compared(rows: list[Row]) -> bool:
    """Whether the rows have ratios to another contender."""
    return any(row["contender"] != row["baseline"] and row["ratio"] is not None for row in rows)


def _over_size(found: dict[str, list[Row]]) -> Figure:
    """Lines over the size of cubes: ratio above, TFLOP/s below."""
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=LINES_INCHES, layout="constrained")
    for number, (name, rows) in enumerate(found.items()):
        style = {"label": name, "color": f"C{number}", "marker": "o", "markersize": 4, "linewidth": 1}
        if _compared(rows):
            _line(upper, rows, "ratio", style)
        _line(lower, rows, "tflops", style)
    upper.axhline(1, color="grey", linewidth=1)
    upper.set_ylabel("times as fast as the baseline")
    lower.set_ylabel("TFLOP/s")
    lower.set_ylim(bottom=0)
    lower.set_xscale("log", base=2)
    lower.set_xlabel("M = N = K")
    lower.legend(fontsize="small")
    return figure


def _line(axes: Axes, rows: list[Row], field: str, style: dict[str, Any]) -> None:
    points = [(size(row), row[field]) for row in rows if row[field] is not None]
    axes.plot(*zip(*points, strict=True), **style)


def _by_shape(found: dict[str, list[Row]], names: list[str]) -> Figure:
    """A row per shape, least work at the top: ratio left, TFLOP/s right."""
    height = ROWS_INCHES[1] + ROW_INCHES * len(names)
    figure, (left, right) = pyplot.subplots(
        1, 2, sharey=True, figsize=(ROWS_INCHES[0], height), layout="constrained"
    )
    places = {name: place for place, name in enumerate(names)}
    for number, (name, rows) in enumerate(found.items()):
        style = {"label": name, "color": f"C{number}", "marker": "o", "markersize": 4, "linestyle": "none"}
        for axes, field in ((left, "ratio"), (right, "tflops")):
            if field == "tflops" or _compared(rows):
                points = [(row[field], places[_name(row)]) for row in rows if row[field] is not None]
                axes.plot(*zip(*points, strict=True), **style)
    left.axvline(1, color="grey", linewidth=1)
    left.set_yticks(range(len(names)), names, fontsize="small")
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel("times as fast as the baseline")
    right.set_xlabel("TFLOP/s")
    right.set_xlim(left=0)
    for axes in (left, right):
        axes.grid(axis="y", linewidth=0.3)
    right.legend(fontsize="small")
    return figure


def main(arguments: list[str]) -> None:
    """Plot every suite of single GEMMs in a file."""
    parser = command_line.parser("plot", __doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the plots")
    args = parser.parse_args(arguments)
    document = results.load(args.file)
    args.out.mkdir(parents=True, exist_ok=True)
    for suite in dict.fromkeys(
        row["suite"] for row in document["rows"] if row["suite"] not in results.FIELDS
    ):
        path = args.out / f"{args.file.stem}_{suite}.png"
        figure = draw(document, suite)
        figure.savefig(path, dpi=DPI)
        pyplot.close(figure)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
