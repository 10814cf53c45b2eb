# SPDX-License-Identifier: Apache-2.0
"""The ladder as an SVG bar chart for light and dark pages: each stage's share of cuBLAS at 4096³."""

from __future__ import annotations

from typing import TYPE_CHECKING

from handwritten.ladder.names import BASELINE
from handwritten.ladder.registry import stages

if TYPE_CHECKING:
    from handwritten.ladder.worklog import Figures

SIZE = 4096
NAMES, FULL, ROW = 190, 420, 22  # pixels: width of the names, width of cuBLAS's bar, height of a row
_COLOURS = {"fp32": "#4c8bf5", "bf16": "#e8833a"}
_STYLE = "<style>svg{color:#222}@media (prefers-color-scheme:dark){svg{color:#ddd}}</style>"


def picture(figures: Figures, standalone: bool = True) -> str:
    """Return the chart: the fastest variant of each stage, coloured by type. A standalone chart has its own style."""
    fastest: dict[str, tuple[float, float, str]] = {}
    for stage in stages():
        for dtype in _COLOURS:
            row, best = figures.row(dtype, SIZE, stage.key), figures.row(dtype, SIZE, BASELINE)
            if row and best and dtype in stage.dtypes:
                found = (row["tflops"] / best["tflops"], row["tflops"], dtype)
                name = stage.file.removesuffix(".cu")
                fastest[name] = max(found, fastest.get(name, found))
    width, height = NAMES + FULL + 190, 34 + len(fastest) * ROW
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'style="max-width:100%;height:auto" role="img" font-family="ui-monospace,monospace" '
        'font-size="12" fill="currentColor">',
        f"<title>Share of cuBLAS at {SIZE}³, a bar a stage</title>",
        _STYLE if standalone else "",
        f'<line x1="{NAMES + FULL}" y1="20" x2="{NAMES + FULL}" y2="{height}" stroke="currentColor" '
        'stroke-opacity="0.5" stroke-dasharray="3 3"/>',
        f'<text x="{NAMES + FULL}" y="14" text-anchor="middle">cuBLAS</text>',
    ]
    for i, (name, (share, tflops, dtype)) in enumerate(fastest.items()):
        y = 26 + i * ROW
        out += [
            f'<text x="{NAMES - 8}" y="{y + 12}" text-anchor="end">{name}</text>',
            f'<rect x="{NAMES}" y="{y}" width="{max(1.0, FULL * share):.1f}" height="{ROW - 6}" '
            f'fill="{_COLOURS[dtype]}"/>',
            f'<text x="{NAMES + FULL + 10}" y="{y + 12}">{share:.0%}, {tflops:.3g} TFLOP/s {dtype}</text>',
        ]
    return "\n".join(x for x in [*out, "</svg>"] if x) + "\n"
