# SPDX-License-Identifier: Apache-2.0
"""The launches of a run, recorded from its real host code on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cutegemm import checks
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.loader import RecordedLaunch
from cutegemm.config.numbers import round_up
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import InputError, field_error
from cutegemm.launch_layout import COUNTERS
from cutegemm.plans.kernel_plan import KernelPlan, launch_arguments
from cutegemm.plans.workspace import WORKSPACE_ALIGN
from cutegemm.running.arguments.named import passed

MAX_ADDRESS = (1 << 63) - 1
# distance between invented addresses, bytes
_APART = 1 << 20


def recorded(
    plan: KernelPlan,
    addresses: Mapping[str, int] | None,
    workspace: int,
    numbers: Mapping[str, float],
) -> list[RecordedLaunch]:
    """Every launch of a plan with its parameters (`Gemm.launches`).

    Raises:
        InputError: an argument has another type, or names something that the launch does not take.
        CompileError: a kernel does not compile.
    """
    if plan.config is None:
        return []
    graph = plan.config.epilogue
    outputs = (x.name for x in graph.outputs)
    names = ("a", "b", *graph.tensors, *outputs, *plan.problem.device_scalars)
    every = {name: (i + 1) * _APART for i, name in enumerate(names)}
    every |= _checked_addresses(names, addresses)
    workspace = checks.integer(InputError, "workspace", workspace, 0, MAX_ADDRESS)
    every[COUNTERS] = workspace + counters_offset(plan)
    values = _checked_numbers(graph, numbers)
    found = []
    for config, args in launch_arguments(plan, every, workspace, values, 0):
        found += kernel_cache.launches(config, args)
    return found


def counters_offset(plan: KernelPlan) -> int:
    """Offset in bytes of a recorded run's counters from its workspace."""
    return int(round_up(plan.workspace_bytes, WORKSPACE_ALIGN))


def _checked_addresses(names: Sequence[str], value: object) -> dict[str, int]:
    """Check a caller's addresses by name, and return them as a dict.

    Raises:
        InputError: they are not a mapping from some of the names to addresses.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise field_error(InputError, "addresses", value, "must be a mapping from names to addresses")
    for name in value:
        if not checks.among(name, names):
            raise field_error(InputError, "addresses", name, f"must name one of {', '.join(names)}")
    return {
        name: checks.integer(InputError, f"addresses.{name}", place, 0, MAX_ADDRESS)
        for name, place in value.items()
    }


def _checked_numbers(graph: Graph, given: Mapping[str, float]) -> dict[str, float]:
    """The epilogue's numbers by name: those that a caller gave, and 1 for the others.

    Raises:
        InputError: a name is unknown, or a value is not a number.
    """
    values: dict[str, float] = dict.fromkeys(graph.numbers, 1)
    for name, value in given.items():
        if name not in values:
            rule = f"the epilogue's numbers are {', '.join(values) or 'none'}"
            raise field_error(InputError, name, value, rule)
        values[name] = passed(graph.numbers[name], name, value)
    return values


__all__ = ["counters_offset", "recorded"]
