# SPDX-License-Identifier: Apache-2.0
"""`cutegemm explain`: the plan that `build` would run, its reasons and its bounds; as text, JSON or HTML."""

from __future__ import annotations

import re
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutegemm.cli import inputs
from cutegemm.cli.output import print_facts, table, width, wrapped

if TYPE_CHECKING:
    from cutegemm.cli.facts.explained import Explained
    from cutegemm.cli.facts.timeline import Timeline
    from cutegemm.plans.kernel_plan import KernelPlan

# candidates that are listed without --why, and letters of the reason why each lost
BEST, FATE = 6, 26
# abbreviations of these reasons
SHORT = {"slower by ": "+", "predicted faster by ": "-", ", but not chosen": ", not chosen"}


def explain(
    m: inputs.M, n: inputs.N, k: inputs.K, spec: inputs.Spec = "", epilogue: inputs.Epilogue = "",
    gpu: inputs.GpuName = "",
    dtype: inputs.Dtype = "", b_dtype: inputs.BDtype = "", batch: inputs.Batch = 1, majors: inputs.Majors = "",
    groups: inputs.Groups = None, along: inputs.Along = "",
    why: Annotated[bool, typer.Option("--why", help="list every candidate and why it lost")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write one self-contained HTML page")] = None,
    json: inputs.Json = False,
) -> None:  # fmt: skip
    """Show the plan that build would run, and what bounds it."""
    from cutegemm.cli.facts.explained import explained

    case = inputs.case(
        (m, n, k), spec, epilogue, gpu, dtype=dtype, b_dtype=b_dtype, batch=batch, majors=majors,
        groups=groups, along=along,
    )  # fmt: skip
    plan, facts = explained(case)
    if html is not None:
        from cutegemm.cli.page.page import page

        html.write_text(page(plan, facts), "utf-8")
    print_facts("explain", facts, lambda x: f"written to {html}" if html else as_text(plan, x, why), json)


def as_text(plan: KernelPlan, facts: Explained, why: bool = False) -> str:
    """The explanation, a paragraph per question."""
    from cutegemm.cli.facts.explained import summary

    lines = [wrapped(label, text) for label, text in summary(plan, facts)]
    if facts.launch is not None:
        lines += ["", *_memory(facts), "", *_occupancy(facts)]
    if facts.roofline is not None:
        lines += ["", *_roofline(facts)]
    if facts.timeline is not None:
        lines += ["", *_timeline(facts.timeline)]
    if facts.candidates:
        lines += ["", *_candidates(facts, why)]
    return "\n".join(lines)


def _memory(facts: Explained) -> list[str]:
    memory, registers = facts.memory, facts.registers
    assert memory is not None and registers is not None
    total = "unknown" if memory.bytes is None else f"{memory.bytes:,}"
    lines = [wrapped("", f"shared memory: {total} of {memory.limit:,} B a CTA ({memory.source})", 0)]
    bar = max(10, width() - 46)
    rows = []
    for x in memory.regions:
        share = "#" * max(1, round(bar * x.size / memory.limit))
        rows.append((x.name, f"{x.offset:,}", f"{x.size:,}", share))
    if rows:
        lines.append(table(("region", "offset", "bytes", ""), rows, right=(1, 2)))
    return [*lines, wrapped("registers", str(registers))]


def _occupancy(facts: Explained) -> list[str]:
    whole = facts.occupancy
    assert whole is not None
    bounds = table(("resource", "CTAs", "arithmetic"), map(astuple, whole.bounds), right=(1,))
    waves = [] if facts.waves is None else [wrapped("waves", str(facts.waves))]
    return [wrapped("", f"occupancy: {whole}", 0), bounds, *waves]


def _roofline(facts: Explained) -> list[str]:
    roof = facts.roofline
    assert roof is not None and facts.traffic is not None
    rows = [
        (x.resource, f"{x.us:,.1f} us", f"{x.us / roof.us:.0%}" if roof.us else "", x.arithmetic)
        for x in roof.rates
    ]
    head = f"roofline: {roof.tflops:,.1f} of {roof.attainable_tflops:,.1f} TFLOP/s attainable; bound by {roof.bound}"
    lines = [wrapped("", head, 0), table(("resource", "alone", "of time", "work / rate"), rows, right=(1, 2))]
    side = "above" if roof.intensity >= roof.ridge else "below"
    lines.append(wrapped("intensity", f"{roof.intensity:,.1f} FLOP/B, {side} the ridge of {roof.ridge:,.1f}"))
    return lines


def _timeline(facts: Timeline) -> list[str]:
    """A line of characters per role: loads, mainloops, epilogues, and dots for waiting."""
    name = max(len(x.role) for x in facts.tracks)
    room = max(20, width() - min(name, 24) - 10)
    head = f"timeline of a CTA, {facts.end / 1e3:,.1f} us ({facts.source})"
    shown = (
        f"first {facts.tiles} of {facts.of_tiles} tiles, {facts.k_tiles} of {facts.of_k_tiles} k tiles each"
    )
    each = f"a stage: load {facts.load_ns:,.0f} ns, MMAs {facts.mma_ns:,.0f} ns; epilogue "
    each += f"{facts.epilogue_ns:,.0f} ns"
    lines = [wrapped("", head, 0), wrapped("", f"{shown}; {each}", 2)]
    marks = {"load": "L", "mainloop": "M", "epilogue": "E"}
    for track in facts.tracks:
        cells = ["."] * room
        for span in track.spans:
            first = int(span.start / facts.end * room)
            for i in range(first, max(first + 1, min(room, round(span.end / facts.end * room)))):
                cells[min(i, room - 1)] = marks[span.does]
        lines.append(f"  {track.role[:24]:<{min(name, 24)}} {''.join(cells)} {track.waits:4.0%}")
    lines.append(wrapped("", "L load, M mainloop, E epilogue, . waits (the share at the end)", 2))
    return lines


def _candidates(facts: Explained, why: bool) -> list[str]:
    listed = facts.candidates if why else _best(facts)
    rows = [(f"{x.us:,.1f} us", _short(x.what), _fate(x.lost, why)) for x in listed]
    of = "predicted times" if facts.groups is None else "predicted times of these GEMMs"
    lines = [f"candidates: {len(facts.candidates)}, {of}", table(("", "", ""), rows, right=(0,))]
    if len(listed) < len(facts.candidates):
        lines.append(f"  --why lists the other {len(facts.candidates) - len(listed)}")
    return lines


def _short(what: str) -> str:
    """ "tile (128, 256, 64), cluster (2, 1), 2 splits of K" as "128x256x64, cluster 2x1, split-K 2"."""
    short = re.sub(r"\(([\d, ]+)\)", lambda x: x[1].replace(", ", "x"), what)
    return re.sub(r"(\d+) splits of K", r"split-K \1", short.removeprefix("tile ")).replace(", added", "")


def _fate(lost: str, why: bool) -> str:
    words = lost or "taken"
    for long, short in SHORT.items():
        words = words.replace(long, short)
    return words if why or len(words) <= FATE else words[: FATE - 2] + " …"


def _best(facts: Explained) -> list:  # type: ignore[type-arg]
    """The first few, and the chosen one."""
    supported = [x for x in facts.candidates if x.serves]
    return supported[:BEST] + [x for x in supported[BEST:] if not x.lost][:1]
