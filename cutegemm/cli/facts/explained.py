# SPDX-License-Identifier: Apache-2.0
"""Everything that `explain` shows of a problem, computed from the plan that `build` would run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cutegemm.cli.facts.occupancy import Occupancy, Waves, occupancy, waves_of
from cutegemm.cli.facts.raster import Raster, raster_of
from cutegemm.cli.facts.roofline import Roofline, roofline_of
from cutegemm.cli.facts.timeline import Timeline, timeline_of
from cutegemm.cli.facts.traffic import Traffic, traffic_of
from cutegemm.cli.given import Asked
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import Artifact
from cutegemm.config import GemmConfig, KernelConfig, OperandConfig
from cutegemm.config.smem_budget import Region
from cutegemm.database.choice import Choice, choose
from cutegemm.families import FAMILIES
from cutegemm.planning.kernel_plan import KernelPlan, Weighed
from cutegemm.planning.steps import Multiply

MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class Where:
    """The GPU of the plan: its name and SMs, why it is this one, and what of its figures is not its own."""

    name: str
    sms: int
    source: str
    note: str


@dataclass(frozen=True)
class Chosen:
    """Where the plan comes from."""

    by: str  # in words
    basis: str  # "measured" or "predicted"
    us: float  # microseconds, measured or predicted as `basis` says
    predicted_us: float  # by the cost model in any case
    reasons: list[str]  # given by the planner


@dataclass(frozen=True)
class Memory:
    """Shared memory of a CTA: regions in order, their total, and what a CTA may have.

    `source` says whether the total is the plan's or the compiled kernel's; None in `bytes` where neither knows it.
    """

    regions: list[Region]
    bytes: int | None
    limit: int
    source: str


@dataclass(frozen=True)
class Registers:
    """Registers of a thread."""

    source: str  # "compiled" (the cubin in the cache), or "plan" (not compiled yet: the most it may have)
    at_launch: int  # for every thread
    producer: int | None  # after setmaxnreg, None where the launch's stay
    consumer: int | None
    accumulators: int  # registers of a consumer thread that hold fp32 sums
    spilled_bytes: int | None  # to local memory, of a thread; None where it is not compiled

    def __str__(self) -> str:
        words = f"{self.at_launch} a thread at launch"
        if self.producer is not None:
            words += f", after setmaxnreg {self.producer} in the producer and {self.consumer} in consumers"
        words += f"; {self.accumulators} accumulators"
        if self.spilled_bytes is None:
            return f"{words} (the plan's budget, not compiled yet)"
        spills = f"{self.spilled_bytes} B spilled" if self.spilled_bytes else "no spills"
        return f"{words}; {spills} (the compiled kernel)"


@dataclass(frozen=True)
class Launch:
    """The GEMM's launch: CTAs, threads, CTAs of a cluster; and all launches of a run by name."""

    grid: int
    threads: int
    cluster: list[int]
    steps: list[str]
    workspace_bytes: int


@dataclass(frozen=True)
class BoxOf:
    """What one TMA instruction moves: inner and outer extent in elements, and how many for a tile."""

    operand: str
    inner: int
    outer: int
    count: int
    swizzle: str


@dataclass(frozen=True)
class Kernel:
    """The kernel in short."""

    family: str
    schedule: str
    scheduler: str
    tile: list[int]  # rows, columns, depth of K in D's coordinates
    stages: int  # pipeline stages
    roles: str  # warpgroups and what they do
    swapped: bool  # whether D's transpose is computed
    loads: list[str]  # how A and B arrive
    stores: list[str]  # how outputs leave
    epilogue: list[str]  # its formula, a line each
    pipelines: list[str]  # barriers with their arrivals, in words


@dataclass(frozen=True)
class Explained:
    """A problem's plan, explained; the parts are None where D is empty and nothing runs."""

    problem: str
    spec: str
    gpu: Where
    chosen: Chosen
    candidates: list[Weighed]  # by predicted time
    kernel: Kernel | None
    launch: Launch | None
    memory: Memory | None
    registers: Registers | None
    boxes: list[BoxOf]
    occupancy: Occupancy | None
    waves: Waves | None
    traffic: Traffic | None
    roofline: Roofline | None
    raster: Raster | None
    timeline: Timeline | None


