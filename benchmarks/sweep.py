# SPDX-License-Identifier: Apache-2.0
"""Many specs on many problems, timed beside cuBLAS: what choosing is fitted to.

    python -m benchmarks.sweep --specs benchmarks/specs/large.json --suites square --out sweep.json --commit HASH \
        --regime short --group 20 --seconds 480

Kernels of everything that is left are compiled first, side by side. Each problem takes its specs in groups that are
timed interleaved, cuBLAS in every one. A spec must be right before it is timed; why another is not is recorded, and not
tried again. Results are written after every group, and the same command goes on where an earlier one stopped, so that a
sweep may be many short calls.
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

GROUP = 8  # specs timed together: each holds a graph, and what a group costs bounds what an interrupted call loses
SWEEP = dataclasses.replace(timing.REGIMES["sustained"], rounds=4)


@dataclass(frozen=True)
class Group:
    """Some specs on one problem."""

    case: Case
    specs: tuple[str, ...]  # JSON, which can be hashed

    @property
    def fields(self) -> list[Fields]:
        """Of each spec."""
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
    """What is left to measure, problem by problem: the specs that are not done in a regime, `size` at a time."""

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
        sensors: of the GPU, read meanwhile.
        device: what captures and times.
        memory: torch's name of the device that holds the operands.
        compile: has the kernels of configs compiled, side by side.
        planner: plans a spec for a problem on the device; None is for the GPU that is planned for by default.
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
        """The key fields of the rows that measuring `group` gives."""
        return [_key(group.case, fields, self._regime.name) for fields in group.fields]

    def compile_all(self, todo: Sequence[Group]) -> int:
        """Have the kernels of all groups compiled at once, rather than a few at a time between measurements."""
        plans = [found for group in todo for found in self._plan(group)[0].values()]
        configs = list(dict.fromkeys(step.config for found in plans for step in found.steps))
        with contextlib.suppress(GemmError):
            # whose kernel it is, its group finds out
            self._compile(configs)
        return len(configs)

    def measure(self, group: Group) -> tuple[list[Row], runs.Failures]:
        """A row for every spec, without times where it was refused or wrong; nothing counts as a failure."""
        case = group.case
        planned, refused = self._plan(group)
        with contextlib.suppress(GemmError):
            # the spec whose kernel it is says so below
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
        """The plans of a group's specs by name, and why others have none."""
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
        """The rows of specs that have no times."""
        empty = dict.fromkeys(results.ROW_FIELDS) | asdict(case) | {"regime": self._regime.name}
        return [
            empty | {"contender": name, "spec": by_name[name], "refused": why}
            for name, why in refused.items()
        ]


def describe(row: Row) -> str:
    """A row on one line."""
    if row["refused"]:
        size = results.size_text(row["batch"], row["m"], row["n"], row["k"])
        return f"{row['suite']:8} {size:20} {row['contender']}: {row['refused']}"
    return gemm.describe(row)


def best(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """By problem the rows with times, fastest relative to their own group's cuBLAS first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("spec") is not None and row["ratio"] is not None:
            size = results.size_text(row["batch"], row["m"], row["n"], row["k"])
            found.setdefault(f"{row['suite']} {size} {row['dtype']} {row['majors']}", []).append(row)
    return {name: sorted(group, key=lambda row: -float(row["ratio"])) for name, group in found.items()}


def summary(rows: Sequence[Row]) -> Table:
    """The best spec of each problem, and what the planner's own choice loses to it, where that was measured."""
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
    add("--every", type=int, default=1, help="measure only every so many problems; default 1")
    add("--group", type=int, default=GROUP, help=f"specs timed together, beside one cuBLAS; default {GROUP}")
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
            f"{text!r}: must be an even number from 2, so that both orders count"
        )
    return int(text)


def main(arguments: list[str]) -> int:
    """Run the command; what is left after --seconds is told."""
    args = parse(arguments)
    console, sensors, out = runs.open_run(args)
    cases = gemm.select(args.suites, args.shapes, args.dtype, args.majors)[:: max(1, args.every)]
    todo = groups(cases, args.candidates, out.has, regime=args.regime, size=max(1, args.group))
    total = len(cases) * len(args.candidates)
    left = sum(len(group.specs) for group in todo)
    console.print(f"{total} of spec and problem, {total - left} measured before")
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
