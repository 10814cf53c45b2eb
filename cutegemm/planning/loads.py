# SPDX-License-Identifier: Apache-2.0
"""How A and B reach shared memory: by TMA, gathered, or copied first into workspace that TMA can address."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cutegemm.arch.limits import Limits
from cutegemm.config import OperandConfig, RelayoutConfig
from cutegemm.errors import PlanError, field_error
from cutegemm.planning.model import cheaper_load
from cutegemm.planning.operands import L2_LINE, WORKSPACE_ALIGN, gated_half, major
from cutegemm.planning.request import Request
from cutegemm.planning.steps import Relayout
from cutegemm.problems import Operand, Problem, round_up
from cutegemm.spec import AUTO

# axes of (rows, columns)
AXES = {"a": ("m", "k"), "b": ("k", "n")}


@dataclass(frozen=True, kw_only=True)
class Loads:
    """How A and B arrive.

    Attributes:
        chosen: of a and of b: "tma", "gather" or "relayout".
        problem: as asked, with the operand of a gated pair as the half that makes gates.
        steps: the copies' launches; workspace_bytes: what they fill.
        views: a and b as the GEMM kernel sees them.
        pair: the operand that holds a gated pair; gate: elements from one half's first to the other's in its view.
    """

    chosen: tuple[str, str]
    problem: Problem
    steps: tuple[Relayout, ...]
    workspace_bytes: int
    views: tuple[Operand, Operand]
    pair: str | None
    gate: int | None

    @property
    def gathers(self) -> bool:
        """Whether the producer's threads load an operand."""
        return "gather" in self.chosen

    @property
    def operands(self) -> tuple[OperandConfig, OperandConfig]:
        """A and B as a kernel's config names them."""
        a, b = (
            OperandConfig(
                role=role,
                dtype=view.dtype,
                major=major(view, *axes),
                load="gather" if load == "gather" else "tma",
                halves=2 if role == self.pair else 1,
            )
            for (role, axes), view, load in zip(AXES.items(), self.views, self.chosen, strict=True)
        )
        return a, b

    @property
    def copies(self) -> dict[str, int]:
        """Where each copied operand lies in the workspace, bytes; of a gated pair its first half."""
        return {x.operand: x.offset for x in reversed(self.steps)}


def loads_of(asked: Request, reasons: list[str]) -> Loads:
    """The given loads where they can be, else the cheapest that can.

    Raises:
        PlanError: TMA cannot address an operand that the spec wants it to load.
    """
    problem, gate = gated_half(asked.problem, asked.epilogue, asked.device.limits)
    chosen = (_load(asked, problem, "a", reasons), _load(asked, problem, "b", reasons))
    return _with_copies(asked, problem, chosen, gate)


def relaid(asked: Request, loads: Loads) -> Loads:
    """The same loads with a copy wherever gathering was the planner's choice."""
    given = (asked.spec.a_load, asked.spec.b_load)
    first, second = (
        "relayout" if load == "gather" and wish == AUTO else load
        for load, wish in zip(loads.chosen, given, strict=True)
    )
    if (first, second) == loads.chosen:
        return loads
    problem, gate = gated_half(asked.problem, asked.epilogue, asked.device.limits)
    return _with_copies(asked, problem, (first, second), gate)


def _load(asked: Request, problem: Problem, name: str, reasons: list[str]) -> str:
    spec, operand = asked.spec, getattr(problem, name)
    given: str = getattr(spec, f"{name}_load")
    why_not = operand.tma_reason()
    if given == "tma" and why_not:
        rule = f"TMA cannot address {name.upper()}: {why_not}"
        raise field_error(PlanError, f"{name}_load", given, rule, "relayout")
    if given != AUTO:
        return given
    if why_not is None:
        return "tma"
    chosen = cheaper_load(problem, name, asked.device)
    if spec.schedule == "multistage" or spec.cluster not in (AUTO, (1, 1)):
        # neither leaves room for a gathering producer
        chosen = "relayout"
    how = {"relayout": "copied into aligned workspace first", "gather": "gathered by the producer's threads"}
    reasons.append(f"{name.upper()} is {how[chosen]}: {why_not}")
    return chosen


def _with_copies(asked: Request, problem: Problem, chosen: tuple[str, str], gate: int | None) -> Loads:
    """The loads with the launches that copy, the workspace that these fill, and what the GEMM kernel sees."""
    limits, pair = asked.device.limits, {None: None, "m": "a", "n": "b"}[asked.epilogue.gated_axis]
    steps: list[Relayout] = []
    offset, views = 0, {"a": problem.a, "b": problem.b}
    for name, load in zip(views, chosen, strict=True):
        if load != "relayout":
            continue
        source = views[name]
        unit = "col" if source.unit_col else "row" if source.unit_row else "none"
        target, size = _aligned_copy(source, unit, limits)
        views[name] = target
        halves = (0,) if name != pair or gate is None else (0, gate)
        for half in halves:
            steps.append(
                Relayout(
                    config=RelayoutConfig(dtype=source.dtype, unit=unit),
                    operand=name,
                    source=source,
                    target=target,
                    source_offset=half * source.dtype.bytes,
                    offset=offset,
                )
            )
            offset += round_up(size, WORKSPACE_ALIGN)
        if len(halves) == 2:
            gate = round_up(size, WORKSPACE_ALIGN) // source.dtype.bytes
    return Loads(
        chosen=chosen,
        problem=problem,
        steps=tuple(steps),
        workspace_bytes=offset,
        views=(views["a"], views["b"]),
        pair=pair,
        gate=gate,
    )


def _aligned_copy(source: Operand, unit: str, limits: Limits) -> tuple[Operand, int]:
    """A matrix like `source` that TMA can address, contiguous along the same axis, and its bytes.

    Lines begin at whole L2 lines: a box row of 128 bytes that straddles two costs L2 two accesses.
    """
    step = L2_LINE // source.dtype.bytes
    if unit == "row":
        leading = round_up(source.rows, step)
        strides, size = (1, leading), leading * source.cols
    else:
        leading = round_up(source.cols, step)
        strides, size = (leading, 1), leading * source.rows
    target = dataclasses.replace(source, strides=(*strides, size), align=limits.tma_align)
    return target, size * source.batch * source.dtype.bytes
