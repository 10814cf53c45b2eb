# SPDX-License-Identifier: Apache-2.0
"""Measures fresh problems: the model's choice compared with cuBLAS, or with the tuner's candidates.

A problem that cannot be timed has a row with the reason, so no row is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks import candidates, chain, contenders, fresh_draws, gemm, results, runs, sweep, timing
from benchmarks.results import Case, Row
from cutegemm import GemmSpec, KernelPlan, Problem
from cutegemm.arch.device import Device
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.tuning import proposals

PREFIX = "fresh_"  # of suites, before the family
CHAIN = f"{PREFIX}chain"
# The contenders; the first is ours.
SINGLE = (contenders.MODEL, contenders.BASELINE)
CHAINED = (contenders.OURS, chain.UNDECLARED, contenders.BASELINE)
# As hot as "sustained", since there is no rest, with samples of half the length.
FIRST = timing.Regime(name="fresh", preheat=0.3, rest=0.0, sample=0.05, rounds=6)
AGAIN = replace(FIRST, name="fresh_again")
# All candidates briefly; then the best, cuBLAS and the model's choice longer.
SCREEN = timing.Regime(name="screen", preheat=0.1, rest=0.0, sample=0.008, rounds=2)
FINAL = timing.Regime(name="final", preheat=0.2, rest=0.0, sample=0.025, rounds=6)
FINALISTS = 6


def cases_of(family: str, seed: int | str, count: int) -> list[Case]:
    """A family's problems, with the suite names of rows."""
    return [replace(case, suite=PREFIX + case.suite) for case in fresh_draws.draw(family, seed, count)]


def chain_of(case: Case) -> chain.Chain:
    """The two layers of a problem of family "chain": N x K and K x N."""
    return chain.Chain(((case.n, case.k), (case.k, case.n)), case.m)


class Bench:
    """Compares the model's choice with cuBLAS, on single GEMMs and chains.

    Args:
        regime: of timing.
        sensors: of the GPU, read during samples.
        device: captures graphs and times them.
        memory: torch device of the operands.
        keep: stores the rows of a problem whose measurement fails, before the error is raised.
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
        """The key fields of the rows that `measure(case)` returns."""
        if case.suite != CHAIN:
            return self._single.keys(case)
        return [row | {"suite": CHAIN} for row in self._chain.keys(chain_of(case))]

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, and (contender, reason) of those without times.

        Raises:
            RuntimeError: the measurement failed, for example by a lost device; rows with the reason are stored.
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
    """Compares the model's choice with the tuner's candidates: all of them briefly, then the best again.

    Args:
        sensors: of the GPU, read during samples.
        record: of the GPU to plan for.
        most: maximum candidates per problem.
        more: arguments of `sweep.Bench`.
    """

    def __init__(self, sensors: timing.Readable | None, record: Device, most: int, **more: Any) -> None:
        self._record, self._most = record, most
        self._screen, self._final = (
            sweep.Bench(regime, sensors, planner=self._planner, **more) for regime in (SCREEN, FINAL)
        )

    def _planner(self, spec: GemmSpec, of: Problem) -> KernelPlan:
        return plan(spec, of, self._record)

    def keys(self, case: Case) -> list[Row]:
        """The key of the model's choice, which is measured last."""
        return [asdict(case) | {"contender": candidates.label({}), "regime": FINAL.name}]

    def group(self, case: Case) -> sweep.Group:
        """A problem's candidates, the model's choice first."""
        found = proposals.proposals(GemmSpec(), contenders.problem(case), self._record, self._most)
        return sweep.Group(case, tuple(json.dumps(dict(x.fields)) for x in found))

    def configs(self, cases: Sequence[Case]) -> Iterator[Any]:
        """The configs of all measured kernels."""
        for case in cases:
            for fields in self.group(case).fields:
                yield from (
                    step.config
                    for step in self._planner(candidates.spec(fields), contenders.problem(case)).steps
                )

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """Rows of all candidates, and second rows of the best. Nothing counts as a failure."""
        with contenders.no_database():
            screened, _ = self._screen.measure(self.group(case))
            best = next(iter(sweep.best(screened).values()), [])[:FINALISTS]
            last = dict.fromkeys(json.dumps(fields) for fields in ({}, *(row["spec"] for row in best)))
            final, _ = self._final.measure(sweep.Group(case, tuple(last)))
        return [*screened, *final], []


def configs(cases: Sequence[Case], record: Device) -> Iterator[Any]:
    """The configs of all kernels that the model chooses for problems on a GPU."""
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
                    # a refused problem is reported when it is measured
                    continue


def planned(case: Case, record: Device) -> dict[str, str]:
    """The labels of the model's choices for a problem, by contender."""
    if case.suite != CHAIN:
        return {contenders.MODEL: contenders.plan_label(plan(GemmSpec(), contenders.problem(case), record))}
    found = {}
    for name, constant in ((contenders.OURS, True), (chain.UNDECLARED, False)):
        spec = chain.spec(constant=constant)
        problems = [contenders.problem(replace(case, n=n, k=k)) for n, k in chain_of(case).layers]
        found[name] = chain.plan_words(spec, [plan(spec, x, record) for x in problems])
    return found
