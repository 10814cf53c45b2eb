# SPDX-License-Identifier: Apache-2.0
"""One picture for each kernel: how data flows through memories, and which barriers order it, read from a plan.

A page names a picture with `<!-- kernel:NAME -->`. Every number in it is of the plan of `PLANS[NAME]`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cutegemm
from cutegemm import GemmSpec, Tile, problem

LARGE, DEEP = (4096, 4096, 4096), (256, 256, 8192)
# picture -> (spec, problem)
PLANS: dict[str, tuple[GemmSpec, Any]] = {
    "cooperative": (
        GemmSpec(tile=Tile(128, 256, 64), cluster=(2, 1), schedule="cooperative"),
        problem(*LARGE),
    ),
    "pingpong": (GemmSpec(tile=Tile(128, 128, 64), schedule="pingpong"), problem(*LARGE)),
    "dynamic": (GemmSpec(tile=Tile(128, 128, 64), scheduler="dynamic"), problem(*LARGE)),
    "shift": (GemmSpec(tile=Tile(128, 128, 64), a_load="shift", b_load="shift"), problem(777, 1001, 333)),
    "multistage": (GemmSpec(schedule="multistage"), problem(256, 256, 256)),
    "cluster": (GemmSpec(cluster=(1, 1, 4)), problem(*DEEP)),
    "workspace": (GemmSpec(split_k=4, split_reduction="workspace"), problem(*DEEP)),
    "add_partials": (GemmSpec(split_k=4, split_reduction="launch"), problem(*DEEP)),
    "cores": (GemmSpec(), problem(1024, 1024, 1024, dtype="fp32")),
    "relayout": (GemmSpec(), problem(777, 1001, 333)),
}
BOX, GAP, HEIGHT, LINE = 158, 46, 74, 15  # pixels
ROW = 30  # from one barrier to the next


class Box(NamedTuple):
    """A memory or a role: its name, and lines below the name."""

    name: str
    lines: tuple[str, ...]
    kind: str  # "global", "shared" or "registers": its colour


class Flow(NamedTuple):
    """Boxes from left to right, and the words on the arrows between them."""

    boxes: tuple[Box, ...]
    arrows: tuple[str, ...]


def kib(count: int) -> str:
    """Bytes in KiB."""
    return f"{count / 1024:g} KiB"


def count(number: int, what: str) -> str:
    """A number of things."""
    return f"{number} {what}{'s' * (number != 1)}"


def extents(values: Iterable[int]) -> str:
    """Extents with a multiplication sign."""
    return " × ".join(map(str, values))


def tensor_core(plan: Any) -> Flow:
    """Operands to stages to accumulators to staging to D."""
    config, sizes = plan.config, {x.name: x.size for x in plan.smem}
    a, b = config.operands
    words = any(x.load == "shift" for x in config.operands)
    loads = "TMA" if a.load == b.load == "tma" else f"{a.load}, {b.load}" if a.load != b.load else a.load
    multicast = ["multicast"] if loads == "TMA" and max(config.cluster) > 1 else []
    each = 2 if config.pingpong else 1
    threads = f"{config.consumers} × 128 threads"
    computing = "consumer warpgroups" if config.schedule != "multistage" else "every warpgroup"
    ring = Box(
        f"ring of {config.stages} stages",
        (
            f"A {kib(sizes['A'])}, B {kib(sizes['B'])}",
            f"words {kib(sizes['A words'] + sizes['B words'])}" if words else f"BLK_K {config.tile[2]}",
        ),
        "shared",
    )
    accumulators = Box(
        computing,
        (threads, f"{'a tile each: ' if each == 2 else 'tile '}{extents(config.tile[:2])}"),
        "registers",
    )
    boxes, arrows = (
        [Box("A, B", ("global memory",), "global"), ring, accumulators],
        [
            " ".join([loads, *multicast]),
            "wgmma",
        ],
    )
    if "partial sums" in sizes:
        boxes.append(
            Box("partial sums", (f"of {config.cluster_splits} CTAs", kib(sizes["partial sums"])), "shared")
        )
        arrows.append("DSMEM")
    elif config.splits > 1 and config.split_reduction == "workspace":
        boxes.append(Box("workspace", (f"{config.splits} partial sums", "the last CTA adds"), "global"))
        arrows.append("fp32")
    elif "d staging" in sizes:
        boxes.append(
            Box("d staging", (kib(sizes["d staging"]), count(config.epilogue_stages, "buffer")), "shared")
        )
        arrows.append("epilogue")
    boxes.append(Box("D", ("global memory",), "global"))
    arrows.append({"tma": "TMA store", "staged": "staged store"}.get(config.outputs[0].store, "store"))
    return Flow(tuple(boxes), tuple(arrows))


def add_partials(plan: Any) -> Flow:
    """Partial sums to D, by a launch of its own."""
    parts = plan.steps[1].config.splits
    return Flow(
        (
            Box("workspace", (f"{parts} partial sums", f"{kib(plan.workspace_bytes)} of fp32"), "global"),
            Box("registers", ("added in a fixed order", "then the epilogue"), "registers"),
            Box("D", ("global memory",), "global"),
        ),
        ("16-byte loads", "store"),
    )


def cores(plan: Any) -> Flow:
    """fp32 operands through registers and shared memory to FMA."""
    config = plan.steps[0].config
    rows, columns, depth = config.tile
    size = (rows + columns) * depth * 4 * config.stages
    return Flow(
        (
            Box("A, B", ("global memory",), "global"),
            Box(f"ring of {config.stages} tiles", (f"{extents(config.tile)}", f"some {kib(size)}"), "shared"),
            Box("every thread", (f"{extents(config.thread_tile)} of D", "fp32 accumulators"), "registers"),
            Box("D", ("global memory",), "global"),
        ),
        ("cp.async" if config.stages > 2 else "loads", "FMA", "epilogue"),
    )


def relayout(plan: Any) -> Flow:
    """Operands that TMA cannot address to workspace that it can."""
    copies = plan.steps[0].copies
    lines = [f"{x.operand.upper()}: {x.source.strides[0]} → {x.target.strides[0]} elements" for x in copies]
    return Flow(
        (
            Box("A, B", ("leading dimensions", "no multiples of 16 B"), "global"),
            Box("registers", ("one launch", "for both operands"), "registers"),
            Box("workspace", tuple(lines), "global"),
        ),
        ("loads", "16-byte stores"),
    )


FLOWS: dict[str, Callable[[Any], Flow]] = {"add_partials": add_partials, "cores": cores, "relayout": relayout}


def loads(words: str) -> bool:
    """Whether those who arrive or wait are the threads that load."""
    return "producer" in words and "consumer" not in words or "TMA" in words


def drawn(flow: Flow, barriers: Sequence[Any]) -> str:
    """The picture as SVG; colours follow the page's text colour."""
    width = len(flow.boxes) * BOX + (len(flow.boxes) - 1) * GAP + 2
    height = HEIGHT + 2 + (12 + ROW * len(barriers) if barriers else 0)
    left = [1 + i * (BOX + GAP) for i in range(len(flow.boxes))]
    fill = {"global": "0.04", "shared": "0.12", "registers": "0.22"}
    out = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" style="max-width:100%;height:auto;color:inherit" '
        'role="img" font-family="inherit" font-size="12" fill="currentColor" stroke="none">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>',
    ]
    text = lambda x, y, words, extra="": (
        f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{extra}>{html.escape(words)}</text>'
    )
    for x, box in zip(left, flow.boxes):
        out.append(
            f'<rect x="{x}" y="1" width="{BOX}" height="{HEIGHT}" rx="6" fill="currentColor" '
            f'fill-opacity="{fill[box.kind]}" stroke="currentColor" stroke-opacity="0.5"/>'
        )
        top = 1 + (HEIGHT - LINE * len(box.lines)) / 2 + 2
        out.append(text(x + BOX / 2, top, box.name, ' font-weight="bold"'))
        out += [text(x + BOX / 2, top + LINE * (i + 1), line) for i, line in enumerate(box.lines)]
    arrow = 'stroke="currentColor" stroke-width="1.2" marker-end="url(#tip)"'
    for x, words in zip(left[1:], flow.arrows):
        out.append(
            f'<line x1="{x - GAP + 3}" y1="{HEIGHT / 2 + 8}" x2="{x - 3}" y2="{HEIGHT / 2 + 8}" {arrow}/>'
        )
        for i, word in enumerate(words.split(" ")):
            y = HEIGHT / 2 + (2 if i == 0 else 22)
            out.append(text(x - GAP / 2, y, word, ' font-size="10"'))
    for i, barrier in enumerate(barriers):
        out += _barrier(barrier, HEIGHT + 30 + i * ROW, arrow, text)
    return "".join([*out, "</svg>"])


