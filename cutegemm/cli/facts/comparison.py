# SPDX-License-Identifier: Apache-2.0
"""Contenders timed on the GPU in interleaved rounds, with a significance test; and tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from cutegemm.cli.inputs import Case
    from cutegemm.running.kind import Prepared
    from cutegemm.tuning.gpu import Bench
    from cutegemm.tuning.random_operands import Operands

OURS, TORCH = "cutegemm", "torch"
SETS = 4


@dataclass(frozen=True)
class Timed:
    """One contender: microseconds per call, the spread of its rounds, TFLOP/s, and speedup over the last contender."""

    name: str
    us: float
    spread: float
    tflops: float
    factor: float


@dataclass(frozen=True)
class Comparison:
    """A comparison on one GPU."""

    problem: str
    gpu: str
    versions: str  # of the DSL and CUDA
    rows: list[Timed]  # the contenders; the others are compared with the last one
    verdict: str  # which one is significantly faster, "no difference", or why there is only one


def compared(
    cases: Mapping[str, Case], bench: Bench | None = None, regime: Any = None, against_torch: bool = True
) -> Comparison:
    """Time specs of one problem, and torch's function if the epilogue is plain and it has a GEMM of these types.

    Args:
        cases: by name.
        bench: runs them; None is the current GPU.
        regime: lengths of the race; None is sustained.

    Raises:
        HardwareError: there is no Hopper GPU.
        InputError: D is empty.
    """
    from cutegemm.cli.facts.machine_code import planned
    from cutegemm.errors import HardwareError
    from cutegemm.plans.plan_text import shape_text
    from cutegemm.running.backends.launcher import current_device
    from cutegemm.tuning.gpu import GpuBench
    from cutegemm.tuning.race import Regime, race, wins
    from cutegemm.tuning.timing import Sampler

    planned(next(iter(cases.values())))  # for its errors
    if bench is None and current_device()[0] is None:
        raise HardwareError("times are taken on a Hopper GPU (compute capability 9.0), and there is none")
    machine, regime = bench or GpuBench(), regime or Regime()
    first = next(iter(cases.values()))
    of, flops = first.problem, first.flops
    works: dict[str, Callable[[], None]] = {}
    for name, x in cases.items():
        made = _of_groups(x, machine) if x.form else _dense(x, machine)
        works[name] = machine.one_pass(*made)
    fused = any(x.spec.given().get("epilogue") for x in cases.values())
    calls = [] if fused or not against_torch else torch_calls(first, machine.memory)
    if calls:
        works[TORCH] = partial(_all, calls)
    sample = regime.sample_of(flops)
    samplers = [Sampler(name, work, SETS, machine, sample) for name, work in works.items()]
    last = samplers[-1].name
    times = race(samplers, machine, regime, stays=last)
    base = times[last].median
    rows = [
        Timed(name, x.median, x.spread, flops / x.median / 1e6, base / x.median) for name, x in times.items()
    ]
    pairs = ((rows[0].name, last), (last, rows[0].name)) if len(rows) > 1 else ()
    faster = next((x for x, y in pairs if wins(times[x], times[y])), None)
    verdict = "no difference" if faster is None else f"{faster} is faster"
    function = "torch.nn.functional.grouped_mm" if first.form else "torch.matmul"
    verdict = verdict if len(rows) > 1 else f"{function} does not compute this problem"
    shape = shape_text(of, first.form)
    return Comparison(f"{shape}; {of.types}", machine.record.name, machine.versions(), rows, verdict)


def _dense(case: Case, machine: Bench) -> tuple[Prepared, list[Operands]]:
    """`build`'s call of a problem, and operands of several calls."""
    from cutegemm.database.choice import choose
    from cutegemm.running.run import prepare
    from cutegemm.tuning.random_operands import operands

    def plan(spec: Any, problem: Any, _: Any) -> Any:
        return choose(spec, problem, machine.record).plan

    graph = plan(case.spec, case.problem, None).config.epilogue
    sets = [operands(case.problem, graph, machine.memory, seed) for seed in range(SETS)]
    return prepare(case.spec, graph, sets[0].order, sets[0].given, machine.backend, planner=plan), sets


