# SPDX-License-Identifier: Apache-2.0
"""Contenders timed beside each other on the GPU, in interleaved rounds with a test of a clear win; and tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutegemm.cli.given import Asked
    from cutegemm.tuning.gpu import Bench

OURS, TORCH = "cutegemm", "torch"
SETS = 4


@dataclass(frozen=True)
class Timed:
    """One contender: microseconds a call, the spread of its rounds, TFLOP/s, and how many times as fast as the last."""

    name: str
    us: float
    spread: float
    tflops: float
    factor: float


@dataclass(frozen=True)
class Comparison:
    """A comparison on one GPU."""

    problem: str  # that was timed
    gpu: str  # on which
    versions: str  # versions of the software that made and ran it
    rows: list[Timed]  # the contenders; the last is what the others are compared with
    verdict: str  # which is faster by more than the rounds differ, or "no difference"


def compared(
    asked: Mapping[str, Asked], bench: Bench | None = None, regime: Any = None, against_torch: bool = True
) -> Comparison:
    """Time specs of one problem, and torch.matmul where the epilogue is plain.

    Args:
        asked: by name.
        bench: what runs them; None is the current GPU.
        regime: how long; None is sustained.

    Raises:
        HardwareError: there is no Hopper GPU.
    """
    from cutegemm.database.choice import choose
    from cutegemm.errors import HardwareError
    from cutegemm.running.backends.launcher import current_device
    from cutegemm.running.run import prepare
    from cutegemm.tuning.gpu import GpuBench
    from cutegemm.tuning.race import Regime, race, wins
    from cutegemm.tuning.random_operands import operands
    from cutegemm.tuning.timing import Sampler

    if bench is None and current_device()[0] is None:
        raise HardwareError("times are taken on a Hopper GPU (compute capability 9.0), and there is none")
    machine, regime = bench or GpuBench(), regime or Regime()
    of = next(iter(asked.values())).problem

    def chosen(spec: Any, problem: Any, _: Any) -> Any:
        return choose(spec, problem, machine.record).plan

    works: dict[str, Callable[[], None]] = {}
    for name, x in asked.items():
        graph = chosen(x.spec, of, None).config.epilogue
        sets = [operands(of, graph, machine.memory, seed) for seed in range(SETS)]
        made = prepare(x.spec, graph, sets[0].order, sets[0].given, machine.backend, planner=chosen)
        works[name] = machine.one_pass(made, sets)
    if against_torch and not any(x.spec.given().get("epilogue") for x in asked.values()):
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
    return Comparison(
        f"{of.shape}; {of.a.dtype.value}", machine.record.name, machine.versions(), rows, verdict
    )


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
    """One problem: its status, microseconds and those of the model's choice (None where nothing is known), in words."""

    status: str
    us: float | None
    model_us: float | None
    fields: dict[str, object]
    says: str


@dataclass(frozen=True)
class Tuned:
    """All problems, and whether tuning was stopped before its end."""

    outcomes: list[OutcomeOf]
    interrupted: bool


def tuned(asked: Asked, **options: Any) -> Tuned:
    """`cutegemm.tune` of what was asked."""
    from cutegemm.tuning import tune

    report = tune(asked.spec, [asked.problem], **options)
    known = [
        (x.entry.us, x.entry.model_us, dict(x.entry.fields)) if x.entry else (None, None, {})
        for x in report.outcomes
    ]
    found = [OutcomeOf(x.status, *of, str(x)) for x, of in zip(report.outcomes, known, strict=True)]
    return Tuned(found, report.interrupted)