def _barrier(barrier: Any, y: float, arrow: str, text: Callable[..., str]) -> list[str]:
    """A line from who arrives to who waits, with the barrier's name, count and arrivals."""
    place = lambda words: 1 + BOX + GAP / 2 if loads(words) else 1 + 2.5 * BOX + 2 * GAP
    begin = place(barrier.arrives)
    end = begin if barrier.waits.startswith("the same") else place(barrier.waits)
    name = f"{barrier.name} × {barrier.count}" if barrier.count > 1 else barrier.name
    words = f"{name}: {barrier.arrivals} by {barrier.arrives} → {barrier.waits}"
    out = [f'<circle cx="{begin:g}" cy="{y}" r="3"/>']
    if begin == end:
        out.append(text(begin, y - 6, words))
        return out
    out.append(f'<line x1="{begin:g}" y1="{y}" x2="{end:g}" y2="{y}" {arrow}/>')
    out.append(text((begin + end) / 2, y - 6, words))
    return out


def picture(name: str) -> str:
    """A kernel's picture, its title the spec and the problem whose plan it shows."""
    spec, of = PLANS[name]
    plan = cutegemm.plan(spec, of, database=False)
    flow = FLOWS.get(name, tensor_core)(plan)
    barriers = () if name in FLOWS else plan.barriers
    given = re.sub(r"Tile\(m=(\d+), n=(\d+), k=(\d+)\)", r"Tile(\1, \2, \3)", repr(spec))
    caption = html.escape(f"{given} on {of.m} × {of.n} × {of.k}, {of.a.dtype.value}")
    return f"<figure>{drawn(flow, barriers)}<figcaption><code>{caption}</code></figcaption></figure>"


def filled(text: str) -> str:
    """A page with its pictures."""
    return re.sub(r"<!-- kernel:(\w+) -->", lambda x: picture(x[1]), text)
