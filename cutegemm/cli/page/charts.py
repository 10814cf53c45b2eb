# SPDX-License-Identifier: Apache-2.0
"""Pictures of the launch: the raster over D with its waves, each role's timeline, the roofline."""

from __future__ import annotations

import math

from cutegemm.cli.facts.raster import Raster
from cutegemm.cli.facts.roofline import Roofline
from cutegemm.cli.facts.timeline import Timeline
from cutegemm.cli.page.marks import box, colour, figure, line, table, words

WIDTH = 640.0
# most work tiles that are drawn, and waves that are listed
MOST, SHOWN_WAVES = 2048, 12
MARKS = {"load": "f4", "mainloop": "f0", "epilogue": "f2"}


def raster(facts: Raster) -> str:
    """D's work tiles in starting order, one color per wave, and the reuse of each wave."""
    across, down = (facts.down, facts.across) if facts.swapped else (facts.across, facts.down)
    cell = max(2.0, min(28.0, WIDTH / across, 420 / down))
    parts, shown = [], facts.order[:MOST]
    for i, (m, n) in enumerate(shown):
        row, column = (n, m) if facts.swapped else (m, n)
        wave = i // max(1, facts.at_once)
        title = f"tile ({row}, {column}) is number {i} to start, in wave {wave + 1}"
        parts.append(box(column * cell, row * cell, cell - 0.5, cell - 0.5, colour(wave), title))
        if cell >= 18:
            parts.append(
                words(column * cell + cell / 2, row * cell + cell / 2 + 4, str(i), "tiny ink", "middle")
            )
    axis = {"m": "n", "n": "m"}[facts.axis] if facts.swapped else facts.axis
    caption = f"Work tiles over D: panels of {facts.group} along {axis.upper()}, a colour a wave of {facts.at_once}."
    if len(shown) < len(facts.order):
        caption += f" The first {MOST:,} are drawn."
    caption += f" {facts.note}." if facts.note else ""
    rows = [
        (i + 1, x.tiles, *((x.columns, x.rows) if facts.swapped else (x.rows, x.columns)), f"{x.reuse:.1f} x")
        for i, x in enumerate(facts.waves[:SHOWN_WAVES])
    ]
    heads = ("wave", "work tiles", "tile rows of A", "tile columns of B", "reads of each byte from L2")
    return figure("raster", caption, (across * cell, down * cell), parts) + table(heads, rows)


def timeline(facts: Timeline) -> str:
    """A track for each role; gaps are waits."""
    left, height = 150.0, 26.0
    scale = WIDTH / facts.end
    parts = []
    for row, track in enumerate(facts.tracks):
        y = 6 + row * height
        parts.append(words(left - 6, y + 15, track.role, "small", "end"))
        parts.append(box(left, y, WIDTH, height - 6, "frame"))
        for x in track.spans:
            title = f"{track.role}: {x.does} of tile {x.tile + 1}"
            title += f", {x.stages} stages" if x.does != "epilogue" else ""
            title += f", {x.start:,.0f} to {x.end:,.0f} ns"
            width = max(0.4, (x.end - x.start) * scale)
            parts.append(box(left + x.start * scale, y, width, height - 6, MARKS[x.does], title))
    bottom = 6 + len(facts.tracks) * height
    for i in range(5):
        at = left + WIDTH * i / 4
        parts.append(line(at, bottom - 4, at, bottom, "axis"))
        parts.append(words(at, bottom + 12, f"{facts.end * i / 4e3:.1f} us", "tiny", "middle"))
    for i, (name, kind) in enumerate(MARKS.items()):
        parts.append(box(left + i * 100, bottom + 20, 12, 12, kind))
        parts.append(words(left + i * 100 + 16, bottom + 30, name, "small"))
    caption = (
        f"One CTA, its first {facts.tiles} of {facts.of_tiles} tiles, {facts.k_tiles} of {facts.of_k_tiles} "
    )
    caption += f"k tiles of each. {facts.source[0].upper()}{facts.source[1:]}."
    waits = [(x.role, f"{x.waits:.0%}") for x in facts.tracks]
    size = (left + WIDTH + 24, bottom + 36)
    return figure("timeline", caption, size, parts) + table(("role", "waits"), waits)


def roofline(facts: Roofline) -> str:
    """TFLOP/s over FLOP per byte, both logarithmic: the roofs of DRAM and of the cores, and this launch."""
    left, top, width, height = 60.0, 12.0, WIDTH - 80, 260.0
    low, high = -1.0, max(4.0, math.ceil(math.log10(max(facts.intensity, facts.ridge, 10.0)) + 0.3))
    floor, roof = -1.0, math.ceil(math.log10(facts.peak_tflops) + 0.1)

    def place(intensity: float, tflops: float) -> tuple[float, float]:
        x = (math.log10(max(intensity, 10**low)) - low) / (high - low)
        y = (math.log10(max(tflops, 10**floor)) - floor) / (roof - floor)
        return left + x * width, top + height - y * height

    parts = [box(left, top, width, height, "frame")]
    for power in range(int(low), int(high) + 1):
        x, _ = place(10.0**power, 1.0)
        parts += [
            line(x, top, x, top + height, "grid"),
            words(x, top + height + 14, f"{10.0**power:g}", "tiny", "middle"),
        ]
    for power in range(int(floor), int(roof) + 1):
        _, y = place(1.0, 10.0**power)
        parts += [
            line(left, y, left + width, y, "grid"),
            words(left - 6, y + 4, f"{10.0**power:g}", "tiny", "end"),
        ]
    start = max(10**low, 10**floor * 1e3 / facts.dram_gbs)
    corner = place(facts.ridge, facts.peak_tflops)
    parts.append(line(*place(start, start * facts.dram_gbs / 1e3), *corner, "roof"))
    parts.append(line(*corner, left + width, corner[1], "roof"))
    parts.append(words(left + width - 6, corner[1] - 6, f"{facts.peak_tflops:,.0f} TFLOP/s", "small", "end"))
    parts.append(words(corner[0] - 40, corner[1] + 50, f"{facts.dram_gbs:,.0f} GB/s", "small"))
    x, y = place(facts.intensity, facts.tflops)
    _, reach = place(facts.intensity, facts.attainable_tflops)
    title = f"{facts.intensity:,.1f} FLOP/B, {facts.tflops:,.1f} TFLOP/s"
    parts.append(line(x, y, x, reach, "gap"))
    parts.append(f'<circle cx="{x:.6g}" cy="{y:.6g}" r="6" class="point"><title>{title}</title></circle>')
    parts.append(words(x + 10, y + 16, f"{facts.tflops:,.0f}", "small"))
    parts.append(
        words(left + width / 2, top + height + 30, "FLOP per byte of device memory", "small", "middle")
    )
    parts.append(words(left, top - 2, "TFLOP/s", "small"))
    caption = (
        f"{facts.tflops:,.1f} of {facts.attainable_tflops:,.1f} TFLOP/s attainable; bound by {facts.bound}. "
    )
    caption += "Roofs are the rates of the GPU's record, below its power cap."
    rows = [
        (x.resource, f"{x.us:,.2f} us", f"{x.us / facts.us:.0%}" if facts.us else "", x.arithmetic)
        for x in facts.rates
    ]
    chart = figure("roofline", caption, (WIDTH, top + height + 38), parts)
    return chart + table(("resource", "alone", "of the time", "work / rate"), rows)
