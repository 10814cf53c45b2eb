# SPDX-License-Identifier: Apache-2.0
"""Pictures of a results file: ratio to the baseline and TFLOP/s over size, one PNG a suite.

python -m benchmarks.plot benchmarks/results/gemm.json --out FOLDER
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: there may be no display

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from benchmarks import results  # noqa: E402
from benchmarks.results import Row  # noqa: E402

FIGURE_INCHES = (8, 7)
DPI = 150


def size(row: Row) -> float:
    """The side of the cube with as many multiplications: (M N K) ** (1/3)."""
    return (row["m"] * row["n"] * row["k"]) ** (1 / 3)


def lines(rows: list[Row], suite: str) -> dict[str, list[Row]]:
    """Rows of one suite by contender, dtype, majors and regime, each sorted by size."""
    found: dict[str, list[Row]] = {}
    for row in sorted((r for r in rows if r["suite"] == suite), key=size):
        name = f"{row['contender']} {row['dtype']} {row['majors']}, {row['regime']}"
        found.setdefault(name, []).append(row)
    return found


def draw(document: dict[str, Any], suite: str, path: Path) -> None:
    """Draw one suite of a results document as PNG."""
    figure, (upper, lower) = pyplot.subplots(2, 1, sharex=True, figsize=FIGURE_INCHES, layout="constrained")
    for number, (name, rows) in enumerate(lines(document["rows"], suite).items()):
        style = {"label": name, "color": f"C{number}", "marker": "o", "markersize": 4, "linewidth": 1}
        if any(row["contender"] != row["baseline"] and row["ratio"] is not None for row in rows):
            _line(upper, rows, "ratio", style)
        _line(lower, rows, "tflops", style)
    upper.axhline(1, color="grey", linewidth=1)
    upper.set_ylabel("times as fast as the baseline")
    lower.set_ylabel("TFLOP/s")
    lower.set_ylim(bottom=0)
    lower.set_xscale("log", base=2)
    lower.set_xlabel("size: (M N K)^(1/3)")
    lower.legend(fontsize="small")
    environment = document["environment"]
    measured = f"{environment['gpu']}, {environment['date'][:10]}, commit {environment['commit'][:10]}"
    figure.suptitle(f"{suite}: {measured}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)


def _line(axes: Axes, rows: list[Row], field: str, style: dict[str, Any]) -> None:
    points = [(size(row), row[field]) for row in rows if row[field] is not None]
    axes.plot(*zip(*points, strict=True), **style)


def main(arguments: list[str]) -> None:
    """Draw every suite of a file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    args = parser.parse_args(arguments)
    document = results.load(args.file)
    for suite in dict.fromkeys(row["suite"] for row in document["rows"] if row["suite"] != "host"):
        path = args.out / f"{args.file.stem}_{suite}.png"
        draw(document, suite, path)
        print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