def explained(asked: Asked) -> tuple[KernelPlan, Explained]:
    """The plan that `build` takes for what was asked, and what there is to say of it."""
    choice = choose(asked.spec, asked.problem, asked.device)
    plan = choice.plan
    problem, chosen = _problem(asked), _chosen(choice)
    where = Where(asked.device.name, asked.device.sms, asked.source, asked.device.note)
    if plan.multiply is None:
        return plan, Explained(
            problem, str(asked.spec), where, chosen, [], *(None,) * 4, [], *(None,) * 6
        )  # fmt: skip
    step, config = plan.multiply, plan.multiply.config
    made = kernel_cache.stored(config)
    registers, memory = _registers(plan, config, made), _memory(plan, config, made)
    waves, traffic = waves_of(plan, step), traffic_of(plan, step)
    size = config.cluster_size
    steps = [x.name for x in plan.steps]
    return plan, Explained(
        problem=problem,
        spec=str(asked.spec),
        gpu=where,
        chosen=chosen,
        candidates=list(plan.why.weighed),
        kernel=_kernel(plan, step),
        launch=Launch(plan.clusters * size, config.threads, [size, 1, 1], steps, plan.workspace_bytes),
        memory=memory,
        registers=registers,
        boxes=_boxes(plan, step),
        occupancy=occupancy(config.limits, config.threads, registers.at_launch, memory.bytes),
        waves=waves,
        traffic=traffic,
        roofline=roofline_of(plan, traffic, chosen.us),
        raster=raster_of(plan, waves.at_once),
        timeline=timeline_of(plan, step, waves.work_tiles, waves.at_once),
    )


def _problem(asked: Asked) -> str:
    p = asked.problem
    outputs = "".join(f", {'D' if name == 'd' else name} {x.dtype.value}" for name, x in p.outputs)
    return f"{p.shape}; A, B {p.a.dtype.value}{outputs}"


def _chosen(choice: Choice) -> Chosen:
    from cutegemm.planning.why import predicted_us

    plan, own = choice.plan, choice.entry is not None and not choice.near
    predicted = predicted_us(plan) if plan.config is not None and plan.problem.k else 0.0
    us = choice.entry.us if own and choice.entry is not None else predicted
    reasons = [*plan.reasons, *(f"but bf16 {x}" for x in (plan.faster_in_bf16,) if x)]
    return Chosen(plan.chosen_by, MEASURED if own else PREDICTED, us, predicted, reasons)


