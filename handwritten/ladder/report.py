# SPDX-License-Identifier: Apache-2.0
"""The ladder as terminal tables, with measured columns if there are measurements, and only columns that fit."""

from __future__ import annotations

import collections
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from handwritten.ladder import bounds
from handwritten.ladder.registry import stages
from handwritten.ladder.stage import Stage

SQUARE = (4096, 4096, 4096)  # the problem of the bound without measurements
FREQUENT = 5  # opcodes shown of a stage's instruction mix
UNBOUNDED = 10_000  # columns of an output that is not a terminal

if TYPE_CHECKING:
    from handwritten.ladder.emulated import Outcome

Row = dict[str, Any]

MEASURED = ("TFLOP/s", "of cuBLAS", "x before")
HEAD = (
    "stage",
    *MEASURED,
    "FLOP/byte",
    "bound",
    "registers",
    "smem KiB",
    "occupancy",
    "CTAs per SM (limit)",
)
# columns of `counted` -> the sums of these emulator counters
COUNTED_AS = {
    "sectors": ("global_load_sectors",),
    "TMA bytes": ("tma_load_bytes",),
    "wavefronts": ("shared_load_wavefronts", "shared_store_wavefronts", "wgmma_shared_wavefronts"),
}
COUNTED = ("stage", *COUNTED_AS, "conflicts", "instr.", "races")
LEAST_FIRST = (
    "bound",
    "CTAs per SM (limit)",
    "FLOP/byte",
    "smem KiB",
    "occupancy",
    "registers",
)  # the order of dropping columns


def console() -> Console:
    """Return the console of the command, unbounded if neither a terminal nor COLUMNS sets a width."""
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if bounded else UNBOUNDED, soft_wrap=not bounded)


def counted(outcomes: Sequence[Outcome], shape: tuple[int, int, int]) -> Table:
    """The emulator's counts of each stage on one problem.

    Sectors of 32 bytes are accessed by global loads, wavefronts by shared memory; conflicts are wavefronts above the
    minimum; instructions are per warp.
    """
    title = f"Correct in the emulator: M x N x K = {' x '.join(map(str, shape))}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COUNTED:
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for x in outcomes:
        table.add_row(
            x.stage.key,
            *(f"{sum(x.counters.get(name, 0) for name in names):,.0f}" for names in COUNTED_AS.values()),
            f"{x.conflicts:,}",
            f"{x.instructions:,}",
            str(len(x.findings)),
        )
    return table


@dataclass(frozen=True)
class Line:
    """One stage's line: static columns, and its measured row if there is one."""

    stage: Stage
    dtype: str
    row: Row | None
    before: Row | None  # the fastest measured row of the stage before it, in the same dtype

    def cells(self) -> dict[str, str]:
        """Return the line's cells by column."""
        used, intensity = self.stage.resources(self.dtype), self.stage.intensity(self.dtype)
        return {
            "stage": self.stage.key,
            **self._measured(),
            "FLOP/byte": f"{intensity:.3g}",
            "bound": self._bound(),
            "registers": str(used.registers) + (f" (+{used.stack} B stack)" if used.stack else ""),
            "smem KiB": f"{used.smem / 1024:.1f}",
            "occupancy": f"{used.occupancy:.0%}",
            "CTAs per SM (limit)": f"{used.ctas_per_sm} ({used.bound})",
        }

    def _bound(self) -> str:
        """The bound of the stage by its counters (`bounds.bound`)."""
        if self.row is None:
            return bounds.bound(self.stage.key, self.dtype, SQUARE, None)
        shape = (self.row["m"], self.row["n"], self.row["k"])
        return bounds.bound(self.stage.key, self.dtype, shape, self.row["us"])

    def _measured(self) -> dict[str, str]:
        if self.row is None:
            return {}
        step = {"x before": f"{self.before['us'] / self.row['us']:.2f}"} if self.before else {}
        return _speed(self.row) | step


def _speed(row: Row) -> dict[str, str]:
    return {"TFLOP/s": f"{row['tflops']:.1f}", "of cuBLAS": f"{row['ratio']:.1%}"}


