# SPDX-License-Identifier: Apache-2.0
"""Output of commands: one JSON document, or text that fits the terminal, or 80 columns in a pipe."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import typer

from cutegemm.checks import plain

T = TypeVar("T")
# columns of piped output, and the least width of a table's last column
PIPED, LEAST = 80, 16


def width() -> int:
    """Columns of the terminal, or `PIPED`."""
    import shutil
    import sys

    # a process may be started with a closed standard output
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return max(40, shutil.get_terminal_size((PIPED, 24)).columns) if terminal else PIPED


def print_facts(command: str, facts: T, as_text: Callable[[T], str], as_json: bool) -> None:
    """Print a command's facts as text, or as JSON (see `schema`)."""
    typer.echo(json.dumps({"command": command, **plain(facts)}, indent=1) if as_json else as_text(facts))


def _lines(text: str, columns: int) -> list[str]:
    wrapped = (
        textwrap.wrap(x, columns, break_on_hyphens=False, break_long_words=False) for x in text.splitlines()
    )
    return [line for lines in wrapped for line in lines] or [""]


def wrapped(label: str, text: str, margin: int = 12) -> str:
    """A paragraph with a label on the left of its first line."""
    lines = _lines(text, max(20, width() - margin))
    return "\n".join(f"{label if not i else '':<{margin}}{line}" for i, line in enumerate(lines))


def table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = (), indent: int = 2
) -> str:
    """Columns of text; the last one is wrapped to the width, and those with indices in `right` are right-aligned."""
    cells = [[str(x) for x in heads], *([str(x) for x in row] for row in rows)]
    if not any(cells[0]):
        del cells[0]
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    before = indent + sum(widths[:-1]) + 2 * (len(widths) - 1)
    room = width() - before
    # if the other columns leave too little width, the last one gets lines of its own
    below = room < min(LEAST, widths[-1])
    margin, last = (indent + 4, width() - indent - 4) if below else (before, room)
    lines = []
    for row in cells:
        start = " " * indent + "".join(
            (f"{x:>{w}}" if i in right else f"{x:<{w}}") + "  "
            for i, (x, w) in enumerate(zip(row[:-1], widths, strict=False))
        )
        ends = [f"{row[-1]:>{widths[-1]}}"] if len(row) - 1 in right else _lines(row[-1], max(LEAST, last))
        if below:
            lines += textwrap.wrap(start, width(), subsequent_indent=" " * margin, break_on_hyphens=False)
            start = " " * margin
        lines += [(start if not i else " " * margin) + end for i, end in enumerate(ends)]
    return "\n".join(line.rstrip() for line in lines)
