# SPDX-License-Identifier: Apache-2.0
"""`cutegemm layout`: draws a layout or the fragment of an instruction, and counts bank conflicts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cutegemm.cli.facts.drawing import ACCESSES, Drawn, drawn, instruction
from cutegemm.cli.inputs import Json, option
from cutegemm.cli.output import print_facts, width
from cutegemm.errors import InputError, field_error
from cutegemm.layouts.draw import draw_phases

# most rows and columns on the terminal; an SVG has all
MOST_ROWS, MOST_COLUMNS = 64, 64
_BANKS = f"count the conflicts of one warp's access: {', '.join(ACCESSES)}"


def layout(
    shape: Annotated[
        str,
        typer.Argument(metavar="[LAYOUT]", help='such as "(8,8):(8,1)" or "S<3,3,3> o 0 o (8,64):(64,1)"'),
    ] = "",
    swizzle: Annotated[str, option("--swizzle", "B,M,S", "apply Swizzle<B,M,S> to the layout")] = "",
    banks: Annotated[str, option("--banks", "ACCESS", _BANKS, lambda: ACCESSES)] = "",
    mma: Annotated[str, option("--mma", "m64nNkK", "draw the fragment of a wgmma instead of a layout")] = "",
    operand: Annotated[str, option("--operand", "c|a", "for --mma: the accumulators, or A")] = "c",
    bits: Annotated[int, typer.Option(help="bits of an element: 8, 16 or 32")] = 16,
    lane: Annotated[int, option("--lane", "BYTES", "bytes that a lane moves in row and column")] = 4,
    svg: Annotated[Path | None, option("--svg", "FILE", "write a picture")] = None,
    json: Json = False,
) -> None:
    """Draw a layout or an instruction; count bank conflicts.

    For an instruction, show which thread holds which value.
    """
    if not shape and not mma:
        raise field_error(InputError, "LAYOUT", shape, "give a layout, or --mma", "(8,8):(8,1)")
    for name, value in (("LAYOUT", shape), ("--swizzle", swizzle), ("--banks", banks)):
        if mma and value:
            raise field_error(InputError, name, value, "--mma draws the layout of its instruction")
    facts = instruction(mma, operand) if mma else drawn(shape, swizzle, banks, bits, lane)
    if svg is not None:
        from cutegemm.cli.page.layout_picture import layout_svg

        svg.write_text(layout_svg(facts, bits), "utf-8")
    print_facts("layout", facts, as_text, json)


def as_text(facts: Drawn) -> str:
    """The table, and the words of each bank."""
    extent = f"{facts.what} of (row, column); size {facts.size:,}, cosize {facts.cosize:,}"
    lines = [facts.layout, extent, _table(facts)]
    if facts.banks is not None:
        lines += ["", f"{facts.banks.access}: words of each bank", draw_phases(facts.banks.phases)]
    return "\n".join(lines)


def _table(facts: Drawn) -> str:
    """The cells, in blocks of as many columns as fit the width."""
    rows, columns = min(facts.rows, MOST_ROWS), min(facts.columns, MOST_COLUMNS)
    words = [cell.words for cell in facts.cells]
    cell = max(map(len, words)) + 1
    margin = len(str(rows - 1)) + 1
    block = max(1, (width() - margin) // cell)
    # a power of two is the most readable
    block = min(columns, 1 << block.bit_length() - 1)
    lines = []
    for first in range(0, columns, block):
        here = range(first, min(first + block, columns))
        lines.append(" " * margin + "".join(f"{column:{cell}}" for column in here))
        for row in range(rows):
            values = "".join(f"{words[row * facts.columns + column]:>{cell}}" for column in here)
            lines.append(f"{row:{margin - 1}}:{values}")
    if (rows, columns) != (facts.rows, facts.columns):
        lines.append(
            f"shown: {rows} of {facts.rows} rows, {columns} of {facts.columns} columns; --svg has all"
        )
    return "\n".join(lines)