def _registers(plan: KernelPlan, config: GemmConfig, made: Artifact | None) -> Registers:
    producer, consumer = plan.registers or (None, None)
    if made is not None:
        at_launch, spilled = made.resources.registers, made.resources.frame_bytes
        return Registers("compiled", at_launch, producer, consumer, plan.accumulators, spilled)
    limits = config.limits
    residents = config.ctas_per_sm if isinstance(config, KernelConfig) else config.residents
    most = limits.registers_per_sm // (config.threads * residents)
    at_launch = min(limits.registers_per_thread, most // limits.register_step * limits.register_step)
    return Registers("plan", at_launch, producer, consumer, plan.accumulators, None)


def _memory(plan: KernelPlan, config: GemmConfig, made: Artifact | None) -> Memory:
    limit, size, source = config.limits.smem_bytes, None, "not compiled yet: `cutegemm ptx` compiles it"
    if isinstance(config, KernelConfig):
        size, source = plan.smem_bytes, "plan"
    elif made is not None:
        size, source = made.resources.smem_bytes, "compiled"
    return Memory(list(plan.smem), size, limit, source)


def _boxes(plan: KernelPlan, step: Multiply) -> list[BoxOf]:
    config = step.config
    if not isinstance(config, KernelConfig):
        return []
    pairs = zip(step.factors, config.operands, strict=True)
    swizzles: dict[str, str] = {name.upper(): x.swizzle for name, x in pairs}
    matrices: list[tuple[str, Any]] = list(config.input_of.items())
    matrices += [(x.name, y) for x, y in zip(config.epilogue.stores, config.outputs, strict=False)]
    swizzles |= {(x.upper() if x in ("c", "d") else x): config.subtile_swizzle(y) for x, y in matrices}
    return [
        BoxOf(x.operand, x.extents[0], x.extents[1], x.count, swizzles.get(x.operand, "none"))
        for x in plan.boxes
    ]


def _kernel(plan: KernelPlan, step: Multiply) -> Kernel:
    config = step.config
    formula = str(config.epilogue).splitlines()
    stores = [f"{x.name} by {y.store}" for x, y in zip(config.epilogue.stores, config.outputs, strict=False)]
    pairs = sorted(zip(step.factors, config.operands, strict=True), key=lambda x: x[0])
    loads = [f"{name.upper()} by {x.load} ({_major(name, x)}, swizzle {x.swizzle})" for name, x in pairs]
    if not isinstance(config, KernelConfig):
        roles = f"{config.threads} threads that load and compute"
        stages = 2 if config.staged else config.stages
        tile = list(config.tile)
        return Kernel("simt", "simt", "per_tile", tile, stages, roles, False, loads, stores, formula, [])
    schedule = "pingpong" if config.pingpong else next(iter(FAMILIES[config.family].schedules))
    scheduler = "persistent" if config.persistent else "per_tile"
    if config.tile_scheduler != "static":
        scheduler = config.tile_scheduler
    roles = f"{config.consumers} warpgroup{'s' * (config.consumers > 1)} that load and compute"
    if config.producers:
        roles = f"{config.producers} producer + {config.consumers} consumer warpgroups"
    pipelines = [f"{x.count} {x.name}: {x.arrives} ({x.arrivals}) -> {x.waits}" for x in plan.barriers]
    m, n, depth = config.tile
    tile = [n, m, depth] if plan.swapped else [m, n, depth]
    return Kernel(
        config.family, schedule, scheduler, tile, config.stages, roles, plan.swapped, loads, stores,
        formula, pipelines,
    )  # fmt: skip


def _major(name: str, x: OperandConfig) -> str:
    """The unit-stride axis in the caller's terms: a transposed A is the kernel's B."""
    own = {"a": "m", "b": "n"}[name]
    return f"{'k' if x.major == 'k' else own if x.major in ('m', 'n') else x.major}-major"


def summary(found: Explained) -> Iterator[tuple[str, str]]:
    """(label, text) pairs, a line each; a pair without a label continues the line before it."""
    chosen, kernel, launch = found.chosen, found.kernel, found.launch
    yield "problem", found.problem
    yield "gpu", f"{found.gpu.name}, {found.gpu.sms} SMs ({found.gpu.source})"
    if found.gpu.note:
        yield "", found.gpu.note
    more = f", {chosen.predicted_us:,.1f} us predicted" if chosen.basis == MEASURED else ""
    yield "chosen by", f"{chosen.by}; {chosen.us:,.1f} us {chosen.basis}{more}"
    for i, reason in enumerate(chosen.reasons):
        yield "" if i else "because", reason
    if kernel is None or launch is None:
        return
    what = f"{kernel.family}, {kernel.schedule}: CTA tile {' x '.join(map(str, kernel.tile))}, {kernel.stages} stages"
    yield "kernel", f"{what}, {kernel.scheduler}" + (", on the transposes" if kernel.swapped else "")
    yield "roles", kernel.roles
    yield "loads", "; ".join(kernel.loads)
    yield "stores", "; ".join(kernel.stores) or "none"
    for i, formula in enumerate(kernel.epilogue):
        yield "" if i else "epilogue", formula
    grid = f"{launch.grid} CTAs of {launch.threads} threads, clusters of {launch.cluster[0]}"
    yield "launches", f"{' -> '.join(launch.steps)}; GEMM: {grid}"
    if launch.workspace_bytes:
        yield "workspace", f"{launch.workspace_bytes:,} B"
    if found.boxes:
        yield "tma boxes", ", ".join(f"{x.operand} {x.count} x ({x.inner} x {x.outer})" for x in found.boxes)
