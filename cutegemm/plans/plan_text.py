# SPDX-License-Identifier: Apache-2.0
"""A plan in words, one fact a line."""

from __future__ import annotations

from collections.abc import Iterator

from cutegemm.config import KernelConfig
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.steps import Multiply
from cutegemm.problems import Problem
from cutegemm.request.group_forms import FORMS, average_problem

# where splits are reduced, by `KernelConfig.split_reduction`
_REDUCED = {
    "cluster": "a cluster",
    "workspace": "workspace",
    "launch": "the next launch",
    "atomic": "workspace, by atomics",
}
# where groups lie, by `request.group_forms.FORMS`
_GROUPS = {
    "rows": "of rows",
    "columns": "of columns",
    "masked": "of the first rows of each batch",
    "depth": "along K",
}


def describe(plan: KernelPlan) -> str:
    """The plan, one fact a line."""
    pairs = [*facts(plan), *(("because", reason) for reason in plan.reasons)]
    pairs += [("bf16", x) for x in (plan.faster_in_bf16,) if x]
    lines = [f"{label:<11}" + text.replace("\n", "\n" + " " * 11) for label, text in pairs]
    return "\n".join(lines + ([f"chosen by: {plan.chosen_by}"] if plan.chosen_by else []))


def problem_text(problem: Problem, form: str) -> str:
    """The extents and types of a problem; `form` is that of groups."""
    a, b = problem.a.dtype, problem.b.dtype
    operands = f"A, B {a.value}" if a is b else f"A {a.value}, B {b.value}"
    outputs = (f", {_shown(name)} {x.dtype.value}" for name, x in problem.outputs)
    return f"{shape_text(problem, form)}; {operands}{''.join(outputs)}"


def shape_text(problem: Problem, form: str) -> str:
    """The extents of a problem, with its batch or its groups."""
    if not form:
        return problem.shape
    return f"{problem.m} x {problem.n} x {problem.k}, {_count(problem.batch, 'group')} {_GROUPS[form]}"


def average_of(plan: KernelPlan) -> Problem:
    """The batch of GEMMs, all as large as an average group, for which a grouped kernel was planned."""
    step = plan.multiply
    indexed = step is not None and step.groups is not None and step.groups.indices > 0
    return average_problem(plan.spec, plan.problem, FORMS[plan.form], indexed)


def average_text(plan: KernelPlan) -> str:
    """The number and extents of the GEMMs of `average_of`, as text."""
    of = average_of(plan)
    return f"{_count(of.batch, 'GEMM')} of {of.m} x {of.n} x {of.k}"


def _shown(name: str) -> str:
    """The name of an output in texts."""
    return "D" if name == "d" else name


def facts(plan: KernelPlan) -> Iterator[tuple[str, str]]:
    """(label, text) of each fact about a plan's launches, which `describe` and the command line print."""
    yield "problem", f"M x N x K = {problem_text(plan.problem, plan.form)}"
    if plan.form:
        yield "groups", f"sizes are read on the device; planned as {average_text(plan)}"
    if plan.steps:
        yield "launches", " -> ".join(step.name for step in plan.steps)
    if isinstance(plan.config, KernelConfig):
        yield from _tensor_facts(plan, plan.config)
    elif plan.config is not None:
        assert plan.multiply is not None
        tile, swapped = plan.multiply.along_d(plan.config.tile), ", on the transposes" if plan.swapped else ""
        yield "kernel", f"{plan.config.family}, tile {tile}, {plan.config.threads} threads{swapped}"
        yield "epilogue", str(plan.config.epilogue)
    for step in plan.steps[1:]:
        if isinstance(step, Multiply) and step.groups and isinstance(step.config, KernelConfig):
            yield "large groups", _large_kernel(step, step.groups.sizes[0], step.config)
    if plan.workspace_bytes:
        yield "workspace", f"{plan.workspace_bytes:,} B"
    if plan.counter_bytes:
        yield "counters", f"{plan.counter_bytes:,} B, left zero"


def _shape(step: Multiply, config: KernelConfig) -> str:
    """A kernel's tile, cluster and stages."""
    tile, cluster = (" x ".join(map(str, step.along_d(x))) for x in (config.tile, config.cluster))
    return f"tile {tile}, cluster {cluster}, {config.stages} stages"


