# SPDX-License-Identifier: Apache-2.0
"""Contenders timed on the GPU in interleaved rounds, with a significance test; and tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutegemm.cli.inputs import Case
    from cutegemm.tuning.gpu import Bench

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
    """Time specs of one problem, and torch.matmul if the epilogue is plain and it has a GEMM of these types.

    Args:
        cases: by name.
        bench: runs them; None is the current GPU.
        regime: lengths of the race; None is sustained.

    Raises:
        HardwareError: there is no Hopper GPU.
        InputError: D is empty.
    """
    from cutegemm.cli.facts.machine_code import planned
    from cutegemm.database.choice import choose
    from cutegemm.errors import HardwareError
    from cutegemm.running.backends.launcher import current_device
    from cutegemm.running.run import prepare
    from cutegemm.tuning.gpu import GpuBench
    from cutegemm.tuning.race import Regime, race, wins
    from cutegemm.tuning.random_operands import operands
    from cutegemm.tuning.timing import Sampler

    planned(next(iter(cases.values())))  # for its errors
    if bench is None and current_device()[0] is None:
        raise HardwareError("times are taken on a Hopper GPU (compute capability 9.0), and there is none")
    machine, regime = bench or GpuBench(), regime or Regime()
    of = next(iter(cases.values())).problem

    def chosen(spec: Any, problem: Any, _: Any) -> Any:
        return choose(spec, problem, machine.record).plan

    works: dict[str, Callable[[], None]] = {}
    for name, x in cases.items():
        graph = chosen(x.spec, of, None).config.epilogue
        sets = [operands(of, graph, machine.memory, seed) for seed in range(SETS)]
        made = prepare(x.spec, graph, sets[0].order, sets[0].given, machine.backend, planner=chosen)
        works[name] = machine.one_pass(made, sets)
    fused = any(x.spec.given().get("epilogue") for x in cases.values())
    # torch.matmul has no GEMM of 8-bit operands on a GPU
    if against_torch and not fused and of.a.dtype.bits > 8:
        works[TORCH] = _of_torch(of, machine)
    sample = regime.sample_of(of.flops)
    samplers = [Sampler(name, work, SETS, machine, sample) for name, work in works.items()]
    last = samplers[-1].name
    times = race(samplers, machine, regime, stays=last)
    base = times[last].median
    rows = [
        Timed(name, x.median, x.spread, of.flops / x.median / 1e6, base / x.median)
        for name, x in times.items()
    ]
    pairs = ((rows[0].name, last), (last, rows[0].name)) if len(rows) > 1 else ()
    faster = next((x for x, y in pairs if wins(times[x], times[y])), None)
    verdict = "no difference" if faster is None else f"{faster} is faster"
    verdict = verdict if len(rows) > 1 else "torch.matmul does not compute this problem"
    return Comparison(f"{of.shape}; {of.types}", machine.record.name, machine.versions(), rows, verdict)


def _of_torch(of: Any, machine: Bench) -> Callable[[], None]:
    import torch

    from cutegemm.epilogue.graph import linear_combination
    from cutegemm.tuning.random_operands import operands

    sets = [operands(of, linear_combination(False), machine.memory, seed) for seed in range(SETS)]
    named = [dict(zip(x.order.names, x.given, strict=True)) for x in sets]
    outs = [torch.matmul(x["a"], x["b"]) for x in named]

    def work() -> None:
        for x, out in zip(named, outs, strict=True):
            torch.matmul(x["a"], x["b"], out=out)

    return work


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