def _of_groups(case: Case, machine: Bench) -> tuple[Prepared, list[Operands]]:
    """`grouped_mm`'s call of a problem, and operands of several calls; the sizes of groups are random."""
    from cutegemm.cli.facts.chosen import epilogue_of
    from cutegemm.running.grouped_mm import GroupedGemm
    from cutegemm.running.groups import Groups
    from cutegemm.spec import AUTO
    from cutegemm.tuning.random_operands import operands

    graph = epilogue_of(case.spec)
    gemm = GroupedGemm(replace(case.spec, epilogue=AUTO), graph)
    found, sets = [], []
    for seed, ends in enumerate(_ends(case, machine.memory)):
        x = operands(case.problem, graph, machine.memory, seed, case.form)
        named = x.order.named(x.given)
        numbers = {
            name: int(value) if graph.numbers[name] == "integer" else value
            for name, value in zip(x.order.numbers, x.numbers, strict=True)
        }
        inputs = {name: named[name] for name in x.order.inputs} | numbers
        outs = {name: named[name] for name in x.order.outs}
        prepared, given, _, values = gemm.prepared(
            named["a"], named["b"], Groups(offs=ends), inputs, outs, machine.backend
        )
        found.append(prepared)
        sets.append(replace(x, order=prepared.kind.order, given=given, numbers=values))
    return found[0], sets


def _ends(case: Case, memory: str) -> list[Tensor]:
    """The ends of groups of each set of operands."""
    from cutegemm.request.group_forms import FORMS
    from cutegemm.tuning.random_operands import group_ends

    extent = getattr(case.problem, FORMS[case.form].axis)
    return [group_ends(extent, case.problem.batch, memory, seed) for seed in range(SETS)]


def torch_calls(case: Case, memory: str) -> list[Callable[[], Tensor]]:
    """torch's function on operands of several calls; none if it has no GEMM of them on a GPU."""
    import torch

    from cutegemm.dtypes import DType
    from cutegemm.epilogue.graph import linear_combination
    from cutegemm.tuning.random_operands import operands

    of, plain = case.problem, linear_combination(False)
    # without a kernel for other types torch multiplies group by group, and waits for their ends
    if of.a.dtype.bits == 8 or (case.form and {of.a.dtype, of.b.dtype} != {DType.BF16}):
        return []
    sets = [operands(of, plain, memory, seed, case.form) for seed in range(SETS)]
    pairs = [(named["a"], named["b"]) for named in (x.order.named(x.given) for x in sets)]
    if not case.form:
        return [partial(torch.matmul, a, b, out=torch.matmul(a, b)) for a, b in pairs]
    grouped = torch.nn.functional.grouped_mm
    calls: list[Callable[[], Tensor]] = [
        partial(grouped, a, b, offs=ends) for (a, b), ends in zip(pairs, _ends(case, memory))
    ]
    try:
        _all(calls)
    except (RuntimeError, ValueError):
        # rows that are not aligned to 16 bytes
        return []
    return calls


def _all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()


@dataclass(frozen=True)
class OutcomeOf:
    """One problem: its status, microseconds and those of the model's choice (None if unknown), and its text."""

    status: str
    us: float | None
    model_us: float | None
    fields: dict[str, object]
    text: str


@dataclass(frozen=True)
class Tuned:
    """All problems, and whether tuning ended early."""

    outcomes: list[OutcomeOf]
    interrupted: bool


def tuned(case: Case, **options: Any) -> Tuned:
    """The result of `cutegemm.tune`."""
    from cutegemm.tuning import tune

    report = tune(case.spec, [case.problem], **options)
    entries = [
        (x.entry.us, x.entry.model_us, dict(x.entry.fields)) if x.entry else (None, None, {})
        for x in report.outcomes
    ]
    outcomes = [
        OutcomeOf(x.status, *entry, str(x)) for x, entry in zip(report.outcomes, entries, strict=True)
    ]
    return Tuned(outcomes, report.interrupted)