def lines(
    rows: Sequence[Row], dtypes: Sequence[str] = ("fp32", "bf16"), chosen: Iterable[Stage] | None = None
) -> list[Line]:
    """Return a line per chosen stage in its first dtype of `dtypes`; rows are of one problem per dtype."""
    measured = {(row["dtype"], row["contender"]): row for row in rows}
    found: list[Line] = []
    fastest: dict[str, dict[int, Row]] = {}  # dtype -> a stage's number -> the fastest row of its variants
    for stage in stages() if chosen is None else chosen:
        dtype = next((dtype for dtype in dtypes if dtype in stage.dtypes), None)
        if dtype is None:
            continue
        row = measured.get((dtype, stage.key))
        known = fastest.setdefault(dtype, {})
        below = [number for number in known if number < stage.number]
        found.append(Line(stage, dtype, row, known[max(below)] if below else None))
        if row is not None:
            known[stage.number] = min(row, known.get(stage.number, row), key=lambda each: float(each["us"]))
    return found


def fitting(candidates: Iterable[Table], console: Console) -> Table:
    """Return the first of the tables, widest first, that fits without wrapping; else the last."""
    table = Table()
    for table in candidates:
        needed = console.measure(table, options=console.options.update(max_width=UNBOUNDED)).maximum
        if needed <= console.width:
            break
    return table


def table(
    rows: Sequence[Row],
    title: str,
    dtypes: Sequence[str],
    *,
    width: Console,
    chosen: Iterable[Stage] | None = None,
) -> Table:
    """Return the ladder as a terminal table, without measured columns if there are no rows.

    Columns that do not fit are dropped, the least important first, and listed below the table.
    """
    body = [line.cells() for line in lines(rows, dtypes, chosen)]
    known = {stage.key for stage in stages()}
    others = [
        {"stage": f"{row['contender']} ({row['dtype']})"} | _speed(row)  # cuBLAS, the builder, twins
        for row in rows
        if row["contender"] not in known and row["dtype"] in dtypes
    ]
    shown = [name for name in HEAD if rows or name not in MEASURED]

    def candidates() -> Iterator[Table]:
        for count in range(len(LEAST_FIRST) + 1):
            left_out = LEAST_FIRST[:count]
            kept = [name for name in shown if name not in left_out]
            caption = f"left out at this width: {', '.join(left_out)}" if left_out else None
            yield _ladder(title, caption, kept, body, others)

    return fitting(candidates(), width)


def _ladder(
    title: str,
    caption: str | None,
    names: Sequence[str],
    body: Iterable[dict[str, str]],
    others: Iterable[dict[str, str]],
) -> Table:
    result = Table(title=title, caption=caption)
    for name in names:
        result.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for cells in body:
        result.add_row(*(cells.get(name, "") for name in names))
    for cells in others:
        result.add_row(*(cells.get(name, "") for name in names), style="bold")
    return result


def mix(dtypes: Sequence[str], *, width: Console, chosen: Iterable[Stage] | None = None) -> Table:
    """Return each stage's instruction mix: the instruction of its idea, and as many others as fit.

    Raises:
        CompileError: there is no disassembler.
    """
    counted = [(line.stage, line.stage.instructions) for line in lines([], dtypes, chosen)]
    choices = [(4, frequent) for frequent in range(FREQUENT, 0, -1)] + [(3, 0), (2, 0)]
    return fitting((_mix(counted, columns, frequent) for columns, frequent in choices), width)


def _mix(counted: Iterable[tuple[Stage, collections.Counter[str]]], columns: int, frequent: int) -> Table:
    result = Table(title="Instruction mix (SASS, static)")
    for name in ("stage", "its idea", "instructions", "most frequent")[:columns]:
        result.add_column(name, justify="right" if name == "instructions" else "left", no_wrap=True)
    for stage, counts in counted:
        idea = {name: count for name, count in counts.items() if re.match(stage.instruction, name)}
        families: collections.Counter[str] = collections.Counter()
        for name, count in counts.items():
            families[name.split(".")[0]] += count
        others = ", ".join(f"{name} {count}" for name, count in families.most_common(frequent))
        shown = f"{min(idea, key=len)} {sum(idea.values())}" if idea else ""
        cells = [stage.key, shown, str(sum(counts.values())), others]
        result.add_row(*cells[:columns])
    return result


def of_problem(rows: Iterable[Row], m: int, n: int, k: int, beta: float = 0.0) -> list[Row]:
    """Return the rows of one problem."""
    return [row for row in rows if (row["m"], row["n"], row["k"], row["beta"]) == (m, n, k, beta)]
