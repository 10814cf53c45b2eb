# SPDX-License-Identifier: Apache-2.0
"""Compares two specs of one problem: plan, code, resources, the emulator's counters, and time on a GPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cutegemm.cli.facts import comparison, emulation
from cutegemm.cli.facts.machine_code import CodeChange, compared, planned
from cutegemm.cli.inputs import Case
from cutegemm.compiling import kernel_cache, resources
from cutegemm.errors import HardwareError, MissingPackageError, needing
from cutegemm.plans.plan_text import shape_text

# fields of plans that are shown elsewhere
_LEFT_OUT = {"spec", "chosen_by", "steps", "reasons", "smem", "barriers", "boxes"}


@dataclass(frozen=True)
class Changed:
    """One figure of both specs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Difference:
    """The differences between two specs."""

    problem: str  # of both
    specs: list[str]  # both
    same: bool  # whether they give the same kernel
    plan: list[Changed]  # fields of plan and config that differ
    resources: list[Changed]  # all figures of the compiled kernels
    code: list[CodeChange]  # the DSL's IR with --ir, PTX and SASS, normalized
    counters: list[Changed]  # the emulator's counters that differ
    counters_note: str  # why there are no counters
    time: comparison.Comparison | None  # on the GPU
    time_note: str  # why there is no time


def difference(
    before: Case, after: Case, *, emulate: bool = True, time: bool = True, trace: bool = False
) -> Difference:
    """Compile both, and compare them."""
    plans = planned(before), planned(after)
    configs = [x.config for x in plans]
    # kernels of other launches, such as that of large groups, count for `same` alone
    launched = [[step.config for step in x.steps] for x in plans]
    kernel_cache.ensure([x for x in configs if x is not None])
    made = [kernel_cache.artifact(x) for x in configs if x is not None]
    code = [compared(made[0].ptx, made[1].ptx, "ptx")]
    if resources.nvdisasm() is not None:
        code.append(compared(resources.sass(made[0].cubin), resources.sass(made[1].cubin), "sass"))
    if trace:
        from cutegemm.compiling.ir import ir

        one, two = (ir(x) for x in configs if x is not None)
        code.insert(0, compared(one, two, "ir"))
    counters, note = _counters(before, after) if emulate else ([], "not requested")
    timed, why = _timed(before, after) if time else (None, "not requested")
    of, specs = before.problem, [str(before.spec), str(after.spec)]
    kinds = " and ".join(dict.fromkeys((of.types, after.problem.types)))
    used = [dataclasses.asdict(x.resources) for x in made]
    # opcodes are counted in the code
    figures = [{name: v for name, v in x.items() if name != "instructions"} for x in used]
    return Difference(
        f"{shape_text(of, before.form)}; {kinds}", specs, launched[0] == launched[1], _plan_changes(plans),
        _changes(figures[0], figures[1], every=True), code, counters, note, timed, why,
    )  # fmt: skip


def _plan_changes(plans: tuple[Any, Any]) -> list[Changed]:
    sides = []
    for plan in plans:
        data = {name: value for name, value in plan.to_dict().items() if name not in _LEFT_OUT}
        config = {f"config.{name}": v for name, v in plan.config.to_data().items() if name != "epilogue"}
        config["config.epilogue"] = str(plan.config.epilogue).replace("\n", "; ")
        steps = {"launches": " -> ".join(x.name for x in plan.steps)}
        regions = {f"smem.{x.name}": x.size for x in plan.smem}
        boxes = {f"box.{x.operand}": f"{x.count} x {x.extents}" for x in plan.boxes}
        sides.append(_flat(data | steps | regions | boxes | config))
    return _changes(sides[0], sides[1])


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings, and lists of them, flattened to dotted names."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, (list, tuple)) and value and all(isinstance(x, dict) for x in value):
            value = {str(i): x for i, x in enumerate(value)}
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _changes(before: dict[str, Any], after: dict[str, Any], every: bool = False) -> list[Changed]:
    names = list(dict.fromkeys([*before, *after]))
    pairs = [(x, _words(before.get(x)), _words(after.get(x))) for x in names]
    return [Changed(*x) for x in pairs if every or x[1] != x[2]]


def _words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _counters(before: Case, after: Case) -> tuple[list[Changed], str]:
    if before.flops > emulation.MOST_FLOPS:
        return [], f"emulated up to {emulation.MOST_FLOPS:,} FLOP; give a smaller M N K"
    sides = [emulation.emulate_problem(x, races=False) for x in (before, after)]
    return _changes(sides[0].counters, sides[1].counters), ""


def _timed(before: Case, after: Case) -> tuple[comparison.Comparison | None, str]:
    try:
        with needing():
            return comparison.compared({"first": before, "second": after}, against_torch=False), ""
    except (HardwareError, MissingPackageError) as error:
        return None, str(error)
