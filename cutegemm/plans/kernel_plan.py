# SPDX-License-Identifier: Apache-2.0
"""Plans as plain data: `KernelPlan`, its table of candidates (`Why`), and its launches' arguments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.arch.device import Device
from cutegemm.arch.records import DEFAULT
from cutegemm.checks import plain
from cutegemm.config import Config, GemmConfig, GemvConfig, KernelConfig, SimtConfig, boxes
from cutegemm.config.shared import Barrier, SharedPlan
from cutegemm.config.smem_budget import Region
from cutegemm.families import FAMILIES, load
from cutegemm.launch_layout import layout_of
from cutegemm.plans.steps import Multiply, Step
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec


@dataclass(frozen=True)
class Weighed:
    """A candidate of a plan."""

    what: str  # in words, in D's coordinates
    us: float  # predicted microseconds of the whole problem
    lost: str  # why it was not taken; empty for the one that was
    fields: tuple[tuple[str, object], ...] = ()  # of a `GemmSpec` that asks for it
    serves: bool = True  # whether it is possible for the problem


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
        steps: the launches in order: re-layouts, the GEMM, the reduction of its splits, finishes; none if D is empty.
        tiles: CTA tiles along (m, n, l), rounded up to whole clusters.
        waves: tiles divided by the tiles in flight.
        workspace_bytes: device memory a run needs beside its operands.
        counter_bytes: of counters, zero on entry and reset on exit. Concurrent runs need their own.
        reasons: why each choice was made, one line each.
        chosen_by: what chose the plan, for which GPU, and whether it was measured or predicted; empty if the cost model
            did. It does not count in comparisons of plans.
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
        path = None if self.config is None else FAMILIES[self.config.family].weigh
        found: Why = Why(()) if path is None else load(path)(self)
        return found

    @property
    def faster_in_bf16(self) -> str:
        """For 8-bit operands, a sentence if bf16 is predicted faster, else empty; computed on each use."""
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
            return int(config.held_values)
        if isinstance(config, GemvConfig):
            return config.rows * config.own
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
        return SharedPlan.of(self.config) if isinstance(self.config, KernelConfig) else SharedPlan((), ())

    def _in_d(self, name: str) -> str:
        """The name of an operand's region or barrier, such as "A" or "A words", by the caller's operands."""
        first, *rest = name.split(" ")
        other = {"A": "B", "B": "A"} if self.swapped else {}
        return " ".join([other.get(first, first), *rest])

    def along(self, axis: str) -> str:
        """An axis of the GEMM that the kernel sees, in D's coordinates."""
        return {"m": "n", "n": "m"}.get(axis, axis) if self.swapped else axis

    @property
    def form(self) -> str:
        """The form of the plan's groups (`group_forms.FORMS`); "" without groups."""
        step, config = self.multiply, self.config
        if step is None or step.groups is None or not isinstance(config, KernelConfig):
            return ""
        along = {"m": "rows", "n": "columns", "k": "depth"}
        return "masked" if config.masked else along[self.along(config.grouped)]

    @property
    def gate(self) -> int | None:
        """Elements between the first elements of a gated B's two halves."""
        return None if self.multiply is None else self.multiply.gate

    @property
    def swapped(self) -> bool:
        """Whether the GEMM kernel computes D^T = B^T A^T."""
        return self.multiply is not None and self.multiply.swapped

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
        data |= {"spec": repr(self.spec), "device": self.device.name}
        data["steps"] = [
            {"name": x.name, "config": x.config.to_data(), "arguments": x.fixed()} for x in self.steps
        ]
        return {name: plain(value) for name, value in data.items()}

    def __str__(self) -> str:
        return str(load("cutegemm.plans.plan_text:describe")(self))


def launch_arguments(
    plan: KernelPlan, addresses: Mapping[str, int], workspace: int, numbers: Mapping[str, float], stream: int
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
