# SPDX-License-Identifier: Apache-2.0
"""The ladder as a terminal table and as charts; measured columns only where there are measurements."""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from handwritten.names import BASELINE, BUILDER, twin_name
from handwritten.registry import stages
from handwritten.rung import Stage

# Ridge points: datasheet peak over datasheet memory bandwidth of an H200 SXM, in FLOP/byte.
MEMORY_TBS = 4.8
PEAK_TFLOPS = {"fp32": 67.0, "bf16": 989.0, "fp16": 989.0}

FREQUENT = 5  # opcodes shown of a stage's instruction mix

Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One stage's line: what needs no GPU, and its measured row if there is one."""

    stage: Stage
    dtype: str
    row: Row | None
    before: Row | None  # the fastest measured row of the last rung before it, in the same dtype

    def cells(self) -> list[str]:
        """Return the line's cells, in the order of `HEAD`."""
        used, intensity = self.stage.resources(self.dtype), self.stage.intensity(self.dtype)
        ridge = PEAK_TFLOPS[self.dtype] / MEMORY_TBS
        return [
            self.stage.key,
            *self._measured(),
            f"{intensity:.3g}",
            "memory" if intensity < ridge else "compute",
            str(used.registers) + (f" (+{used.stack} B stack)" if used.stack else ""),
            f"{used.smem / 1024:.1f}",
            f"{used.occupancy:.0%}",
            f"{used.ctas_per_sm} ({used.bound})",
        ]

    def _measured(self) -> list[str]:
        if self.row is None:
            return ["", "", ""]
        step = f"{self.before['us'] / self.row['us']:.2f}" if self.before else ""
        return [f"{self.row['tflops']:.1f}", f"{self.row['ratio']:.1%}", step]


HEAD = [
    "stage",
    "TFLOP/s",
    "of cuBLAS",
    "x before",
    "FLOP/byte",
    "bound",
    "registers",
    "smem KiB",
    "occupancy",
    "CTAs per SM (limit)",
]


def lines(rows: list[Row], dtypes: tuple[str, ...] = ("fp32", "bf16")) -> list[Line]:
    """Return a line for each stage in its first dtype among `dtypes`; rows are of one problem per dtype."""
    measured = {(row["dtype"], row["contender"]): row for row in rows}
    found: list[Line] = []
    rungs: dict[str, dict[int, Row]] = {}  # dtype -> number of the rung -> its fastest row
    for stage in stages():
        dtype = next((dtype for dtype in dtypes if dtype in stage.dtypes), None)
        if dtype is None:
            continue
        row = measured.get((dtype, stage.key))
        fastest = rungs.setdefault(dtype, {})
        below = [number for number in fastest if number < stage.number]
        found.append(Line(stage, dtype, row, fastest[max(below)] if below else None))
        if row is not None:
            fastest[stage.number] = min(row, fastest.get(stage.number, row), key=lambda each: each["us"])
    return found


def table(rows: list[Row], title: str, dtypes: tuple[str, ...]) -> Table:
    """Return the ladder as a terminal table; without rows the measured columns are left out."""
    shown = [i for i in range(len(HEAD)) if rows or not 1 <= i <= 3]
    result = Table(title=title)
    for i in shown:
        result.add_column(HEAD[i], justify="left" if i == 0 else "right", no_wrap=i == 0)
    for line in lines(rows, dtypes):
        cells = line.cells()
        result.add_row(*(cells[i] for i in shown))
    known = {stage.key for stage in stages()}
    for row in rows:
        if row["contender"] not in known and row["dtype"] in dtypes:  # cuBLAS, the builder, twins
            name = f"{row['contender']} ({row['dtype']})"
            cells = [name, f"{row['tflops']:.1f}", f"{row['ratio']:.1%}"] + [""] * (len(HEAD) - 3)
            result.add_row(*(cells[i] for i in shown), style="bold")
    return result


def mix(dtypes: tuple[str, ...]) -> Table:
    """Return what each stage's code consists of: the instruction that is its idea, and the most frequent ones.

    Raises:
        CompileError: there is no disassembler.
    """
    result = Table(title="Instruction mix (SASS, static)")
    for name in ("stage", "its idea", "instructions", "most frequent"):
        result.add_column(name, justify="right" if name == "instructions" else "left")
    for line in lines([], dtypes):
        counts = line.stage.instructions
        idea = {name: count for name, count in counts.items() if re.match(line.stage.instruction, name)}
        families: collections.Counter[str] = collections.Counter()
        for name, count in counts.items():
            families[name.split(".")[0]] += count
        frequent = (f"{name} {count}" for name, count in families.most_common(FREQUENT))
        shown = f"{min(idea, key=len)} {sum(idea.values())}" if idea else ""
        result.add_row(line.stage.key, shown, str(sum(counts.values())), ", ".join(frequent))
    return result


def of_size(rows: list[Row], m: int, n: int, k: int, beta: float = 0.0) -> list[Row]:
    """Return the rows of one problem."""
    return [row for row in rows if (row["m"], row["n"], row["k"], row["beta"]) == (m, n, k, beta)]


def plot(rows: list[Row], path: Path) -> None:
    """Draw a page a dtype: the ladder as bars at its largest square, and TFLOP/s over size as curves.

    Bars are the stages, each followed by its twin, then the builder and cuBLAS; curves leave the twins out.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    squares = [row for row in rows if row["m"] == row["n"] == row["k"] and row["beta"] == 0]
    dtypes = sorted({row["dtype"] for row in squares})
    figure, axes = plt.subplots(max(len(dtypes), 1), 2, figsize=(17, 8 * max(len(dtypes), 1)), squeeze=False)
    for (bars, curves), dtype in zip(axes, dtypes):
        chosen = [row for row in squares if row["dtype"] == dtype]
        largest = max(row["m"] for row in chosen)
        speeds = {row["contender"]: row["tflops"] for row in chosen if row["m"] == largest}
        shown = [name for stage in stages() for name in (stage.key, twin_name(stage.key))] + [
            BUILDER,
            BASELINE,
        ]
        names = [name for name in shown if name in speeds]
        bars.barh(names, [speeds[name] for name in names], color=[_color(name) for name in names])
        bars.invert_yaxis()
        bars.set(title=f"{dtype} {largest}³, beta 0", xlabel="TFLOP/s")
        curves.set_prop_cycle(color=matplotlib.colormaps["tab20"].colors)
        for name in (name for name in shown if name == BUILDER or _color(name) != _color(BUILDER)):
            points = sorted((row["m"], row["tflops"]) for row in chosen if row["contender"] == name)
            if points:
                style = "--" if name in (BUILDER, BASELINE) else "-"
                curves.plot(*zip(*points), style, marker=".", label=name)
        curves.set(title=f"{dtype}, squares", xlabel="M = N = K", ylabel="TFLOP/s", xscale="log")
        curves.legend(fontsize=7, loc="upper left")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _color(name: str) -> str:
    """Return the bar's colour: stages, what the builder made, cuBLAS."""
    return "tab:gray" if name == BASELINE else "tab:orange" if name in _BUILT else "tab:blue"


_BUILT = {BUILDER} | {twin_name(stage.key) for stage in stages()}
