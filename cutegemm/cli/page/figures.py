# SPDX-License-Identifier: Apache-2.0
"""Pictures of one CTA: the owners of D's elements, a stage in shared memory, and TMA boxes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html import escape

from cutegemm.cli.facts.explained import BoxOf, Explained
from cutegemm.cli.page.marks import box, colour, figure, words
from cutegemm.config import KernelConfig, OperandConfig
from cutegemm.layouts import Layout, hardware
from cutegemm.layouts.banks import PHASE_BYTES, WORD_BYTES
from cutegemm.plans.kernel_plan import KernelPlan

WIDTH = 640.0
WARP_ROWS, GROUP_ROWS, WARPS = 16, 64, 4
LABEL = 130  # width of a band's label
# most lines of shared memory that are drawn; a swizzle repeats every eight
LINES = 48
CHUNK = 16
# rows and columns of the block whose owners are drawn one by one
BLOCK = 16


def owners(plan: KernelPlan) -> str:
    """The CTA tile in bands of warps; the script computes thread and value under the pointer."""
    config = plan.config
    assert isinstance(config, KernelConfig)
    rows, columns = config.tile[0], config.tile[1]
    scale = min(WIDTH / columns, 320 / rows)
    parts = []
    for band in range(rows // WARP_ROWS):
        group, warp = _band(config, band)
        kind = colour(2 * group + warp % 2)
        y = 8 + band * WARP_ROWS * scale
        title = f"rows {band * WARP_ROWS} to {band * WARP_ROWS + 15}: consumer {group + 1}, its warp {warp}"
        parts.append(box(8, y, columns * scale, WARP_ROWS * scale - 0.6, f"{kind} own", title))
        if WARP_ROWS * scale >= 11:
            # to the right of a band that is narrower than its label
            inside = columns * scale >= LABEL
            x, ink = (14.0, "small ink") if inside else (14 + columns * scale, "small")
            parts.append(words(x, y + 11, f"consumer {group + 1}, warp {warp}", ink))
    fragment = hardware.wgmma_c_layout(config.mma_columns)
    data = {
        "x": 8, "y": 8, "scale": scale, "rows": rows, "columns": columns, "team": config.team,
        "mma": config.mma_columns, "pingpong": config.pingpong, "threads": _modes(fragment[0]),
        "values": _modes(fragment[1]), "swapped": plan.swapped,
    }  # fmt: skip
    whose = "The consumers alternate between tiles" if config.pingpong else "Consumers share the tile"
    caption = f"{whose}: {rows} x {columns} accumulators, {plan.accumulators} per thread."
    if plan.swapped:
        caption += " The kernel computes D's transpose: its rows are D's columns."
    size = (max(columns * scale, LABEL) + 16 + LABEL * (columns * scale < LABEL), rows * scale + 16)
    more = f' data-owners="{escape(json.dumps(data))}"'
    return figure("owners", caption, size, parts, more) + _block(fragment)


def _band(config: KernelConfig, band: int) -> tuple[int, int]:
    """(consumer, warp of it) of a band of sixteen rows of the tile."""
    group = band // WARPS % config.team
    return group, band % WARPS


def _modes(layout: Layout) -> list[list[int]]:
    return [list(x) for x in layout.flat_modes]


def _block(fragment: Layout) -> str:
    """The first rows and columns element by element: lane and value."""
    threads, values = fragment
    owner = {fragment(t, v): (t, v) for t in range(threads.size // WARPS) for v in range(min(values.size, 8))}
    cell, parts = 30.0, []
    columns = min(BLOCK, max(x for x in owner) // GROUP_ROWS + 1)
    for row in range(BLOCK):
        for column in range(columns):
            thread, value = owner[row + GROUP_ROWS * column]
            title = f"element ({row}, {column}): lane {thread}, value {value}"
            parts.append(box(column * cell, row * 17, cell - 1, 16, colour(thread % 4), title))
            parts.append(
                words(column * cell + cell / 2, row * 17 + 12, f"{thread}:{value}", "tiny ink", "middle")
            )
    caption = (
        "A warp's first 16 rows and columns, as lane:value: wgmma's accumulator fragment, which repeats."
    )
    return figure("fragment", caption, (columns * cell, BLOCK * 17), parts)


def stage(name: str, operand: OperandConfig, rows: int, depth: int) -> str:
    """A stage of an operand in shared memory, 128 bytes or 32 banks per line."""
    chunks = list(places(operand, rows, depth))
    unit = CHUNK // operand.dtype.bytes
    width = WIDTH / (PHASE_BYTES // CHUNK)
    parts = [words(40 + i * width, 10, f"{i * 4}", "tiny") for i in range(PHASE_BYTES // CHUNK)]
    count = 0
    for address, row, k in chunks:
        y, place = divmod(address, PHASE_BYTES)
        if y >= LINES:
            continue
        count += 1
        bank = place // WORD_BYTES
        here = f"({row}, {k}..{k + unit - 1})" if operand.k_major else f"({row}..{row + unit - 1}, {k})"
        title = f"{name} {here} <-> byte {address:#x}, banks {bank} to {bank + 3}"
        along = k // unit if operand.k_major else row // unit
        parts.append(box(40 + place / CHUNK * width, 14 + y * 9, width - 1, 8, colour(along), title))
    lines = min(LINES, math.ceil(rows * depth * operand.dtype.bytes / PHASE_BYTES))
    parts += [words(34, 21 + y * 9, f"{y * PHASE_BYTES:#x}", "tiny", "end") for y in range(0, lines, 4)]
    axis = "(row, k)" if operand.k_major else "(row, k), rows adjacent"
    caption = (
        f"{name}: {rows} x {depth}, swizzle {operand.swizzle}, {axis}; 16 bytes a cell, by bank across. "
    )
    caption += (
        "The color is the position along the contiguous axis: rows conflict where one color is below itself."
    )
    if count < len(chunks):
        caption += f" The first {lines} of {math.ceil(len(chunks) / 8)} lines."
    return figure(f"smem-{name.lower()}", caption, (WIDTH + 44, 18 + lines * 9), parts)


def places(operand: OperandConfig, rows: int, depth: int) -> Iterator[tuple[int, int, int]]:
    """(byte address, row, k) of each 16-byte chunk of a stage."""
    size = operand.dtype.bytes
    unit = CHUNK // size
    layout = hardware.smem_layout(
        (rows, depth), "k" if operand.k_major else "mn", operand.swizzle, operand.dtype.bits
    )
    steps = (1, unit) if operand.k_major else (unit, 1)
    for row in range(0, rows, steps[0]):
        for k in range(0, depth, steps[1]):
            yield layout(row, k) * size, row, k


def regions(facts: Explained) -> str:
    """The regions of a CTA's shared memory."""
    assert facts.memory is not None
    parts, scale = [], WIDTH / facts.memory.limit
    for i, x in enumerate(facts.memory.regions):
        title = f"{x.name}: {x.size:,} B from byte {x.offset:#x}"
        parts.append(box(x.offset * scale, 4, max(1.5, x.size * scale - 0.8), 26, colour(i), title))
        if x.size * scale > 7 * len(x.name):
            parts.append(words(x.offset * scale + 4, 21, x.name, "small ink"))
    parts.append(box(0, 2, WIDTH, 30, "frame"))
    total = "unknown" if facts.memory.bytes is None else f"{facts.memory.bytes:,}"
    caption = f"{total} of {facts.memory.limit:,} B a CTA may have ({facts.memory.source})."
    return figure("memory", caption, (WIDTH, 34), parts)


