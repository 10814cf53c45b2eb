# SPDX-License-Identifier: Apache-2.0
"""A layout or an instruction as an SVG document: colored cells with tooltips."""

from __future__ import annotations

from cutegemm.cli.facts.drawing import BANKS, Drawn
from cutegemm.cli.page.marks import box, svg, words

CELL_WIDTH, CELL_HEIGHT, MARGIN, HEAD = 44, 22, 34, 44
# similar lightness, so that black text is readable; adjacent banks differ slightly
COLOURS = "".join(f".b{i}{{fill:hsl({360 * i / BANKS:.0f},62%,{72 + 8 * (i % 2)}%)}}" for i in range(BANKS))
STYLE = f"<style>{COLOURS}rect{{stroke:#fff}}.axis{{fill:#555}}</style>"


def layout_svg(drawn: Drawn, bits: int = 16) -> str:
    """The table of a layout, one color per bank, or of an instruction, one color per thread of a warp."""
    wide = max(MARGIN + drawn.columns * CELL_WIDTH + 8, 16 + 7 * len(drawn.layout))
    size = (wide, HEAD + drawn.rows * CELL_HEIGHT + 8)
    parts = [STYLE, '<rect width="100%" height="100%" fill="white"/>', words(8, 18, drawn.layout)]
    middle = MARGIN + CELL_WIDTH / 2
    parts += [
        words(middle + i * CELL_WIDTH, HEAD - 6, str(i), "axis", "middle") for i in range(drawn.columns)
    ]
    parts += [
        words(MARGIN - 6, HEAD + i * CELL_HEIGHT + 15, str(i), "axis", "end") for i in range(drawn.rows)
    ]
    for cell in drawn.cells:
        x, y = MARGIN + cell.column * CELL_WIDTH, HEAD + cell.row * CELL_HEIGHT
        what, group = f"thread {cell.thread}, value {cell.value}", cell.thread % BANKS
        if drawn.what == "offset":
            what, group = f"{cell.offset}, byte {cell.offset * bits // 8}, bank {cell.bank}", cell.bank
        parts.append(
            box(x, y, CELL_WIDTH, CELL_HEIGHT, f"b{group}", f"({cell.row}, {cell.column}) -> {what}")
        )
        parts.append(words(x + CELL_WIDTH / 2, y + 15, cell.words, "", "middle"))
    # a document, unlike the figures of a page
    font = ' xmlns="http://www.w3.org/2000/svg" font-family="ui-monospace,monospace" font-size="11"'
    return svg(drawn.layout, size, parts, f'{font} width="{size[0]:g}" height="{size[1]:g}"')
