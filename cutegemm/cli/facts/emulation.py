# SPDX-License-Identifier: Apache-2.0
"""A run on the emulator: findings, the work of each role, and a profiler's counters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm import emulator
from cutegemm.aot.artefact import Recipe
from cutegemm.checks import choice
from cutegemm.cli.facts.emulated_arrays import Arrays, argument, arrays, memory, numbers_of
from cutegemm.emulator import Options, Step, output, run_ptx, run_steps, tensor_buffer
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import EmulatorError, InputError, field_error
from cutegemm.launch_layout import COUNTERS, GROUP_ENDS
from cutegemm.plans.kernel_plan import KernelPlan
from cutegemm.plans.plan_text import shape_text
from cutegemm.problems import Problem
from cutegemm.request.group_forms import FORMS
from cutegemm.running.backends import emulator_steps
from cutegemm.spec import GemmSpec

if TYPE_CHECKING:
    from cutegemm.cli.inputs import Case
    from cutegemm.emulator import Result

POLICIES = ("eager", "lazy", "random")
# most FLOP, which the emulator runs in seconds
MOST_FLOPS = 2 * 512**3


@dataclass(frozen=True)
class RoleOf:
    """Warps that do the same kind of work."""

    launch: int
    name: str
    warps: list[int]
    instructions: int  # warp instructions
    waits: dict[str, int]  # by kind
    blocked: dict[str, int]  # waits by kind that blocked


@dataclass(frozen=True)
class EmulatedRun:
    """A run on the emulator."""

    what: str  # that ran
    launches: int
    error: float | None  # of D against fp64, relative; None for a kernel from a file
    findings: list[str]  # races and other errors, a line each
    untested: list[str]  # what the run did not exercise
    counters: dict[str, float]  # of a profiler
    roles: list[RoleOf]  # of each launch
    printed: str  # by the kernels' printf


def emulate_problem(case: Case, races: bool = True, policy: str = "eager") -> EmulatedRun:
    """Run `build`'s plan of a problem on random operands, and compare D with fp64 if the epilogue is plain.

    Raises:
        InputError: the problem is too large, or the policy is unknown.
    """
    from cutegemm.cli.facts.machine_code import planned

    of = case.problem
    if case.flops > MOST_FLOPS:
        rule = f"the emulator needs minutes beyond {MOST_FLOPS:,} FLOP; use fewer tiles"
        raise field_error(InputError, "M N K", (of.m, of.n, of.k), rule, (256, 256, 256))
    plan = planned(case)
    assert plan.config is not None
    words = f"{shape_text(of, case.form)}{';' if case.form else ''} {of.types}, {plan.config.family}"
    launches = partial(emulator_steps.of_plan, plan)
    return _run(plan, launches, case.spec, words, options(races, policy), case.form)


def emulate_artefact(path: Path, races: bool = True, policy: str = "eager") -> EmulatedRun:
    """Run the first small problem of an artefact; nothing is planned or compiled.

    Raises:
        InputError: the file is not an artefact, or all its problems are too large.
    """
    from cutegemm.aot.artefact import checked_path, read

    artefact = read(checked_path(path))
    recipe = next((x for x in artefact.recipes if 0 < x.problem.flops <= MOST_FLOPS), None)
    if recipe is None:
        rule = f"none of its {len(artefact.recipes)} problems has at most {MOST_FLOPS:,} FLOP"
        raise field_error(InputError, "FILE", str(path), rule)
    of = recipe.problem
    words = f"{path.name}: {of.shape} {of.types}"
    launches = partial(emulator_steps.of_recipe, recipe, artefact.kernels)
    return _run(recipe, launches, artefact.spec, words, options(races, policy))


class _Call:
    """One call on random arrays, for `emulator.run`, which calls its `run`; needs no torch."""

    def __init__(self, plan: KernelPlan | Recipe, launches: Callable[..., list[Step]], data: Arrays) -> None:
        self.plan, self.launches, self.data = plan, launches, data

    def run(self, backend: str) -> None:
        """Run the launches."""
        workspace, counters = memory(self.plan.workspace_bytes), memory(self.plan.counter_bytes)
        addresses = {**self.data.addresses, COUNTERS: counters.ctypes.data}
        named = {name.upper() if name in "abcd" else name: x for name, x in self.data.named.items()}
        named |= {"workspace": workspace, "counters": counters}
        steps = self.launches(addresses, workspace.ctypes.data, self.data.numbers)
        outputs = [
            output(self.data.named[x.name], *emulator_steps.shown(self.plan, x.name))
            for x in self.data.graph.stores
        ]
        run_steps(steps, [tensor_buffer(x, name) for name, x in named.items()], outputs=outputs)
        if counters.any():
            raise EmulatorError("a run must reset its counters to zero, and this one did not")


def _run(
    plan: KernelPlan | Recipe,
    launches: Callable[..., list[Step]],
    spec: GemmSpec,
    what: str,
    watched: Options,
    form: str = "",
) -> EmulatedRun:
    """Run the launches of one problem on random arrays; with groups also of random sizes."""
    of = plan.problem
    plain = not isinstance(spec.epilogue, Graph)
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(of.c is not None)
    data = arrays(of, graph, plan.parts)
    if form:
        data.named[GROUP_ENDS] = _ends(of, form)
    run = emulator.run(_Call(plan, launches, data), options=watched)
    return _as_data(what, run, _error(data, of, form) if plain else None)


def _ends(of: Problem, form: str) -> Any:
    """Ends of random groups, which leave some rows, columns or k at the end to no group."""
    extent = getattr(of, FORMS[form].axis)
    return np.sort(np.random.default_rng(0).integers(0, extent + 1, of.batch)).astype(np.int32)


def _by_groups(a: Any, b: Any, ends: Any, like: Any, form: str) -> Any:
    """A B of each group; rows and columns of no group are zero."""
    found, axis = np.zeros_like(like), FORMS[form].axis
    for group, (start, end) in enumerate(itertools.pairwise([0, *ends])):
        part = slice(start, end)
        if axis == "m":
            found[0, part] = a[0, part] @ b[group]
        elif axis == "n":
            found[0, :, part] = a[group] @ b[0, :, part]
        else:
            found[group] = a[0, :, part] @ b[0, part]
    return found


def _error(data: Arrays, of: Problem, form: str = "") -> float:
    """Relative error of D = alpha A B + beta C against fp64."""
    operands = {"a": of.a, "b": of.b, **dict(of.inputs), **dict(of.outputs)}
    values = {name: numbers_of(data.named[name], x.dtype) for name, x in operands.items()}
    a, b, d = (values[name] for name in ("a", "b", "d"))
    wanted = data.numbers["alpha"] * (_by_groups(a, b, data.named[GROUP_ENDS], d, form) if form else a @ b)
    if "c" in values:
        wanted = wanted + data.numbers["beta"] * values["c"]
    # with K = 0, D is exactly zero
    return float(np.linalg.norm(values["d"] - wanted) / (np.linalg.norm(wanted) or 1))


def options(races: bool, policy: str) -> Options:
    """The emulator's options."""
    return Options(races=races, meter=True, policy=choice(InputError, "--policy", policy, POLICIES))