def boxes(plan: KernelPlan, facts: Explained) -> str:
    """The tiles of A, B and D, divided into the TMA boxes of one CTA."""
    config = plan.config
    assert isinstance(config, KernelConfig) and plan.multiply is not None
    named = dict(zip((x.upper() for x in plan.multiply.factors), config.operands, strict=True))
    tiles = dict(zip((x.upper() for x in plan.multiply.factors), config.tile, strict=False))
    majors = {name: x.major for name, x in config.input_of.items()}
    majors |= {x.name: y.major for x, y in zip(config.epilogue.stores, config.outputs, strict=False)}
    made = []
    for x in facts.boxes:
        if x.operand in named:
            tile, turned = (config.tile[2], tiles[x.operand]), not named[x.operand].k_major
        elif x.operand.endswith(" words"):
            # a box has the rows of one alignment, with the words around them
            tile, turned = (x.inner, x.outer * x.count), False
        else:
            tile = (config.stored_columns, config.rows)
            # in a swapped kernel D's rows are the accumulators' columns
            turned = majors[x.operand.lower() if x.operand in ("C", "D") else x.operand] == "m"
        made.append(_cut(x, tile[::-1] if turned else tile))
    return "".join(made)


def _cut(x: BoxOf, tile: tuple[int, int]) -> str:
    """A tile in boxes, its contiguous axis across; the boxes of this CTA are colored."""
    across, down = tile
    scale = min(260 / across, 200 / down)
    columns, rows = math.ceil(across / x.inner), math.ceil(down / x.outer)
    parts = []
    for i in range(columns * rows):
        row, column = i % rows, i // rows
        # the CTAs that need a tile split it along its strided axis, or load all of it in turn
        mine = x.operand not in ("A", "B") or row < max(1, x.count // columns)
        title = f"{x.operand} box {i + 1}: {x.inner} x {x.outer} elements" + ", by another CTA" * (not mine)
        w, h = x.inner * scale, x.outer * scale
        kind = colour(column) if mine else "pale"
        parts.append(box(1 + column * w, 1 + row * h, w - 1, h - 1, kind, title))
    cut = f"{x.count} x ({x.inner} x {x.outer}) of a tile {across} x {down}"
    caption = f"{x.operand}: {cut}, swizzle {x.swizzle}"
    return figure(
        f"box-{x.operand.lower()}".replace(" ", "-"), caption, (across * scale + 2, down * scale + 2), parts
    )
