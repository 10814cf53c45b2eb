# SPDX-License-Identifier: Apache-2.0
"""Plans as plain data: `KernelPlan`, its text, its table of candidates (`Why`), and its launches' arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.checks import plain
from cutegemm.config import Config, GemmConfig, KernelConfig, SimtConfig, boxes, registers
from cutegemm.config.shared import Barrier, SharedPlan
from cutegemm.config.smem_budget import Region
from cutegemm.epilogue.scales import K_BLOCK
from cutegemm.families import FAMILIES, load
from cutegemm.launch_layout import layout_of
from cutegemm.planning.steps import Multiply, Step
from cutegemm.problems import Operand, Problem
from cutegemm.spec import GemmSpec


@dataclass(frozen=True)
class Weighed:
    """A candidate of a plan.

    Attributes:
        what: in words, in D's coordinates.
        us: predicted microseconds of the whole problem.
        lost: why it was not taken; empty for the one that was.
        fields: of a `GemmSpec` that asks for it.
        serves: whether it is possible for the problem.
    """

    what: str
    us: float
    lost: str
    fields: tuple[tuple[str, object], ...] = ()
    serves: bool = True


@dataclass(frozen=True)
class Why:
    """The cheapest candidates of a plan, by predicted time; the one taken is among them. It prints as a table."""

    weighed: tuple[Weighed, ...]

    @property
    def taken(self) -> Weighed | None:
        """The candidate that was taken; None if nothing was chosen."""
        return next((x for x in self.weighed if not x.lost), None)

    def __str__(self) -> str:
        if not self.weighed:
            return "nothing was chosen"
        width = max(len(x.what) for x in self.weighed)
        lines = [f"{'predicted':>12}  {'candidate':{width}}  fate"]
        lines += [f"{x.us:9,.1f} us  {x.what:{width}}  {x.lost or 'taken'}" for x in self.weighed]
        return "\n".join(lines)


# properties of the GEMM kernel that `to_dict` includes
DERIVED = ("smem", "smem_bytes", "barriers", "accumulators", "registers", "boxes", "store_conflicts")


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """The plan of one problem under one spec: its launches, and everything about the GEMM kernel.

    Attributes:
        spec, problem, device: the request, and the GPU that the plan is for.
        steps: the launches of a run in order: re-layouts, the GEMM, the reduction of its splits, finishes. Empty if D
            is empty.
        tiles: CTA tiles along (m, n, l), rounded up to whole clusters.
        waves: tiles divided by the tiles in flight.
        workspace_bytes: device memory a run needs beside its operands.
        counter_bytes: counters, zero on entry and reset on exit. Concurrent runs need their own.
        reasons: why each choice was made, one line each.
        chosen_by: what chose the plan, for which GPU, and whether it was measured or predicted. Empty for plans of
            `planning.planner`, which the cost model chose. It does not count in comparisons of plans.
    """

    spec: GemmSpec
    problem: Problem
    device: Device = DEFAULT
    steps: tuple[Step, ...]
    tiles: tuple[int, int, int] = (0, 0, 0)
    waves: float = 0.0
    workspace_bytes: int = 0
    counter_bytes: int = 0
    reasons: tuple[str, ...] = ()
    chosen_by: str = field(default="", compare=False)

    @property
    def multiply(self) -> Multiply | None:
        """The GEMM launch; None if D is empty."""
        return next((x for x in self.steps if isinstance(x, Multiply)), None)

    @property
    def config(self) -> GemmConfig | None:
        """The GEMM kernel's config; None when D is empty."""
        return None if self.multiply is None else self.multiply.config

    @property
    def storing(self) -> Multiply | None:
        """The launch that applies the epilogue: the GEMM, or the reduction of its splits."""
        return next((x for x in reversed(self.steps) if isinstance(x, Multiply)), None)

    @property
    def why(self) -> Why:
        """The candidates with predicted times and why each lost; computed on first use."""
        config = self.config
        path = None if config is None else FAMILIES[config.family].weigh
        found: Why = Why(()) if path is None else load(path)(self)
        return found

    @property
    def faster_in_bf16(self) -> str:
        """Of 8-bit operands: that bf16 is predicted faster, in words, or empty; computed on each use."""
        path = None if self.config is None else FAMILIES[self.config.family].beside
        return "" if path is None else str(load(path)(self))

    @property
    def smem(self) -> tuple[Region, ...]:
        """The regions of the GEMM kernel's shared memory, named by the caller's operands."""
        return tuple(dataclasses.replace(x, name=self._in_d(x.name)) for x in self._shared.regions)

    @property
    def smem_bytes(self) -> int:
        """Bytes of all of them."""
        return self._shared.bytes

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        """The GEMM kernel's barriers, with participants and arrive counts."""
        return tuple(dataclasses.replace(x, name=self._in_d(x.name)) for x in self._shared.used)

    @property
    def accumulators(self) -> int:
        """fp32 registers per consumer thread."""
        config = self.config
        if isinstance(config, KernelConfig):
            return int(registers.accumulators(config))
        return math.prod(config.thread_tile) if isinstance(config, SimtConfig) else 0

    @property
    def registers(self) -> tuple[int, int] | None:
        """(producer, consumer) registers per thread after setmaxnreg; None where the kernel does not set them."""
        return self.config.registers if isinstance(self.config, KernelConfig) else None

    @property
    def boxes(self) -> tuple[boxes.Box, ...]:
        """TMA instructions per tile of A, B, D and the epilogue's inputs."""
        found = boxes.boxes(self.config) if isinstance(self.config, KernelConfig) else ()
        return tuple(dataclasses.replace(x, operand=self._in_d(x.operand)) for x in found)

    @property
    def store_conflicts(self) -> int | None:
        """Extra bank wavefronts per stmatrix of the epilogue (`config.boxes.store_conflicts`)."""
        return boxes.store_conflicts(self.config) if isinstance(self.config, KernelConfig) else None

    @property
    def _shared(self) -> SharedPlan:
        config = self.config
        return SharedPlan.of(config) if isinstance(config, KernelConfig) else SharedPlan((), ())

    def _in_d(self, name: str) -> str:
        """The name of an operand's region or barrier, such as "A" or "A words", by the caller's operands."""
        first, *rest = name.split(" ")
        other = {"A": "B", "B": "A"} if self.swapped else {}
        return " ".join([other.get(first, first), *rest])

    def along(self, axis: str) -> str:
        """An axis of the GEMM that the kernel sees, in D's coordinates."""
        return {"m": "n", "n": "m"}.get(axis, axis) if self.swapped else axis

    @property
    def views(self) -> tuple[Operand, Operand] | None:
        """A and B as the GEMM kernel sees them, after re-layouts; a gated B is one of its halves."""
        return None if self.multiply is None else (self.multiply.operands["a"], self.multiply.operands["b"])

    @property
    def gate(self) -> int | None:
        """Elements between the first elements of a gated B's two halves."""
        return None if self.multiply is None else self.multiply.gate

    @property
    def swapped(self) -> bool:
        """Whether the GEMM kernel computes D^T = B^T A^T."""
        return self.multiply is not None and self.multiply.factors == ("b", "a")

    @property
    def parts(self) -> tuple[int, int, int]:
        """Partial results per result of a reduction over D's rows, columns and all."""
        first, second, every = (0, 0, 0) if self.multiply is None else self.multiply.parts
        return (second, first, every) if self.swapped else (first, second, every)

    @property
    def partial_width(self) -> tuple[int, int]:
        """D's rows and columns that one partial result of a reduction covers."""
        rows, columns = (0, 0) if self.storing is None else self.storing.config.partial_width
        return (columns, rows) if self.swapped else (rows, columns)

    @property
    def partials(self) -> tuple[int | None, ...]:
        """The byte offset of each reduction in the workspace; None for one whose result stays partial."""
        if (step := self.storing) is None:
            return ()
        return tuple(step.in_workspace.get(x.name) for x in step.config.epilogue.reductions)

    @property
    def clusters(self) -> int:
        """Clusters launched."""
        return 0 if self.multiply is None else self.multiply.clusters

    @property
    def raster(self) -> tuple[str, int]:
        """(D's axis, group)."""
        axis, group = ("m", 1) if self.multiply is None else self.multiply.raster
        return self.along(axis), group

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain, JSON-serialisable data."""
        names = (*(f.name for f in dataclasses.fields(self)), *DERIVED)
        data = {name: getattr(self, name) for name in names}
        data["spec"] = repr(self.spec)
        data["device"] = self.device.name
        data["steps"] = [
            {"name": x.name, "config": x.config.to_data(), "arguments": x.fixed()} for x in self.steps
        ]
        return {name: plain(value) for name, value in data.items()}

    def __str__(self) -> str:
        return describe(self)


def launch_arguments(
    plan: KernelPlan,
    addresses: Mapping[str, int],
    workspace: int,
    numbers: Mapping[str, float],
    stream: int,
) -> Iterator[tuple[Config, tuple[Any, ...]]]:
    """(config, host arguments) of every launch of a run, in order.

    Args:
        plan: of the run.
        addresses: of a, b, every tensor input and output, and every device scalar, by name; if the run counts, as
            `COUNTERS` that of `plan.counter_bytes` zeroed bytes for its exclusive use.
        workspace: address of `plan.workspace_bytes` bytes, 16-byte aligned.
        numbers: the epilogue's numbers by name.
        stream: CUDA stream handle.
    """
    for step in plan.steps:
        packed = layout_of(step.config).pack(step.values(addresses, workspace, numbers))
        yield step.config, (*packed, stream)


# where splits are reduced, by `KernelConfig.split_reduction`
_REDUCED = {
    "cluster": "a cluster",
    "workspace": "workspace",
    "launch": "the next launch",
    "atomic": "workspace, by atomics",
}


def describe(plan: KernelPlan) -> str:
    """The plan, one fact a line."""
    pairs = [*facts(plan), *(("because", reason) for reason in plan.reasons)]
    pairs += [("bf16", x) for x in (plan.faster_in_bf16,) if x]
    lines = [f"{label:<11}" + text.replace("\n", "\n" + " " * 11) for label, text in pairs]
    return "\n".join(lines + ([f"chosen by: {plan.chosen_by}"] if plan.chosen_by else []))


def facts(plan: KernelPlan) -> Iterator[tuple[str, str]]:
    """(label, text) of each fact about a plan's launches; `describe` and the command line print them."""
    p = plan.problem
    shape = f"{p.m} x {p.n} x {p.k}" + (f", batch {p.batch}" if p.batch > 1 else "")
    outputs = (f", {name.upper() if name == 'd' else name} {x.dtype.value}" for name, x in p.outputs)
    yield "problem", f"M x N x K = {shape}; A, B {p.a.dtype.value}{''.join(outputs)}"
    if plan.steps:
        yield "launches", " -> ".join(step.name for step in plan.steps)
    if isinstance(plan.config, KernelConfig):
        yield from _tensor_facts(plan, plan.config)
    elif plan.config is not None:
        yield "kernel", f"{plan.config.family}, tile {plan.config.tile}, {plan.config.threads} threads"
        yield "epilogue", str(plan.config.epilogue)
    if plan.workspace_bytes:
        yield "workspace", f"{plan.workspace_bytes:,} B"
    if plan.counter_bytes:
        yield "counters", f"{plan.counter_bytes:,} B, left zero"


