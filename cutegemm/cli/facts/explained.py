# SPDX-License-Identifier: Apache-2.0
"""Everything that `explain` shows about a problem, computed from the plan that `build` would run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.cli.facts.chosen import chosen
from cutegemm.cli.facts.occupancy import Occupancy, Waves, occupancy, waves_of
from cutegemm.cli.facts.raster import Raster, raster_of
from cutegemm.cli.facts.roofline import Roofline, roofline_of
from cutegemm.cli.facts.timeline import Timeline, timeline_of
from cutegemm.cli.facts.traffic import Traffic, traffic_of
from cutegemm.cli.inputs import Case
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.compiler import Artifact
from cutegemm.config import GemmConfig, KernelConfig
from cutegemm.config.smem_budget import Region
from cutegemm.database.choice import Choice
from cutegemm.plans.kernel_plan import KernelPlan, Weighed
from cutegemm.plans.plan_text import average_of, average_text, facts, problem_text
from cutegemm.plans.steps import Multiply

MEASURED, PREDICTED = "measured", "predicted"


@dataclass(frozen=True)
class PlanGpu:
    """The GPU of the plan: name, SMs, why this GPU, and which of its figures were not measured on it."""

    name: str
    sms: int
    source: str
    note: str


@dataclass(frozen=True)
class GroupsOf:
    """The groups of a grouped GEMM."""

    count: int
    form: str  # "rows" of A, "columns" of B, or "depth" (along K)
    planned_as: list[int]  # M, N and K of each GEMM of the batch for which the cost model chose and predicted


@dataclass(frozen=True)
class PlanOrigin:
    """The origin of the plan."""

    by: str  # in words
    basis: str  # "measured" or "predicted"
    us: float  # microseconds, measured or predicted as `basis` says
    predicted_us: float  # by the cost model
    reasons: list[str]  # of the planner


@dataclass(frozen=True)
class Memory:
    """Shared memory of a CTA."""

    regions: list[Region]  # in order
    bytes: int | None  # in all; None if neither the plan nor a compiled kernel has it
    limit: int  # that a CTA may have
    source: str  # of `bytes`


@dataclass(frozen=True)
class Registers:
    """Registers of a thread."""

    source: str  # "compiled" (the cubin in the cache), or "plan" (not compiled yet: the most it may have)
    at_launch: int  # for every thread
    producer: int | None  # after setmaxnreg; None if the kernel does not use it
    consumer: int | None
    accumulators: int  # registers of a consumer thread that hold accumulators
    spilled_bytes: int | None  # to local memory per thread; None if it is not compiled

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
class GemmLaunch:
    """The GEMM's launch: CTAs, threads of each, and CTAs of a cluster."""

    grid: int
    threads: int
    cluster: int


@dataclass(frozen=True)
class BoxOf:
    """A TMA box: inner and outer extent in elements, and instructions per tile."""

    operand: str
    inner: int
    outer: int
    count: int
    swizzle: str


@dataclass(frozen=True)
class Explained:
    """A problem's plan, explained; from `launch` on, fields are None if D is empty and nothing runs.

    With groups, whose sizes are on the device, those from `waves` on are None.
    """

    problem: str
    spec: str
    gpu: PlanGpu
    groups: GroupsOf | None  # None without --groups
    chosen: PlanOrigin
    candidates: list[Weighed]  # by predicted time
    plan: dict[str, object]  # `KernelPlan.to_dict`
    launch: GemmLaunch | None
    memory: Memory | None
    registers: Registers | None
    boxes: list[BoxOf]
    occupancy: Occupancy | None
    waves: Waves | None
    traffic: Traffic | None
    roofline: Roofline | None
    raster: Raster | None
    timeline: Timeline | None


def explained(case: Case) -> tuple[KernelPlan, Explained]:
    """The plan that `build` uses for a request, and its explanation."""
    choice = chosen(case)
    plan = choice.plan
    problem, origin = problem_text(case.problem, case.form), _origin(choice)
    where = PlanGpu(case.device.name, case.device.sms, case.source, case.device.note)
    if plan.multiply is None:
        return plan, Explained(
            problem, str(case.spec), where, None, origin, [], plan.to_dict(), *(None,) * 3, [], *(None,) * 6
        )  # fmt: skip
    step, config = plan.multiply, plan.multiply.config
    made = kernel_cache.stored(config)
    registers, memory = _registers(plan, config, made), _memory(plan, config, made)
    size = config.cluster_size
    known = Explained(
        problem=problem,
        spec=str(case.spec),
        gpu=where,
        groups=_groups(plan) if case.form else None,
        chosen=origin,
        candidates=list(plan.why.weighed),
        plan=plan.to_dict(),
        launch=GemmLaunch(plan.clusters * size, config.threads, size),
        memory=memory,
        registers=registers,
        boxes=_boxes(plan, step),
        occupancy=occupancy(config.limits, config.threads, registers.at_launch, memory.bytes),
        waves=None,
        traffic=None,
        roofline=None,
        raster=None,
        timeline=None,
    )
    if case.form:
        # the host does not know how large groups are
        return plan, known
    waves, traffic = waves_of(plan, step), traffic_of(plan, step)
    return plan, replace(
        known,
        waves=waves,
        traffic=traffic,
        roofline=roofline_of(plan, traffic, origin.us),
        raster=raster_of(plan, waves.at_once),
        timeline=timeline_of(plan, step, waves.work_tiles, waves.at_once),
    )


def _groups(plan: KernelPlan) -> GroupsOf:
    of = average_of(plan)
    return GroupsOf(of.batch, plan.form, [of.m, of.n, of.k])


def _origin(choice: Choice) -> PlanOrigin:
    from cutegemm.planning.why import predicted_us

    plan, entry = choice.plan, choice.entry
    predicted = predicted_us(plan) if plan.config is not None and plan.problem.k else 0.0
    basis, us = (PREDICTED, predicted) if entry is None else (MEASURED, entry.us)
    reasons = [*plan.reasons, *(f"but bf16 {x}" for x in (plan.faster_in_bf16,) if x)]
    return PlanOrigin(plan.chosen_by, basis, us, predicted, reasons)


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


def summary(plan: KernelPlan, explanation: Explained) -> Iterator[tuple[str, str]]:
    """(label, text) pairs, a line each: origin and time of the plan, then the plan's own facts."""
    problem, *kernel = facts(plan)
    yield problem
    yield "gpu", f"{explanation.gpu.name}, {explanation.gpu.sms} SMs ({explanation.gpu.source})"
    if explanation.gpu.note:
        yield "", explanation.gpu.note
    chosen = explanation.chosen
    more = f", {chosen.predicted_us:,.1f} us predicted" if chosen.basis == MEASURED else ""
    if explanation.groups is not None:
        more = f" for {average_text(plan)}"
    yield "chosen by", f"{chosen.by}; {chosen.us:,.1f} us {chosen.basis}{more}"
    for i, reason in enumerate(chosen.reasons):
        yield "" if i else "because", reason
    # shared memory has a table of its own
    yield from ((label, text) for label, text in kernel if label != "smem")
