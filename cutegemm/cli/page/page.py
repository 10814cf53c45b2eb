# SPDX-License-Identifier: Apache-2.0
"""The HTML document: the output of `explain` and its pictures, in one file that loads nothing."""

from __future__ import annotations

from dataclasses import astuple
from html import escape
from pathlib import Path

from cutegemm.cli.facts.explained import Explained, summary
from cutegemm.cli.page import charts, figures
from cutegemm.cli.page.marks import paragraph, section, table
from cutegemm.config import KernelConfig
from cutegemm.plans.kernel_plan import KernelPlan

HERE = Path(__file__).parent
# most candidates in the table
CANDIDATES = 40


def page(plan: KernelPlan, facts: Explained) -> str:
    """The page of a plan and its explanation."""
    title = f"cutegemm: {facts.problem}"
    style, script = (HERE.joinpath(x).read_text("utf-8") for x in ("style.css", "script.js"))
    body = "".join(_sections(plan, facts))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f'<header><h1>{escape(facts.problem)}</h1><button id="theme" type="button">light / dark</button>'
        f"{_summary(plan, facts)}</header><main>{body}</main>"
        '<output id="tip" aria-live="off"></output>'
        f"<script>{script}</script></body></html>\n"
    )


def _summary(plan: KernelPlan, facts: Explained) -> str:
    rows = [*summary(plan, facts), ("spec", facts.spec)]
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in rows)}</dl>"


def _sections(plan: KernelPlan, facts: Explained) -> list[str]:
    if plan.config is None:
        return [section("Nothing is launched", *(paragraph(x) for x in facts.chosen.reasons))]
    config, parts = plan.config, []
    if facts.roofline is not None:
        parts.append(section("Roofline", charts.roofline(facts.roofline)))
    if facts.timeline is not None:
        parts.append(section("Timeline", charts.timeline(facts.timeline)))
    if facts.raster is not None:
        waves = paragraph(f"{facts.waves}.")
        parts.append(section("Raster and L2 reuse", charts.raster(facts.raster), waves))
    if isinstance(config, KernelConfig) and config.multiplies:
        parts.append(section("Who owns which element of D", figures.owners(plan)))
        assert plan.multiply is not None
        stages = "".join(
            figures.stage(name.upper(), operand, rows // operand.halves, config.tile[2])
            for name, operand, rows in zip(plan.multiply.factors, config.operands, config.tile, strict=False)
        )
        parts.append(section("Shared memory", figures.regions(facts), stages))
        parts.append(section("TMA boxes", f'<div class="row">{figures.boxes(plan, facts)}</div>'))
        barriers = [(f"{x.count} {x.name}", x.arrives, x.arrivals, x.waits) for x in plan.barriers]
        heads = ("barriers", "who arrives", "arrivals", "who waits")
        parts.append(section("Barriers", table(heads, barriers)))
    parts.append(section("Occupancy and registers", *_occupancy(facts)))
    rows = [(f"{x.us:,.1f} us", x.what, x.lost or "taken") for x in facts.candidates[:CANDIDATES]]
    why = [paragraph(x) for x in facts.chosen.reasons]
    parts.append(section("Why this plan", *why, table(("predicted", "candidate", "fate"), rows)))
    return parts


def _occupancy(facts: Explained) -> list[str]:
    assert facts.occupancy is not None
    bounds = table(("resource", "CTAs", "arithmetic"), map(astuple, facts.occupancy.bounds))
    return [paragraph(f"{facts.occupancy}."), bounds, paragraph(f"Registers: {facts.registers}.")]
