# SPDX-License-Identifier: Apache-2.0
"""A kernel on the emulator: what it found, what each role did, what a profiler would count."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutegemm.errors import InputError, field_error

if TYPE_CHECKING:
    from cutegemm.cli.given import Asked
    from cutegemm.emulator import Result
    from cutegemm.problems import Problem

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
    """A run on the emulator.

    Attributes:
        what: that ran.
        launches: in it.
        error: relative, of D against fp64; None of a kernel from outside.
        findings: races and what else is wrong, a line each.
        untested: what the run did not exercise.
        counters: as a profiler would count.
        roles: of each launch.
        printed: by the kernels' printf.
    """

    what: str
    launches: int
    error: float | None
    findings: list[str]
    untested: list[str]
    counters: dict[str, float]
    roles: list[RoleOf]
    printed: str


def emulate_problem(asked: Asked, races: bool = True, policy: str = "eager") -> Emulated:
    """Run what `build` takes for a problem on drawn operands, and compare D with fp64 where the epilogue is plain.

    Raises:
        InputError: the problem is too large for minutes of emulation, or the policy is unknown.
    """
    from cutegemm.cli.facts.code import planned
    from cutegemm.gemm import Gemm

    of = asked.problem
    if of.flops > MOST_FLOPS:
        rule = f"the emulator takes minutes beyond {MOST_FLOPS:,} FLOP; take fewer tiles"
        raise field_error(InputError, "M N K", (of.m, of.n, of.k), rule, (256, 256, 256))
    plan = planned(asked)
    assert plan.config is not None
    words = f"{of.m} x {of.n} x {of.k} {of.a.dtype.value}, {plan.config.family}"
    return _run(Gemm(asked.spec, of), of, words, options(races, policy))


def emulate_artefact(path: Path, races: bool = True, policy: str = "eager") -> Emulated:
    """Run the first problem of an artefact that the emulator runs in seconds; nothing is planned or compiled.

    Raises:
        InputError: the file is not an artefact, or all its problems are too large.
    """
    from cutegemm.gemm.loaded import load

    loaded = load(path)
    of = next((x for x in loaded.problems if 0 < x.flops <= MOST_FLOPS), None)
    if of is None:
        rule = f"none of its {len(loaded.problems)} problems has at most {MOST_FLOPS:,} FLOP"
        raise field_error(InputError, "FILE", str(path), rule)
    words = f"{path.name}: {of.m} x {of.n} x {of.k} {of.a.dtype.value}"
    return _run(loaded, of, words, options(races, policy))


def _run(runs: Any, of: Problem, what: str, watched: Any) -> Emulated:
    """Run one problem of a `Gemm` or an artefact on drawn operands."""
    import torch

    from cutegemm import emulator
    from cutegemm.epilogue.graph import Graph, linear_combination
    from cutegemm.tuning.operands import operands

    plain = not isinstance(runs.spec.epilogue, Graph)
    graph = linear_combination(of.c is not None) if plain else runs.spec.epilogue
    drawn = operands(of, graph, "cpu")
    named = dict(zip(drawn.order.names, drawn.given, strict=True))
    numbers = dict(zip(drawn.order.numbers, drawn.numbers, strict=True))
    outs = {x.name for x in graph.outputs}
    given = {x: y for x, y in named.items() if x not in outs and x not in ("a", "b")} | numbers
    run = emulator.run(runs, named["a"], named["b"], options=watched, **given)
    error = None
    if plain and isinstance(run.d, torch.Tensor):
        wanted = numbers["alpha"] * (named["a"].double() @ named["b"].double())
        if "c" in named:
            wanted += numbers["beta"] * named["c"].double()
        # of a sum over an empty K D is exactly zero
        error = float((run.d.double() - wanted).norm() / (wanted.norm() or 1))
    return _told(what, run, error)


def options(races: bool, policy: str) -> Any:
    """What the emulator watches."""
    from cutegemm.emulator import Options

    if policy not in POLICIES:
        raise field_error(InputError, "--policy", policy, f"must be one of {', '.join(POLICIES)}", "eager")
    return Options(races=races, meter=True, policy=policy)


_ARRAY = re.compile(r"([a-z]+\d+)(?::|\[)(\d+(?:x\d+)*)\]?")
_TYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "uint16",
    **{f"{kind}{bits}": f"{name}int{bits}" for bits in (8, 16, 32, 64) for kind, name in (("s", ""), ("u", "u"))},
}  # fmt: skip


def argument(text: str, seed: int = 0) -> Any:
    """An argument of a kernel: a number, or `TYPE:EXTENTS` for an array such as f16:128x64.

    Raises:
        InputError: it is neither.
    """
    import numpy as np

    found = _ARRAY.fullmatch(text)
    if found is not None and found[1] in _TYPES:
        shape, dtype = tuple(map(int, found[2].split("x"))), np.dtype(_TYPES[found[1]])
        draw = np.random.default_rng(seed)
        if dtype.kind == "f":
            return draw.standard_normal(shape).astype(dtype)
        if found[1] == "bf16":
            return (draw.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16).astype(dtype)
        return draw.integers(0, 100, shape).astype(dtype)
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError as error:
        rule = f"must be a number or TYPE:EXTENTS, TYPE one of {', '.join(_TYPES)}"
        raise field_error(InputError, "--arg", text, rule, "f16:128x64") from error


def emulate_file(
    path: Path, grid: str, block: str, arguments: list[str], *, cluster: str = "1", races: bool = True,
    policy: str = "eager",
) -> Emulated:  # fmt: skip
    """Run a kernel of a PTX file on drawn arrays.

    Raises:
        GemmError: the file cannot be read, or the emulator refuses the launch.
    """
    from cutegemm.emulator import run_ptx

    result = run_ptx(
        path.read_text("utf-8", errors="replace"),
        grid=_extents("--grid", grid),
        block=_extents("--block", block),
        cluster=_extents("--cluster", cluster),
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
    found = Emulated(
        what, len(run.reports), error, [str(x) for x in run.findings], untested, {}, roles, run.printed
    )
    return replace(found, counters={name: value for name, value in run.counters.items()})


__all__ = [
    "POLICIES",
    "Emulated",
    "argument",
    "emulate_artefact",
    "emulate_file",
    "emulate_problem",
    "options",
]
