# SPDX-License-Identifier: Apache-2.0
"""A kernel on the emulator: what it found, what each role did, what a profiler would count."""

from __future__ import annotations

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
from cutegemm.launch_layout import COUNTERS
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.problems import Problem
from cutegemm.running.backends import emulator_steps
from cutegemm.spec import GemmSpec

if TYPE_CHECKING:
    from cutegemm.cli.given import Asked
    from cutegemm.emulator import Result

POLICIES = ("eager", "lazy", "random")
# FLOP that an emulation of some seconds has
MOST_FLOPS = 2 * 512**3


@dataclass(frozen=True)
class RoleOf:
    """Warps that do the same kind of work: warp instructions, and waits by kind with those that found a warp early."""

    launch: int
    name: str
    warps: list[int]
    instructions: int
    waits: dict[str, int]
    blocked: dict[str, int]


@dataclass(frozen=True)
class Emulated:
    """A run on the emulator."""

    what: str  # that ran
    launches: int  # in it
    error: float | None  # relative, of D against fp64; None of a kernel from outside
    findings: list[str]  # races and what else is wrong, a line each
    untested: list[str]  # what the run did not exercise
    counters: dict[str, float]  # as a profiler would count
    roles: list[RoleOf]  # for each launch
    printed: str  # by the kernels' printf


def emulate_problem(asked: Asked, races: bool = True, policy: str = "eager") -> Emulated:
    """Run what `build` takes for a problem on drawn operands, and compare D with fp64 where the epilogue is plain.

    Raises:
        InputError: the problem is too large for minutes of emulation, or the policy is unknown.
    """
    from cutegemm.cli.facts.machine_code import planned

    of = asked.problem
    if of.flops > MOST_FLOPS:
        rule = f"the emulator takes minutes beyond {MOST_FLOPS:,} FLOP; take fewer tiles"
        raise field_error(InputError, "M N K", (of.m, of.n, of.k), rule, (256, 256, 256))
    plan = planned(asked)
    assert plan.config is not None
    words = f"{of.shape} {of.a.dtype.value}, {plan.config.family}"
    return _run(plan, partial(emulator_steps.of_plan, plan), asked.spec, words, options(races, policy))


def emulate_artefact(path: Path, races: bool = True, policy: str = "eager") -> Emulated:
    """Run the first problem of an artefact that the emulator runs in seconds; nothing is planned or compiled.

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
    words = f"{path.name}: {of.shape} {of.a.dtype.value}"
    launches = partial(emulator_steps.of_recipe, recipe, artefact.kernels)
    return _run(recipe, launches, artefact.spec, words, options(races, policy))


class _Call:
    """One call on drawn arrays, as `emulator.run` takes what it runs: with a `run`, and without torch."""

    def __init__(self, plan: KernelPlan | Recipe, launches: Callable[..., list[Step]], given: Arrays) -> None:
        self.plan, self.launches, self.given = plan, launches, given

    def run(self, backend: str) -> None:
        """Run the launches."""
        workspace, counters = memory(self.plan.workspace_bytes), memory(self.plan.counter_bytes)
        places = {**self.given.addresses, COUNTERS: counters.ctypes.data}
        named = {name.upper() if name in "abcd" else name: x for name, x in self.given.named.items()}
        named |= {"workspace": workspace, "counters": counters}
        made = self.launches(places, workspace.ctypes.data, self.given.numbers)
        outputs = [
            output(self.given.named[x.name], *emulator_steps.shown(self.plan, x.name))
            for x in self.given.graph.stores
        ]
        run_steps(made, [tensor_buffer(x, name) for name, x in named.items()], outputs=outputs)
        if counters.any():
            raise EmulatorError("a run must leave its counters zero, and this one did not")


def _run(
    plan: KernelPlan | Recipe,
    launches: Callable[..., list[Step]],
    spec: GemmSpec,
    what: str,
    watched: Options,
) -> Emulated:
    """Run the launches of one problem on drawn arrays."""
    of = plan.problem
    plain = not isinstance(spec.epilogue, Graph)
    graph = spec.epilogue if isinstance(spec.epilogue, Graph) else linear_combination(of.c is not None)
    given = arrays(of, graph, plan.parts)
    run = emulator.run(_Call(plan, launches, given), options=watched)
    return _told(what, run, _error(given, of) if plain else None)


def _error(given: Arrays, of: Problem) -> float:
    """Relative error of D = alpha A B + beta C against fp64."""
    known = {"a": of.a, "b": of.b, **dict(of.inputs), **dict(of.outputs)}
    values = {name: numbers_of(given.named[name], x.dtype) for name, x in known.items()}
    wanted = given.numbers["alpha"] * (values["a"] @ values["b"])
    if "c" in values:
        wanted = wanted + given.numbers["beta"] * values["c"]
    # with K = 0, D is exactly zero
    return float(np.linalg.norm(values["d"] - wanted) / (np.linalg.norm(wanted) or 1))


def options(races: bool, policy: str) -> Options:
    """What the emulator watches."""
    return Options(races=races, meter=True, policy=choice(InputError, "--policy", policy, POLICIES))


def emulate_file(
    path: Path, shape: Mapping[str, str], arguments: list[str], races: bool = True, policy: str = "eager"
) -> Emulated:
    """Run a kernel of a PTX file on drawn arrays; `shape` has its grid, block and cluster.

    Raises:
        GemmError: the file cannot be read, or the emulator refuses the launch.
    """
    extents: dict[str, Any] = {name: _extents(f"--{name}", text) for name, text in shape.items()}
    result = run_ptx(
        path.read_text("utf-8", errors="replace"),
        **extents,
        args=[argument(x, i) for i, x in enumerate(arguments)],
        options=options(races, policy),
    )
    return _told(path.name, result, None)


def _extents(field: str, text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if not 1 <= len(parts) <= 3 or not all(x.isdecimal() and int(x) for x in parts):
        raise field_error(InputError, field, text, "must be X, XxY or XxYxZ", "1")
    return tuple(map(int, parts))


def _told(what: str, run: Result, error: float | None) -> Emulated:
    roles = [
        RoleOf(i, x.name, list(x.warps), x.total, dict(x.waits), dict(x.blocked))
        for i, report in enumerate(run.reports)
        for x in report.roles
    ]
    untested = [] if run.coverage is None else str(run.coverage).splitlines()
    findings = [str(x) for x in run.findings]
    return Emulated(what, len(run.reports), error, findings, untested, dict(run.counters), roles, run.printed)
