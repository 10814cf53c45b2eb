# SPDX-License-Identifier: Apache-2.0
"""Writes the ladder's figures from a results file: README.md's tables and the `Measured` line of every header.

In README.md the text between `<!-- ladder:NAME -->` and `<!-- /ladder:NAME -->` is replaced. NAME is "tables", a
stage's number, or "ablation": the speed of stage 19 as its changes are undone, from the ablation file of the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cutegemm.errors import GemmError, InputError, field_error
from handwritten.ladder import bars
from handwritten.ladder.names import BASELINE, BUILDER, SPLIT_K_SHAPE, one_part, twin_name
from handwritten.ladder.registry import stages
from handwritten.ladder.source import with_measured
from handwritten.ladder.stage import Stage
from handwritten.ladder.twins import knobs

SQUARES = (4096, 8192)
BETA = 0.5  # of the rows with C
_MARKED = re.compile(r"(<!-- ladder:(?P<name>\w+) -->\n)(.*?)(<!-- /ladder:(?P=name) -->)", re.DOTALL)

Row = dict[str, Any]


class Figures:
    """The rows of a results file by problem and contender."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.environment = document["environment"]
        self._rows = {
            (row["dtype"], row["m"], row["n"], row["k"], row["beta"], row["contender"]): row
            for row in document["rows"]
        }

    def row(
        self, dtype: str, shape: int | tuple[int, int, int], contender: str, beta: float = 0.0
    ) -> Row | None:
        """Return one contender's row; an int as shape is a square."""
        extents = (shape,) * 3 if isinstance(shape, int) else shape
        return self._rows.get((dtype, *extents, beta, contender))

    def step(self, stage: Stage, dtype: str, size: int) -> float | None:
        """Return the speed-up of a stage over the fastest variant of the previous one."""
        row = self.row(dtype, size, stage.key)
        below = (
            other.key for other in stages() if other.number == stage.number - 1 and dtype in other.dtypes
        )
        before = [found["us"] for key in below if (found := self.row(dtype, size, key))]
        return min(before) / row["us"] if row and before else None


def write(source: Path, folder: Path) -> None:
    """Write a results file's figures into the folder's README.md, its chart and the headers of its stages."""
    try:
        found = texts(source, folder)
    except GemmError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        rule = "must be a file that `python -m handwritten --json` wrote, with its ablation beside it"
        raise field_error(InputError, "--readme", str(source), rule) from error
    for path, text in found.items():
        path.write_text(text, "utf-8")


def texts(source: Path, folder: Path) -> dict[Path, str]:
    """Return the new text of each file in the folder that shows figures of a results file."""
    figures = Figures(json.loads(source.read_text("utf-8")))
    readme = folder / "README.md"
    parts = sections(figures, source.as_posix()) | {
        "ablation": ablation(json.loads(beside(source).read_text("utf-8")))
    }
    found = {readme: fill(readme.read_text("utf-8"), parts), folder / "ladder.svg": bars.picture(figures)}
    for path in (folder / name for name in dict.fromkeys(stage.file for stage in stages())):
        found[path] = with_measured(path.read_text("utf-8"), header(figures, path.name))
    return found


def beside(source: Path) -> Path:
    """Return the ablation file of a results file."""
    return source.with_name(f"{source.stem}_ablation.json")


def ablation(document: dict[str, Any]) -> str:
    """Return the speed of stage 19 unchanged and with the file's changes, applied cumulatively."""
    figures = Figures(document)
    cases = [(size, beta) for size in reversed(SQUARES) for beta in (BETA, 0.0)]
    head = ["stage 19", *(f"{size}³, beta {beta:g}" for size, beta in cases)]
    first = {row["contender"] for row in document["rows"]} - {BASELINE, *document["variants"]}
    names = dict.fromkeys(first, "as it is") | {
        name: variant["change"] for name, variant in document["variants"].items()
    }
    rows = [
        [what, *(" · ".join(_cells(figures.row("bf16", size, name, beta))) for size, beta in cases)]
        for name, what in names.items()
    ]
    return f"TFLOP/s · share of cuBLAS in the same run:\n\n{_markdown(head, rows)}"


def sections(figures: Figures, source: str) -> dict[str, str]:
    """Return the text of the tables and stages in README.md."""
    found = {"tables": tables(figures, source)}
    for number in dict.fromkeys(stage.number for stage in stages()):
        lines = [_line(figures, stage) for stage in stages() if stage.number == number]
        found[f"{number:02}"] = "\n".join(line for line in lines if line)
    return found


def fill(text: str, parts: dict[str, str]) -> str:
    """Replace the text between each pair of markers.

    Raises:
        GemmError: the markers are not exactly those of `parts`.
    """
    names = [match["name"] for match in _MARKED.finditer(text)]
    if sorted(names) != sorted(parts):
        raise GemmError(f"markers={sorted(names)}: must be {sorted(parts)}, each once and closed")
    return _MARKED.sub(lambda match: f"{match[1]}{parts[match['name']]}\n{match[4]}", text)


def header(figures: Figures, name: str) -> str:
    """Return the `Measured` line of a stage's file, at 4096³ or the split-K shape; the share is the best variant's."""
    members = [stage for stage in stages() if stage.file == name]
    number, dtype = members[0].number, members[0].dtypes[0]
    shape = SPLIT_K_SHAPE if number >= 21 else (SQUARES[0],) * 3
    rows = [(stage, row) for stage in members if (row := figures.row(dtype, shape, stage.key))]
    title = " x ".join(map(str, shape)) if number >= 21 else f"{SQUARES[0]}^3"
    speeds = ", ".join(f"{stage.variant} {row['tflops']:.3g}".strip() for stage, row in rows)
    share = max((row["ratio"] for _, row in rows), default=0)
    where = f"README.md, stage {number:02}."
    return f"{title}, {dtype}: {speeds} TFLOP/s, {share:.0%} of cuBLAS; {where}" if rows else where