def _tensor_facts(plan: KernelPlan, config: KernelConfig) -> Iterator[tuple[str, str]]:
    tile, cluster = config.tile, config.cluster
    if plan.swapped:
        tile, cluster = (tile[1], tile[0], tile[2]), (cluster[1], cluster[0])
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
    operands = config.operands[:: -1 if plan.swapped else 1]
    loads = ", ".join(f"{y} by {x.load} ({plan.along(x.major)}-major)" for y, x in zip("AB", operands))
    yield (
        "kernel",
        f"{config.family}: tile {tile[0]} x {tile[1]} x {tile[2]}, cluster {cluster[0]} x {cluster[1]}, "
        f"{config.stages} stages{', on the transposes' if plan.swapped else ''}",
    )
    yield "roles", f"{roles}, {config.threads} threads{setmaxnreg}, {plan.accumulators} accumulators a thread"
    yield "loads", f"{loads}; swizzle {' / '.join(x.swizzle for x in operands)}"
    yield from _epilogue_facts(plan, config)
    yield "smem", f"{plan.smem_bytes:,} of {config.limits.smem_bytes:,} B: {regions}"
    boxes = (f"{b.operand} {b.count} x {b.extents[0]} x {b.extents[1]}" for b in plan.boxes)
    yield "tma boxes", ", ".join(boxes)
    yield "barriers", ", ".join(f"{b.count} {b.name} ({b.arrivals} arrivals)" for b in plan.barriers)
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
        shown = "D" if result.name == "d" else result.name
        rows, columns = (config.limits.mma_m, config.epi_n)[:: -1 if plan.swapped else 1]
        yield (
            "store",
            f"{shown} by {out.store} ({plan.along(out.major)}-major, {out.dtype.value}), "
            f"subtiles of {rows} x {columns}, {config.epilogue_stages} buffers, {size:,} B",
        )
    for result, offset in zip(graph.reductions, plan.partials):
        ends = "partial results" if offset is None else "finished by a launch in a fixed order"
        ends = f"a block of {result.block} x {K_BLOCK}" if result.block else ends
        yield "reduce", f"{result.name}: {result.kind}, {ends}"