def _large_kernel(step: Multiply, least: int, config: KernelConfig) -> str:
    """The kernel of groups of at least so many rows."""
    swapped = ", on the transposes" if step.swapped else ""
    return f"of {least} rows and more: {config.family}, {_shape(step, config)}, {step.clusters} clusters{swapped}"


def _tensor_facts(plan: KernelPlan, config: KernelConfig) -> Iterator[tuple[str, str]]:
    roles = f"{config.consumers} warpgroups that load and compute"
    if config.producers:
        turns = " in turn" if config.pingpong else ""
        roles = f"{config.producers} producer + {config.consumers} consumer warpgroups{turns}"
    setmaxnreg = "" if plan.registers is None else f", registers {plan.registers[0]} / {plan.registers[1]}"
    regions = ", ".join(f"{r.name} {r.size:,}" for r in plan.smem)
    scheduler = "persistent" if config.persistent else "a CTA per tile"
    scheduler += ", dynamic" if config.dynamic else ", stream-K" if config.streamed else ""
    if config.splits > 1:
        scheduler += f", {config.splits} splits of K reduced in {_REDUCED[config.split_reduction]}"
        if config.cluster_splits not in (1, config.splits):
            scheduler += f", {config.cluster_splits} of them in a cluster first"
    along = f"panels of {plan.raster[1]} clusters along {plan.raster[0].upper()}"
    if config.serpentine:
        along += ", there and back"
    if config.by_gpc:
        along += ", clusters of a GPC compute neighbouring tiles"
    operands = config.operands[:: -1 if plan.swapped else 1]
    loads = ", ".join(f"{y} by {x.load} ({plan.along(x.major)}-major)" for y, x in zip("AB", operands))
    assert plan.multiply is not None
    swapped = ", on the transposes" if plan.swapped else ""
    yield "kernel", f"{config.family}: {_shape(plan.multiply, config)}{swapped}"
    yield "roles", f"{roles}, {config.threads} threads{setmaxnreg}, {plan.accumulators} accumulators a thread"
    yield "loads", f"{loads}; swizzle {' / '.join(x.swizzle for x in operands)}"
    yield from _epilogue_facts(plan, config)
    yield "smem", f"{plan.smem_bytes:,} of {config.limits.smem_bytes:,} B: {regions}"
    boxes = (f"{b.operand} {b.count} x {b.extents[0]} x {b.extents[1]}" for b in plan.boxes)
    yield "tma boxes", ", ".join(boxes)
    barriers = (f"{b.count} {b.name} ({_count(b.arrivals, 'arrival')})" for b in plan.barriers)
    yield "barriers", ", ".join(barriers)
    yield (
        "grid",
        f"{plan.clusters} clusters, {scheduler}, {along}; "
        f"{plan.tiles[0]} x {plan.tiles[1]} x {plan.tiles[2]} tiles, {plan.waves:.2f} waves",
    )


def _epilogue_facts(plan: KernelPlan, config: KernelConfig) -> Iterator[tuple[str, str]]:
    """The graph, one operation a line, the load of each input and the store of each output."""
    graph = config.epilogue.transposed() if plan.swapped else config.epilogue
    yield "epilogue", str(graph)
    for name, x in config.input_of.items():
        kind, how = graph.tensors[name], "once per tile"
        if kind == "matrix":
            ahead = f"by TMA, {config.input_stages} of {config.subtiles} subtiles ahead"
            how = ahead if x.load == "tma" else "by loads"
        elif kind.startswith("blocks"):
            how = "at every promotion"
        size = dict(plan.problem.inputs)[name].bytes
        yield "input", f"{name}: {kind}, {x.dtype.value}, {how}, {size:,} B"
    for result, out in zip(graph.stores, config.outputs):
        size = dict(plan.problem.outputs)[result.name].bytes
        rows, columns = (config.limits.mma_m, config.epi_n)[:: -1 if plan.swapped else 1]
        yield (
            "store",
            f"{_shown(result.name)} by {out.store} ({plan.along(out.major)}-major, {out.dtype.value}), "
            f"subtiles of {rows} x {columns}, {_count(config.epilogue_stages, 'buffer')}, {size:,} B",
        )
    for result, offset in zip(graph.reductions, plan.partials):
        ends = "partial results" if offset is None else "finished by a launch in a fixed order"
        ends = f"a block of {result.block} x {K_BLOCK}" if result.block else ends
        yield "reduce", f"{result.name}: {result.kind}, {ends}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
