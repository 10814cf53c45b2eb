# SPDX-License-Identifier: Apache-2.0
"""Times many specs on many problems, with cuBLAS, as data to fit the cost model.

    python -m benchmarks.sweep --specs benchmarks/specs/large.json --suites square --out sweep.json --commit HASH \
        --regime short --group 20 --seconds 480

All missing kernels are compiled first, in parallel. The specs of a problem are timed in interleaved groups, each with
cuBLAS. A spec is checked before it is timed. The reason for a refusal or a wrong result is recorded, and the spec is
not tried again. Results are written after every group, and the same command continues, so a sweep may consist of many
short calls.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import candidates, command_line, contenders, correctness, gemm, inputs, results, runs, timing
from benchmarks.candidates import Fields
from benchmarks.results import Case, Row
from cutegemm import GemmSpec, KernelPlan, Problem
from cutegemm.compiling import kernel_cache
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.running.backends.launcher import current_device

GROUP = 8  # specs timed together; each holds a graph, and an interrupted call loses one group
SWEEP = dataclasses.replace(timing.REGIMES["sustained"], rounds=4)


@dataclass(frozen=True)
class Group:
    """Some specs on one problem."""

    case: Case
    specs: tuple[str, ...]  # JSON, since it is hashable

    @property
    def fields(self) -> list[Fields]:
        """The fields of each spec."""
        return [json.loads(text) for text in self.specs]

    def __str__(self) -> str:
        return f"{self.case}, {len(self.specs)} specs"


def groups(
    cases: Sequence[Case],
    specs: Sequence[Fields],
    done: Callable[[list[Row]], bool],
    *,
    regime: str = SWEEP.name,
    size: int = GROUP,
) -> list[Group]:
    """The unmeasured specs of a regime, problem by problem in groups of `size`."""

    def left() -> Iterator[Group]:
        for case in cases:
            todo = [json.dumps(fields) for fields in specs if not done([_key(case, fields, regime)])]
            for start in range(0, len(todo), size):
                yield Group(case, tuple(todo[start : start + size]))

    return list(left())


def _key(case: Case, fields: Fields, regime: str) -> Row:
    return asdict(case) | {"contender": candidates.label(fields), "regime": regime}


class Bench:
    """Compiles, checks and times one group after another.

    Args:
        regime: of timing.
        sensors: of the GPU, read during samples.
        device: captures graphs and times them.
        memory: torch device of the operands.
        compile: compiles kernels in parallel.
        planner: plans a spec for a problem; None plans for the default GPU.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        compile: Callable[[Sequence[Any]], None] = kernel_cache.ensure,
        planner: Callable[[GemmSpec, Problem], KernelPlan] | None = None,
    ) -> None:
        self._regime, self._sensors, self._compile = regime, sensors, compile
        self._planner = planner or (lambda spec, of: plan(spec, of))
        self._device = device or timing.Device()
        self._memory = memory

    def keys(self, group: Group) -> list[Row]:
        """The key fields of the rows that `measure(group)` returns."""
        return [_key(group.case, fields, self._regime.name) for fields in group.fields]

    def compile_all(self, todo: Sequence[Group]) -> int:
        """Compile the kernels of all groups at once. Returns their number."""
        plans = [found for group in todo for found in self._plan(group)[0].values()]
        configs = list(dict.fromkeys(step.config for found in plans for step in found.steps))
        with contextlib.suppress(GemmError):
            # the group with the failing kernel reports it
            self._compile(configs)
        return len(configs)

    def measure(self, group: Group) -> tuple[list[Row], runs.Failures]:
        """A row for every spec, without times if it was refused or wrong. Nothing counts as a failure."""
        case = group.case
        planned, refused = self._plan(group)
        with contextlib.suppress(GemmError):
            # the spec with the failing kernel is reported below
            self._compile([step.config for found in planned.values() for step in found.steps])
        sets = inputs.make_sets(case, self._memory, inputs.set_count(case))
        right: list[timing.Contender] = []
        by_name = {candidates.label(fields): fields for fields in group.fields}
        for name in planned:
            try:
                spec = candidates.spec(by_name[name])
                contender = contenders.cutegemm_contender(case, spec, name)
                correctness.check(contender.call, sets[0])
                right.append(contender)
            except (GemmError, correctness.WrongResult) as error:
                refused[name] = f"{type(error).__name__}: {error}"
        if not right:
            return self._refused(case, by_name, refused), []
        everyone = [contenders.make(contenders.BASELINE, case), *right]
        times = timing.measure(everyone, sets, self._regime, device=self._device, sensors=self._sensors)
        rows = results.case_rows(
            case,
            times,
            plans={contender.name: contender.plan for contender in right},
            regime=self._regime.name,
            baseline=contenders.BASELINE,
        )
        timed = [row | {"spec": by_name.get(row["contender"]), "refused": None} for row in rows]
        return timed + self._refused(case, by_name, refused), []

    def _plan(self, group: Group) -> tuple[dict[str, Any], dict[str, str]]:
        """The plans of a group's specs by name, and the reasons for missing plans."""
        planned: dict[str, Any] = {}
        refused: dict[str, str] = {}
        for fields in group.fields:
            name = candidates.label(fields)
            try:
                planned[name] = self._planner(candidates.spec(fields), contenders.problem(group.case))
            except GemmError as error:
                refused[name] = f"{type(error).__name__}: {error}"
        return planned, refused

    def _refused(self, case: Case, by_name: dict[str, Fields], refused: dict[str, str]) -> list[Row]:
        """The rows of specs without times."""
        empty = dict.fromkeys(results.ROW_FIELDS) | asdict(case) | {"regime": self._regime.name}
        return [
            empty | {"contender": name, "spec": by_name[name], "refused": why}
            for name, why in refused.items()
        ]