def emulate_file(
    path: Path,
    shape: Mapping[str, str],
    arguments: list[str],
    races: bool = True,
    policy: str = "eager",
    *,
    entry: str | None = None,
) -> EmulatedRun:
    """Run a kernel of a PTX file on random arrays; `shape` has its grid, block and cluster, `entry` its name.

    Raises:
        GemmError: the emulator refuses the launch.
    """
    extents: dict[str, Any] = {name: _extents(f"--{name}", text) for name, text in shape.items()}
    result = run_ptx(
        path.read_text("utf-8", errors="replace"),
        **extents,
        args=[argument(x, i) for i, x in enumerate(arguments)],
        entry=entry,
        options=options(races, policy),
    )
    return _as_data(path.name, result, None)


def _extents(field: str, text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not 1 <= len(parts) <= 3 or not all(x.isdecimal() and int(x) for x in parts):
        raise field_error(InputError, field, text, "must be X, XxY or XxYxZ", "1")
    return tuple(map(int, parts))


def _as_data(what: str, run: Result, error: float | None) -> EmulatedRun:
    roles = [
        RoleOf(i, x.name, list(x.warps), x.total, dict(x.waits), dict(x.blocked))
        for i, report in enumerate(run.reports)
        for x in report.roles
    ]
    untested = [] if run.coverage is None else str(run.coverage).splitlines()
    findings = [str(x) for x in run.findings]
    return EmulatedRun(
        what, len(run.reports), error, findings, untested, dict(run.counters), roles, run.printed
    )
