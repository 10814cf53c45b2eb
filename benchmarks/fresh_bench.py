# SPDX-License-Identifier: Apache-2.0
"""How fresh problems are measured: the model alone beside cuBLAS, and its choice beside the tuner's candidates.

A problem that cannot be timed has a row that says why, so that no row is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from benchmarks import candidates, chain, contenders, fresh_draws, gemm, results, runs, sweep, timing
from benchmarks.results import Case, Row
from cutegemm import GemmSpec, KernelPlan, Problem
from cutegemm.arch.device import Device
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.tuning import proposals

PREFIX = "fresh_"  # before the names of families
CHAIN = f"{PREFIX}chain"
# The contenders; the first is ours.
SINGLE = (contenders.MODEL, contenders.BASELINE)
CHAINED = (contenders.OURS, chain.UNDECLARED, contenders.BASELINE)
# As hot as "sustained", since work follows work, in half of its time.
FIRST = timing.Regime(name="fresh", preheat=0.3, rest=0.0, sample=0.05, rounds=6)
AGAIN = replace(FIRST, name="fresh_again")
# All candidates shortly; then the best of them, cuBLAS and the model's choice longer.
SCREEN = timing.Regime(name="screen", preheat=0.1, rest=0.0, sample=0.008, rounds=2)
FINAL = timing.Regime(name="final", preheat=0.2, rest=0.0, sample=0.025, rounds=6)
FINALISTS = 6


class Measure(Protocol):
    """Measures fresh problems; see `runs.Bench`."""

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that measuring `case` gives."""

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """Every row of a case."""


def cases_of(family: str, seed: int | str, count: int) -> list[Case]:
    """A family's problems, as rows name them."""
    return [replace(case, suite=PREFIX + case.suite) for case in fresh_draws.draw(family, seed, count)]


def chain_of(case: Case) -> chain.Chain:
    """The layers of a problem of family "chain": there and back."""
    return chain.Chain(((case.n, case.k), (case.k, case.n)), case.m)


class Bench:
    """The model alone beside cuBLAS, of single GEMMs and of chains.

    Args:
        regime: of timing.
        sensors: of the GPU, read meanwhile.
        device: what captures and times.
        memory: torch's name of the device that holds the operands.
        keep: stores rows of a problem whose measurement breaks off, before the error goes on.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        keep: Callable[[list[Row]], None] = lambda rows: None,
    ) -> None:
        self._regime, self._keep = regime, keep
        more: dict[str, Any] = {"device": device, "memory": memory}
        self._single = gemm.Bench(list(SINGLE), regime, sensors, **more)
        self._chain = chain.Bench(regime, sensors, names=CHAINED, **more)

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that measuring `case` gives."""
        if case.suite != CHAIN:
            return self._single.keys(case)
        return [row | {"suite": CHAIN} for row in self._chain.keys(chain_of(case))]

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, and (contender, why) of those without times.

        Raises:
            RuntimeError: measuring broke off, as when the device is lost; its rows say so.
        """
        try:
            with contenders.no_database():
                if case.suite == CHAIN:
                    timed, failures = self._chain.measure(chain_of(case))
                else:
                    timed, failures = self._single.measure(case)
        except RuntimeError as error:
            why = runs.reason(error)
            self._keep([results.refused_row(key, why) for key in self.keys(case)])
            raise
        found = {row["contender"]: row | {"suite": case.suite, "refused": None} for row in timed}
        keys = {key["contender"]: key for key in self.keys(case)}
        found |= {name: results.refused_row(keys[name], why) for name, why in failures}
        return [found[name] for name in keys], failures


class Regret:
    """The model's choice beside the tuner's candidates: all of them shortly, then the best beside it.

    Args:
        sensors: of the GPU, read meanwhile.
        record: of the GPU that is planned for.
        most: candidates of a problem.
        more: of `sweep.Bench`.
    """

    def __init__(self, sensors: timing.Readable | None, record: Device, most: int, **more: Any) -> None:
        self._record, self._most = record, most
        self._screen, self._final = (
            sweep.Bench(regime, sensors, planner=self._planner, **more) for regime in (SCREEN, FINAL)
        )

    def _planner(self, spec: GemmSpec, of: Problem) -> KernelPlan:
        return plan(spec, of, self._record)

    def keys(self, case: Case) -> list[Row]:
        """That of the model's choice, which is measured last."""
        return [asdict(case) | {"contender": candidates.label({}), "regime": FINAL.name}]

    def group(self, case: Case) -> sweep.Group:
        """A problem's candidates, the model's own first."""
        found = proposals.proposals(GemmSpec(), contenders.problem(case), self._record, self._most)
        return sweep.Group(case, tuple(json.dumps(dict(x.fields)) for x in found))

    def configs(self, cases: Sequence[Case]) -> Iterator[Any]:
        """The configs of all kernels that are measured."""
        for case in cases:
            for fields in self.group(case).fields:
                yield from (
                    step.config
                    for step in self._planner(candidates.spec(fields), contenders.problem(case)).steps
                )

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """Rows of all candidates, and again of the best; nothing counts as a failure."""
        with contenders.no_database():
            screened, _ = self._screen.measure(self.group(case))
            best = next(iter(sweep.best(screened).values()), [])[:FINALISTS]
            last = dict.fromkeys(json.dumps(fields) for fields in ({}, *(row["spec"] for row in best)))
            final, _ = self._final.measure(sweep.Group(case, tuple(last)))
        return [*screened, *final], []


def configs(cases: Sequence[Case], record: Device) -> Iterator[Any]:
    """The configs of all kernels that the model alone chooses for problems on a GPU."""
    for case in cases:
        specs, shapes = [GemmSpec()], [case]
        if case.suite == CHAIN:
            specs = [chain.spec(constant=True), chain.spec(constant=False)]
            shapes = [replace(case, n=n, k=k) for n, k in chain_of(case).layers]
        for spec in specs:
            for shape in shapes:
                try:
                    yield from (step.config for step in plan(spec, contenders.problem(shape), record).steps)
                except GemmError:
                    # who is refused says so when it is measured
                    continue


def planned(case: Case, record: Device) -> dict[str, str]:
    """What the model alone chooses for a problem, as rows tell it, by contender."""
    if case.suite != CHAIN:
        return {contenders.MODEL: contenders.plan_label(plan(GemmSpec(), contenders.problem(case), record))}
    found = {}
    for name, constant in ((contenders.OURS, True), (chain.UNDECLARED, False)):
        spec = chain.spec(constant=constant)
        problems = [contenders.problem(replace(case, n=n, k=k)) for n, k in chain_of(case).layers]
        found[name] = chain.plan_words(spec, [plan(spec, x, record) for x in problems])
    return found