def _speed(row: Row) -> str:
    return f"{row['tflops']:.3g} TFLOP/s, {row['ratio']:.0%} of cuBLAS"


def _line(figures: Figures, stage: Stage) -> str:
    """Return a stage's figures in one line of prose; empty without any."""
    dtype = stage.dtypes[0]
    label = f"- `{stage.variant}`: " if stage.variant else "Measured: "
    parts = []
    for size in SQUARES:
        row, step = figures.row(dtype, size, stage.key), figures.step(stage, dtype, size)
        if row:
            times = f", {step:.2f} × stage {stage.number - 1:02}" if step else ""
            parts.append(f"{size}³ {_speed(row)}{times}")
    row = figures.row(dtype, SQUARES[-1], stage.key, BETA)
    if row:
        parts.append(f"{SQUARES[-1]}³ with beta {BETA:g} {_speed(row)}")
    whole, unsplit = (figures.row(dtype, SPLIT_K_SHAPE, name) for name in (stage.key, one_part(stage.key)))
    if whole and unsplit:
        times = unsplit["us"] / whole["us"]
        parts.append(
            f"128×128×16384 {whole['us']:.1f} µs, {times:.1f} × one split, {whole['ratio']:.0%} of cuBLAS"
        )
    return label + "; ".join(parts) + "." if parts else ""


def tables(figures: Figures, source: str) -> str:
    """Return the README's tables, with the machine and the source file."""
    found = figures.environment
    machine = f"{found['gpu']}, torch {found['torch']}, NVRTC {found['nvrtc']}, {found['date'][:10]}"
    parts = [f"{machine}, commit {found['commit'][:10]}; from `{source}`."]
    for dtype in ("fp32", "bf16"):
        parts.append(f"\n**{dtype}, beta 0**\n\n{_squares(figures, dtype)}")
    parts.append(f"\n**bf16, beta {BETA:g}**\n\n{_with_c(figures)}")
    parts.append(
        f"\n**The same kernels by cutegemm, bf16, TFLOP/s: one field of `GemmSpec` per row**\n\n{_knobs(figures)}"
    )
    parts.append(f"\n**Split-K, bf16, 128×128×16384**\n\n{_split_k(figures)}")
    return "\n".join(parts)


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _cells(row: Row | None) -> list[str]:
    return [f"{row['tflops']:.1f}", f"{row['ratio']:.1%}"] if row else ["", ""]


def _squares(figures: Figures, dtype: str) -> str:
    head = ["stage", "FLOP/byte"]
    for size in SQUARES:
        head += [f"{size}³ TFLOP/s", "of cuBLAS", "× before"]
    rows = []
    for stage in stages():
        if dtype not in stage.dtypes:
            continue
        cells = [stage.key, f"{stage.intensity(dtype):.3g}"]
        for size in SQUARES:
            step = figures.step(stage, dtype, size)
            cells += [*_cells(figures.row(dtype, size, stage.key)), f"{step:.2f}" if step else ""]
        rows.append(cells)
    for name in (BASELINE, BUILDER):
        cells = [name, ""]
        for size in SQUARES:
            cells += [*_cells(figures.row(dtype, size, name)), ""]
        rows.append(cells)
    return _markdown(head, rows)


def _with_c(figures: Figures) -> str:
    head = ["stage"]
    for size in SQUARES:
        head += [f"{size}³ TFLOP/s", "of cuBLAS"]
    names = [stage.key for stage in stages() if 18 <= stage.number <= 20] + [BASELINE, BUILDER]
    rows = [
        [name, *(c for size in SQUARES for c in _cells(figures.row("bf16", size, name, BETA)))]
        for name in names
    ]
    return _markdown(head, rows)


def _knobs(figures: Figures) -> str:
    head = ["spec"] + [f"{size}³ {what}" for size in SQUARES for what in ("DSL", "raw CUDA")]
    twins = {twin_name(stage.key): stage.key for stage in stages()}
    rows = []
    for name in knobs():
        cells = [twins.get(name, name)]
        for size in SQUARES:
            found = [figures.row("bf16", size, who) for who in (name, twins.get(name, ""))]
            cells += [f"{row['tflops']:.0f}" if row else "" for row in found]
        rows.append(cells)
    return _markdown(head, rows)


def _split_k(figures: Figures) -> str:
    rows = []
    for stage in stages():
        whole, unsplit = (
            figures.row("bf16", SPLIT_K_SHAPE, name) for name in (stage.key, one_part(stage.key))
        )
        if whole and unsplit:
            times = [f"{unsplit['us']:.1f}", f"{whole['us']:.1f}", f"{unsplit['us'] / whole['us']:.1f}"]
            rows.append([stage.key, *times, f"{whole['ratio']:.1%}"])
    for name in (BASELINE, BUILDER):
        row = figures.row("bf16", SPLIT_K_SHAPE, name)
        if row:
            rows.append([name, "", f"{row['us']:.1f}", "", f"{row['ratio']:.1%}"])
    return _markdown(["stage", "one split, µs", "split-K, µs", "×", "of cuBLAS"], rows)
