# SPDX-License-Identifier: Apache-2.0
"""Charts of the ladder: bars at the largest problem, and curves over size if there are several squares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from handwritten.ladder.names import BASELINE, BUILDER, twin_name
from handwritten.ladder.registry import stages
from handwritten.ladder.report import Row, of_problem

PANEL_INCHES = (8.5, 8)
DPI = 100
_BUILT = {BUILDER} | {twin_name(stage.key) for stage in stages()}
_ORDER = [name for stage in stages() for name in (stage.key, twin_name(stage.key))] + [BUILDER, BASELINE]

Problem = tuple[int, int, int, float]  # M, N, K and beta


def draw(rows: Sequence[Row]) -> Figure:
    """Draw a row of charts per dtype.

    Left: TFLOP/s of each stage and its twin, of cutegemm and of cuBLAS, at the dtype's largest problem. Right: TFLOP/s
    over the size of squares with the same beta, without twins, if the dtype has two or more sizes.
    """
    of_dtype = {
        dtype: [row for row in rows if row["dtype"] == dtype]
        for dtype in sorted({row["dtype"] for row in rows})
    }
    largest = {dtype: _largest(found) for dtype, found in of_dtype.items()}
    squares = {dtype: _squares(found, largest[dtype][3]) for dtype, found in of_dtype.items()}
    curved = {dtype for dtype, found in squares.items() if len({row["m"] for row in found}) > 1}
    height, width = max(len(of_dtype), 1), 2 if curved else 1
    figure = Figure(figsize=(PANEL_INCHES[0] * width, PANEL_INCHES[1] * height), layout="constrained")
    panels = figure.subplots(height, width, squeeze=False)
    for axes, (dtype, found) in zip(panels, of_dtype.items()):
        _bars(axes[0], dtype, largest[dtype], found)
        if dtype in curved:
            _curves(axes[1], dtype, squares[dtype])
        elif curved:
            axes[1].set_axis_off()
    return figure


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write the charts of `draw` as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(rows).savefig(path, dpi=DPI)


def _largest(rows: Iterable[Row]) -> Problem:
    """Return the problem with the most work; ties go to the smaller beta."""
    problems = {(row["m"], row["n"], row["k"], row["beta"]) for row in rows}
    return max(problems, key=lambda each: (each[0] * each[1] * each[2], -each[3]))


def _squares(rows: Iterable[Row], beta: float) -> list[Row]:
    return [row for row in rows if row["m"] == row["n"] == row["k"] and row["beta"] == beta]


def _bars(axes: Axes, dtype: str, problem: Problem, rows: Sequence[Row]) -> None:
    m, n, k, beta = problem
    speeds = {row["contender"]: row["tflops"] for row in of_problem(rows, m, n, k, beta)}
    names = [name for name in _ORDER if name in speeds]
    axes.barh(names, [speeds[name] for name in names], color=[_color(name) for name in names])
    axes.invert_yaxis()
    size = f"{m}³" if m == n == k else f"{m}×{n}×{k}"
    axes.set(title=f"{dtype} {size}, beta {beta:g}", xlabel="TFLOP/s")


def _curves(axes: Axes, dtype: str, rows: Sequence[Row]) -> None:
    colors: Any = matplotlib.colormaps["tab20"]
    axes.set_prop_cycle(color=colors.colors)
    for name in (name for name in _ORDER if name == BUILDER or name not in _BUILT):
        points = sorted((row["m"], row["tflops"]) for row in rows if row["contender"] == name)
        if points:
            style = "--" if name in (BUILDER, BASELINE) else "-"
            axes.plot(*zip(*points), style, marker=".", label=name)
    axes.set(title=f"{dtype}, squares", xlabel="M = N = K", ylabel="TFLOP/s", xscale="log")
    axes.legend(fontsize=7, loc="upper left")


def _color(name: str) -> str:
    """Return the colour of a bar: stage, cutegemm or cuBLAS."""
    return "tab:gray" if name == BASELINE else "tab:orange" if name in _BUILT else "tab:blue"
