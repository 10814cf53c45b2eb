# SPDX-License-Identifier: Apache-2.0
"""A plan as text for people: what runs, on what shapes, out of which budget, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm import hardware as hw
from cutegemm.config import KernelConfig

if TYPE_CHECKING:
    from cutegemm.plan import KernelPlan


def describe(plan: KernelPlan) -> str:
    """The plan, one fact a line."""
    p = plan.problem
    shape = f"{p.m} x {p.n} x {p.k}" + (f", batch {p.batch}" if p.batch > 1 else "")
    lines = [f"problem    M x N x K = {shape}; A, B {p.a.dtype.value}, D {p.d.dtype.value}"]
    if plan.steps:
        lines.append(f"launches   {' -> '.join(step.name for step in plan.steps)}")
    if isinstance(plan.config, KernelConfig):
        lines += _tensor_lines(plan, plan.config)
    elif plan.config is not None:
        lines.append(
            f"kernel     {plan.config.family}, tile {plan.config.tile}, {plan.config.threads} threads"
        )
        lines.append(f"epilogue   {plan.config.epilogue}")
    if plan.workspace_bytes:
        lines.append(f"workspace  {plan.workspace_bytes:,} B")
    lines += [f"because    {reason}" for reason in plan.reasons]
    return "\n".join(lines)


def _tensor_lines(plan: KernelPlan, config: KernelConfig) -> list[str]:
    tile, cluster = config.tile, config.cluster
    roles = (
        f"{config.producers} producer + {config.consumers} consumer warpgroups"
        if config.producers
        else (f"{config.consumers} warpgroups that load and compute")
    )
    setmaxnreg = "" if plan.registers is None else f", registers {plan.registers[0]} / {plan.registers[1]}"
    regions = ", ".join(f"{r.name} {r.size:,}" for r in plan.smem)
    walk = "persistent" if config.persistent else "a CTA per tile"
    along = f"panels of {plan.raster[1]} clusters along {plan.raster[0].upper()}"
    loads = f"A by {config.a.load} ({config.a.major}-major), B by {config.b.load} ({config.b.major}-major)"
    return [
        f"kernel     {config.family}: tile {tile[0]} x {tile[1]} x {tile[2]}, cluster {cluster[0]} x {cluster[1]}, "
        f"{config.stages} stages",
        f"roles      {roles}, {config.threads} threads{setmaxnreg}, {plan.accumulators} accumulators a thread",
        f"loads      {loads}; swizzle {config.swizzle[0]} / {config.swizzle[1]}",
        f"store      {config.store} ({config.d.major}-major), pieces of {hw.WGMMA_M} x {config.epi_n}, "
        f"{config.epi_stages} buffers",
        f"epilogue   {config.epilogue}",
        f"smem       {plan.smem_bytes:,} of {hw.SMEM_BYTES:,} B: {regions}",
        "tma boxes  "
        + ", ".join(f"{b.operand} {b.count} x {b.extents[0]} x {b.extents[1]}" for b in plan.boxes),
        "barriers   " + ", ".join(f"{b.count} {b.name} ({b.arrivals} arrivals)" for b in plan.barriers),
        f"grid       {plan.clusters} clusters, {walk}, {along}; "
        f"{plan.tiles[0]} x {plan.tiles[1]} x {plan.tiles[2]} tiles, {plan.waves:.2f} waves",
    ]
