# SPDX-License-Identifier: Apache-2.0
"""SVG as text: colours that read on light and dark, cells with a tooltip, whole documents."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from cutegemm.cli.facts.drawing import Drawn

CELL_WIDTH, CELL_HEIGHT, MARGIN, HEAD = 44, 22, 34, 44


def hue(index: int, count: int) -> str:
    """A colour of its own for each of `count` things, of one lightness so that black text reads on it."""
    return f"hsl({360 * index / max(1, count):.0f},62%,{72 if index % 2 == 0 else 80}%)"


def rect(x: float, y: float, w: float, h: float, fill: str, title: str = "", **attributes: object) -> str:
    """A rectangle, with a tooltip where there is a title."""
    more = "".join(f' {name.replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    head = f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}"{more}'
    return f"{head}><title>{escape(title)}</title></rect>" if title else f"{head}/>"


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """A line of text."""
    more = "".join(f' {name.replace("_", "-")}="{escape(str(v))}"' for name, v in attributes.items())
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def document(width: float, height: float, parts: Iterable[str], label: str, standalone: bool = True) -> str:
    """An SVG of parts; one that stands alone brings its font and background."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img"'
    head += f' aria-label="{escape(label)}"'
    if standalone:
        head += f' width="{width:g}" height="{height:g}" font-family="ui-monospace,monospace" font-size="11"'
    body = "\n".join(parts)
    ground = f'<rect width="{width:g}" height="{height:g}" fill="white"/>\n' if standalone else ""
    return f"{head}>\n{ground}{body}\n</svg>\n"


def layout_svg(found: Drawn, bits: int = 16) -> str:
    """The table of a layout, a colour for each bank; of an instruction, a colour for each thread of eight."""
    parts = [text(8, 18, found.layout, font_weight="bold")]
    for column in range(found.columns):
        x = MARGIN + column * CELL_WIDTH
        parts.append(text(x + CELL_WIDTH / 2, HEAD - 6, str(column), text_anchor="middle", fill="#555"))
    for row in range(found.rows):
        y = HEAD + row * CELL_HEIGHT
        parts.append(text(MARGIN - 6, y + 15, str(row), text_anchor="end", fill="#555"))
    for cell in found.cells:
        x, y = MARGIN + cell.column * CELL_WIDTH, HEAD + cell.row * CELL_HEIGHT
        if found.what == "offset":
            words = str(cell.offset)
            title = f"({cell.row}, {cell.column}) -> {cell.offset}, byte {cell.offset * bits // 8}, bank {cell.bank}"
            fill = hue(cell.bank, 32)
        else:
            words = f"{cell.thread}:{cell.value}"
            title = f"({cell.row}, {cell.column}) -> thread {cell.thread}, value {cell.value}"
            fill = hue(cell.thread % 32, 32)
        parts.append(rect(x, y, CELL_WIDTH, CELL_HEIGHT, fill, title, stroke="#fff"))
        parts.append(text(x + CELL_WIDTH / 2, y + 15, words, text_anchor="middle", pointer_events="none"))
    width = MARGIN + found.columns * CELL_WIDTH + 8
    return document(
        max(width, 16 + 7 * len(found.layout)), HEAD + found.rows * CELL_HEIGHT + 8, parts, found.layout
    )


__all__ = ["document", "hue", "layout_svg", "rect", "text"]
