# SPDX-License-Identifier: Apache-2.0
"""What a plan says: `KernelPlan` and its parts. Plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.config import Config
from cutegemm.dtypes import DType
from cutegemm.problem import Operand, Problem
from cutegemm.spec import GemmSpec

GEMM = "gemm"  # name of the step that multiplies


@dataclass(frozen=True)
class Region:
    """A named piece of shared memory or workspace: offset and size in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Barrier:
    """A kind of barrier: how many there are, who arrives, how many arrivals complete a phase, who waits."""

    name: str
    count: int
    arrives: str
    arrivals: int
    waits: str


@dataclass(frozen=True)
class Box:
    """How TMA moves one tile of an operand: `count` instructions of (inner, outer) elements each."""

    operand: str
    extents: tuple[int, int]
    count: int


@dataclass(frozen=True)
class Step:
    """One launch of a run.

    A re-layout names the operand, its source `source_offset` bytes into it and the copy in the workspace; the
    finish of a reduction names the output, with `results` results of `parts` partial ones each in the workspace.
    """

    name: str
    config: Config
    operand: str | None = None
    source: Operand | None = None
    target: Operand | None = None
    source_offset: int = 0  # bytes
    offset: int = 0  # in the workspace, bytes
    parts: int = 0
    results: int = 0


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """How one spec serves one problem.

    Attributes:
        spec, problem: what was asked.
        steps: the launches of a run, in order: re-layouts, the GEMM, finishes. Empty when D is empty.
        gate: of a gated B, elements from one half's first to the other's; b as the kernel sees it is one half.
        parts: partial results per result of a reduction over rows, columns and all.
        partials: each reduction's place in the workspace, bytes; None where the result itself is partial.
        tiles: CTA tiles along (m, n, l), rounded up to whole clusters.
        views: A and B as the GEMM kernel sees them, after re-layouts.
        clusters: clusters launched; waves: tiles over tiles in flight.
        raster: (axis, group).
        smem, smem_bytes: regions of the GEMM kernel's shared memory and their total.
        barriers: its barriers with participants and arrive counts.
        accumulators: fp32 registers per consumer thread; registers: (producer, consumer) after setmaxnreg.
        boxes: TMA instructions per tile of A, B and D.
        store_conflicts: extra bank wavefronts per stmatrix of the epilogue (`budget.store_conflicts`).
        workspace_bytes: device memory a run needs beside its operands.
        reasons: why each choice was made, one line each.
    """

    spec: GemmSpec
    problem: Problem
    steps: tuple[Step, ...]
    views: tuple[Operand, Operand] | None = None
    gate: int | None = None
    parts: tuple[int, int, int] = (0, 0, 0)
    partials: tuple[int | None, ...] = ()
    tiles: tuple[int, int, int] = (0, 0, 0)
    clusters: int = 0
    waves: float = 0.0
    raster: tuple[str, int] = ("m", 1)
    smem: tuple[Region, ...] = ()
    smem_bytes: int = 0
    barriers: tuple[Barrier, ...] = ()
    accumulators: int = 0
    registers: tuple[int, int] | None = None
    boxes: tuple[Box, ...] = ()
    store_conflicts: int | None = None
    workspace_bytes: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def config(self) -> Config | None:
        """The GEMM kernel's config; None when D is empty."""
        return next((x.config for x in self.steps if x.name == GEMM), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain, JSON-serialisable data."""
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data["spec"] = repr(self.spec)
        data["problem"] = _plain(self.problem)
        data["steps"] = [
            {"name": s.name, "config": s.config.to_data(), "offset": s.offset} for s in self.steps
        ]
        for name in ("smem", "barriers", "boxes"):
            data[name] = [dataclasses.asdict(x) for x in data[name]]
        return _plain(data)

    def __str__(self) -> str:
        from cutegemm.plan_text import describe

        return describe(self)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, DType):
        return value.value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value
