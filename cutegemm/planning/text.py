# SPDX-License-Identifier: Apache-2.0
"""A plan as text for people: what runs, on what shapes, out of which budget, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cutegemm.config import GemmConfig, KernelConfig
from cutegemm.config.memory import Region
from cutegemm.config.shared import Barrier
from cutegemm.epilogue.graph import Graph
from cutegemm.planning.budget import Box
from cutegemm.problems import Problem


class Launch(Protocol):
    """One launch of a run."""

    @property
    def name(self) -> str:
        """What it does, in a word or two."""


class Plan(Protocol):
    """What a plan's text is made of (`kernel_plan.KernelPlan`)."""

    @property
    def problem(self) -> Problem: ...
    @property
    def steps(self) -> Sequence[Launch]: ...
    @property
    def config(self) -> GemmConfig | None: ...
    @property
    def swapped(self) -> bool: ...
    @property
    def tiles(self) -> tuple[int, int, int]: ...
    @property
    def clusters(self) -> int: ...
    @property
    def waves(self) -> float: ...
    @property
    def raster(self) -> tuple[str, int]: ...
    @property
    def smem(self) -> tuple[Region, ...]: ...
    @property
    def smem_bytes(self) -> int: ...
    @property
    def barriers(self) -> tuple[Barrier, ...]: ...
    @property
    def accumulators(self) -> int: ...
    @property
    def registers(self) -> tuple[int, int] | None: ...
    @property
    def boxes(self) -> tuple[Box, ...]: ...
    @property
    def partials(self) -> tuple[int | None, ...]: ...
    @property
    def workspace_bytes(self) -> int: ...

    @property
    def counter_bytes(self) -> int: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...
    @property
    def chosen_by(self) -> str: ...


# where parts of K meet, by `KernelConfig.split_reduction`
_MEET = {
    "cluster": "a cluster",
    "workspace": "the workspace",
    "launch": "the next launch",
    "atomic": "the workspace, added as they come",
}


def describe(plan: Plan) -> str:
    """The plan, one fact a line."""
    p = plan.problem
    shape = f"{p.m} x {p.n} x {p.k}" + (f", batch {p.batch}" if p.batch > 1 else "")
    lines = [f"problem    M x N x K = {shape}; A, B {p.a.dtype.value}"]
    lines[0] += "".join(f", {name.upper() if name == 'd' else name} {x.dtype.value}" for name, x in p.outputs)
    if plan.steps:
        lines.append(f"launches   {' -> '.join(step.name for step in plan.steps)}")
    if isinstance(plan.config, KernelConfig):
        lines += _tensor_lines(plan, plan.config)
    elif plan.config is not None:
        lines.append(
            f"kernel     {plan.config.family}, tile {plan.config.tile}, {plan.config.threads} threads"
        )
        lines.append(_formula(plan.config.epilogue))
    if plan.workspace_bytes:
        lines.append(f"workspace  {plan.workspace_bytes:,} B")
    if plan.counter_bytes:
        lines.append(f"counters   {plan.counter_bytes:,} B, left zero")
    lines += [f"because    {reason}" for reason in plan.reasons]
    if plan.chosen_by:
        lines.append(f"chosen by: {plan.chosen_by}")
    return "\n".join(lines)


def _tensor_lines(plan: Plan, config: KernelConfig) -> list[str]:
    tile, cluster = config.tile, config.cluster
    roles = (
        f"{config.producers} producer + {config.consumers} consumer warpgroups{' in turn' if config.pingpong else ''}"
        if config.producers
        else (f"{config.consumers} warpgroups that load and compute")
    )
    setmaxnreg = "" if plan.registers is None else f", registers {plan.registers[0]} / {plan.registers[1]}"
    regions = ", ".join(f"{r.name} {r.size:,}" for r in plan.smem)
    walk = "persistent" if config.persistent else "a CTA per tile"
    if config.streamed:
        walk = "persistent, the last tiles cut along K"
    if config.dynamic:
        walk = "persistent, tiles from a counter"
    if config.splits > 1:
        walk += f", K in {config.splits} parts that meet in {_MEET[config.split_reduction]}"
        if config.cluster_parts not in (1, config.splits):
            walk += f", {config.cluster_parts} of them in a cluster first"
    along = f"panels of {plan.raster[1]} clusters along {plan.raster[0].upper()}"
    if config.serpentine:
        along += ", there and back"
    loads = f"A by {config.a.load} ({config.a.major}-major), B by {config.b.load} ({config.b.major}-major)"
    return [
        f"kernel     {config.family}: tile {tile[0]} x {tile[1]} x {tile[2]}, cluster {cluster[0]} x {cluster[1]}, "
        f"{config.stages} stages{', on the transposes' if plan.swapped else ''}",
        f"roles      {roles}, {config.threads} threads{setmaxnreg}, {plan.accumulators} accumulators a thread",
        f"loads      {loads}; swizzle {config.a.swizzle} / {config.b.swizzle}",
        *_epilogue_lines(plan, config),
        f"smem       {plan.smem_bytes:,} of {config.limits.smem_bytes:,} B: {regions}",
        "tma boxes  "
        + ", ".join(f"{b.operand} {b.count} x {b.extents[0]} x {b.extents[1]}" for b in plan.boxes),
        "barriers   " + ", ".join(f"{b.count} {b.name} ({b.arrivals} arrivals)" for b in plan.barriers),
        f"grid       {plan.clusters} clusters, {walk}, {along}; "
        f"{plan.tiles[0]} x {plan.tiles[1]} x {plan.tiles[2]} tiles, {plan.waves:.2f} waves",
    ]


def _epilogue_lines(plan: Plan, config: KernelConfig) -> list[str]:
    """The graph, and how each input arrives and each output leaves."""
    graph = config.epilogue
    lines = []
    for name, x in config.input_of.items():
        how = (
            f"by TMA, {config.input_stages} of {config.pieces} pieces ahead"
            if x.load == "tma"
            else "by loads"
        )
        kind = graph.tensors[name]
        how = how if kind == "matrix" else "once per tile"
        size = dict(plan.problem.inputs)[name].bytes
        lines.append(f"input      {name}: {kind}, {x.dtype.value}, {how}, {size:,} B")
    for result, out in zip(graph.stores, config.outputs):
        size = dict(plan.problem.outputs)[result.name].bytes
        shown = "D" if result.name == "d" else result.name
        lines.append(
            f"store      {shown} by {out.store} ({out.major}-major, {out.dtype.value}), "
            f"pieces of {config.limits.mma_m} x {config.epi_n}, {config.epilogue_stages} buffers, {size:,} B"
        )
    for result, offset in zip(graph.reductions, plan.partials):
        ends = "partial results" if offset is None else "finished by a launch in a fixed order"
        lines.append(f"reduce     {result.name}: {result.kind}, {ends}")
    return [_formula(graph), *lines]


def _formula(graph: Graph) -> str:
    """The graph's lines, one below the other."""
    return "epilogue   " + str(graph).replace("\n", "\n" + " " * 11)
