# SPDX-License-Identifier: Apache-2.0
"""Pictures of layouts, drawn from `cutegemm.layouts`: a page names one with `<!-- layout:NAME -->`."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from cutegemm.cli.facts.drawing import drawn, instruction

WIDTH, HEIGHT, LEFT, TOP = 46, 22, 56, 20  # pixels: of a cell; before the first one
GROUPS = 8  # of four banks, each as wide as a chunk
CHUNK = 8  # 16-bit elements of 16 bytes
Cell = tuple[str, str]  # words, colour


def colour(index: int, count: int) -> str:
    """One of `count` colours on which black text reads, on a light page and on a dark one."""
    return f"hsl({360 * index / count:.0f} 62% {72 if index % 2 == 0 else 82}%)"


def table(rows: Sequence[Sequence[Cell]], names: Sequence[str], heads: Sequence[str], caption: str) -> str:
    """Cells as SVG, with a name before each row and a head above each column."""
    width, height = LEFT + len(rows[0]) * WIDTH + 2, TOP + len(rows) * HEIGHT + 2
    out = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%;height:auto" role="img" '
        f'font-size="11" text-anchor="middle" fill="currentColor" aria-label="{html.escape(caption)}">'
    ]
    for j, head in enumerate(heads):
        out.append(f'<text x="{LEFT + (j + 0.5) * WIDTH:g}" y="14">{head}</text>')
    for i, row in enumerate(rows):
        y = TOP + i * HEIGHT
        out.append(f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end">{names[i]}</text>')
        for j, (words, fill) in enumerate(row):
            x = LEFT + j * WIDTH
            out.append(
                f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="{fill}" stroke="#fff"/>'
                f'<text x="{x + WIDTH / 2:g}" y="{y + 15}" fill="#000">{words}</text>'
            )
    return f"<figure>{''.join(out)}</svg><figcaption>{html.escape(caption)}</figcaption></figure>"


def offsets(layout: str, caption: str) -> str:
    """A matrix's offsets; one colour for each run of eight addresses."""
    found = drawn(layout)
    rows: list[list[Cell]] = [[] for _ in range(found.rows)]
    for x in found.cells:
        rows[x.row].append((str(x.offset), colour(x.offset // GROUPS, found.rows)))
    heads = [str(x) for x in range(found.columns)]
    return table(rows, [f"row {i}" for i in range(found.rows)], heads, f"{caption} {layout}")


def chunks(swizzle: str, caption: str) -> str:
    """Eight rows of 128 bytes in chunks of 16: which chunk of K lies at which place."""
    found = drawn("(8,64):(64,1)", swizzle, "ldmatrix.x1")
    at = {x.offset // CHUNK: x.column // CHUNK for x in found.cells if x.column % CHUNK == 0}
    rows = [
        [(f"k {at[8 * i + j] * CHUNK}", colour(at[8 * i + j], GROUPS)) for j in range(GROUPS)]
        for i in range(8)
    ]
    wavefronts = found.banks.wavefronts if found.banks else 0
    heads = [f"{4 * j}–{4 * j + 3}" for j in range(GROUPS)]
    words = f"{caption} Eight rows of one colour take {wavefronts} wavefront{'s' * (wavefronts != 1)}."
    return table(rows, [f"row {i}" for i in range(8)], heads, words)


def accumulator() -> str:
    """Which thread holds each element of a wgmma's accumulator: the first warp's rows, eight columns."""
    found = instruction("m64n8k16")
    owners = {(x.row, x.column): x for x in found.cells}
    rows = [
        [
            (f"{owners[i, j].thread}:{owners[i, j].value}", colour(owners[i, j].thread % 32, 32))
            for j in range(8)
        ]
        for i in range(16)
    ]
    caption = "m64n8: rows 0 to 15 of 64, thread:register. Warps 1 to 3 hold the other rows in the same way."
    return table(rows, [f"row {i}" for i in range(16)], [f"n {j}" for j in range(8)], caption)


PICTURES: dict[str, Callable[[], str]] = {
    "row_major": lambda: offsets("(8,8):(8,1)", "Row-major:"),
    "column_major": lambda: offsets("(8,8):(1,8)", "Column-major:"),
    "blocked": lambda: offsets("((4,2),(4,2)):((4,32),(1,16))", "Blocks of 4 × 4, one after the other:"),
    "plain": lambda: chunks("", "Without a swizzle; columns are banks."),
    "swizzled": lambda: chunks("3,3,3", "With the 128-byte swizzle; columns are banks."),
    "accumulator": accumulator,
}


def filled(text: str) -> str:
    """A page with its pictures."""
    return re.sub(r"<!-- layout:(\w+) -->", lambda x: PICTURES[x[1]](), text)