def describe(row: Row) -> str:
    """A row on one line."""
    if row["refused"]:
        size = results.size_of(row)
        return f"{row['suite']:8} {size:20} {row['contender']}: {row['refused']}"
    return gemm.describe(row)


def best(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The timed rows by problem, sorted by speed relative to cuBLAS in the same group."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("spec") is not None and row["ratio"] is not None:
            size = results.size_of(row)
            found.setdefault(f"{row['suite']} {size} {row['dtype']} {row['majors']}", []).append(row)
    return {name: sorted(group, key=lambda row: -float(row["ratio"])) for name, group in found.items()}


def summary(rows: Sequence[Row]) -> Table:
    """The best spec of each problem, and the regret of the planner's choice if it was measured."""
    table = Table("problem", "specs", "best", "x cuBLAS", "planner's x cuBLAS", "regret")
    for name, group in best(rows).items():
        top = group[0]
        chosen = next((row for row in group if row["spec"] == {}), None)
        cells = ["", ""]
        if chosen is not None:
            cells = [f"{chosen['ratio']:.3f}", f"{1 - chosen['ratio'] / top['ratio']:.1%}"]
        table.add_row(name, str(len(group)), top["contender"], f"{top['ratio']:.3f}", *cells)
    return table


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("sweep", __doc__)
    add = parser.add_argument
    add("--specs", type=Path, required=True, help="JSON file of specs; see benchmarks/candidates.py")
    gemm.add_problems(parser)
    add("--regime", choices=("sustained", "short"), default=SWEEP.name)
    add("--rounds", type=_even, default=SWEEP.rounds, help=f"samples a spec, even; default {SWEEP.rounds}")
    add("--every", type=int, default=1, help="measure only every N-th problem; default 1")
    add("--group", type=int, default=GROUP, help=f"specs timed together with cuBLAS; default {GROUP}")
    runs.add_options(parser)
    args = parser.parse_args(arguments)
    if not (args.suites or args.shapes):
        parser.error("nothing to measure: give --suites or --shapes")
    try:
        args.candidates = candidates.load(args.specs)
    except (OSError, ValueError) as error:
        parser.error(f"argument --specs: {error}")
    return args


def _even(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 2 and int(text) % 2 == 0):
        raise argparse.ArgumentTypeError(
            f"{text!r}: must be an even number of at least 2, so that both orders occur equally often"
        )
    return int(text)


def main(arguments: list[str]) -> int:
    """Run the command."""
    args = parse(arguments)
    console, sensors, out = runs.open_run(args)
    cases = gemm.select(args.suites, args.shapes, args.dtype, args.majors)[:: max(1, args.every)]
    todo = groups(cases, args.candidates, out.has, regime=args.regime, size=max(1, args.group))
    total = len(cases) * len(args.candidates)
    left = sum(len(group.specs) for group in todo)
    console.print(f"{total} pairs of spec and problem, {total - left} measured before")
    record = current_device()[1]
    bench = Bench(
        dataclasses.replace(timing.REGIMES[args.regime], rounds=args.rounds),
        sensors,
        planner=lambda spec, of: plan(spec, of, record),
    )
    console.print(f"{bench.compile_all(todo)} kernels ready")
    outcome = runs.run(todo, bench, out, seconds=args.seconds, console=console, describe=describe)
    console.print(summary(out.rows))
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
