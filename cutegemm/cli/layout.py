# SPDX-License-Identifier: Apache-2.0
"""`cutegemm layout`: draws a layout, or which thread holds which value of an instruction, and counts conflicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutegemm.cli.facts.drawing import ACCESSES, Cell, Conflicts, Drawn, drawn, instruction
from cutegemm.cli.given import Json, _one_of
from cutegemm.cli.output import say, width, write_json
from cutegemm.errors import InputError, field_error

# rows and columns that the terminal shows; an SVG has all
MOST_ROWS, MOST_COLUMNS = 64, 64


def layout(
    shape: Annotated[
        str,
        typer.Argument(metavar="[LAYOUT]", help='such as "(8,8):(8,1)" or "S<3,3,3> o 0 o (8,64):(64,1)"'),
    ] = "",
    swizzle: Annotated[str, typer.Option(metavar="B,M,S", help="put Swizzle<B,M,S> around it")] = "",
    banks: Annotated[
        str,
        typer.Option(
            help=f"count the conflicts of one warp's access: {', '.join(ACCESSES)}",
            metavar="ACCESS",
            autocompletion=_one_of(tuple(ACCESSES)),
        ),
    ] = "",
    mma: Annotated[str, typer.Option(metavar="m64nNkK", help="draw a wgmma's fragment instead")] = "",
    operand: Annotated[str, typer.Option(metavar="c|a", help="of --mma: accumulators, or A")] = "c",
    bits: Annotated[int, typer.Option(help="of an element: 8, 16 or 32")] = 16,
    lane: Annotated[int, typer.Option(metavar="BYTES", help="that a lane of row or column moves")] = 4,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="write a picture")] = None,
    json: Json = False,
) -> None:
    """Draw a layout, or who holds what of an instruction, and count bank conflicts."""
    if bool(shape) == bool(mma):
        raise field_error(
            InputError, "LAYOUT", shape, "give a layout or --mma, one of the two", "(8,8):(8,1)"
        )
    found = instruction(mma, operand) if mma else drawn(shape, swizzle, banks, bits, lane)
    if svg is not None:
        from cutegemm.cli.svg import layout_svg

        svg.write_text(layout_svg(found, bits), "utf-8")
    if json:
        write_json("layout", found)
        return
    say(found.layout)
    say(f"{found.what} of (row, column); size {found.size:,}, cosize {found.cosize:,}")
    say(_table(found))
    if found.banks is not None:
        say()
        say(_usage(found.banks))


def _table(found: Drawn) -> str:
    """The cells, in blocks of as many columns as fit beside each other."""
    rows, columns = min(found.rows, MOST_ROWS), min(found.columns, MOST_COLUMNS)
    words = [_words(cell) for cell in found.cells]
    cell = max(map(len, words)) + 1
    margin = len(str(rows - 1)) + 1
    block = max(1, (width() - margin) // cell)
    # blocks of a power of two, where one fits, read best
    block = min(columns, 1 << block.bit_length() - 1)
    lines = []
    for first in range(0, columns, block):
        here = range(first, min(first + block, columns))
        lines.append(" " * margin + "".join(f"{column:{cell}}" for column in here))
        for row in range(rows):
            values = "".join(f"{words[row * found.columns + column]:>{cell}}" for column in here)
            lines.append(f"{row:{margin - 1}}:{values}")
    if (rows, columns) != (found.rows, found.columns):
        lines.append(
            f"shown: {rows} of {found.rows} rows, {columns} of {found.columns} columns; --svg has all"
        )
    return "\n".join(lines)


def _words(cell: Cell) -> str:
    return str(cell.offset) if cell.thread < 0 else f"{cell.thread}:{cell.value}"


def _usage(found: Conflicts) -> str:
    """Words that each bank serves, a line a phase: `.` for none, `+` above 9."""
    lines = [f"{found.access}: words that each bank serves", "bank     0       8       16      24"]
    for i, phase in enumerate(found.phases):
        row = "".join("." if not n else "+" if n > 9 else str(n) for n in phase)
        lines.append(f"phase {i}  {row}  {_count(max(phase), 'wavefront')}")
    lines.append(f"total    {_count(found.wavefronts, 'wavefront')}, {_count(found.conflicts, 'conflict')}")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


__all__ = ["layout"]
