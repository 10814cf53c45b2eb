# SPDX-License-Identifier: Apache-2.0
"""Speed of fused epilogues compared with the plain GEMM, torch.compile, eager torch and cuBLAS.

    python -m benchmarks.epilogue --out benchmarks/results/epilogue.json --commit HASH [--cases swiglu ...]

Results are written after every problem, and the same command continues.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

from rich.console import Console

from benchmarks import command_line, figures, fusions, gemm, inputs, results, runs, timing
from benchmarks.libraries import max_autotune
from benchmarks.results import Case, Row
from benchmarks.suites import EPILOGUES
from benchmarks.timing import Contender

Compiler = fusions.Compiler


class Bench:
    """Checks and times one fused problem after another.

    Args:
        regime: of timing.
        sensors: of the GPU, read during samples.
        compiler: compiles torch_compile's functions; None leaves that contender out.
        console: prints the epilogue of the next rows.
        device: captures graphs and times them.
        memory: torch device of the operands.
    """

    def __init__(
        self,
        regime: timing.Regime,
        sensors: timing.Readable | None,
        compiler: Compiler | None,
        *,
        console: Console,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
    ) -> None:
        self._regime, self._sensors, self._compiler, self._console = regime, sensors, compiler, console
        self._device = device or timing.Device()
        self._memory = memory
        self._compiled: dict[Case, Contender] = {}

    def names(self, case: Case) -> list[str]:
        """The measured contenders."""
        left_out = fusions.COMPILED if self._compiler is None else None
        return [name for name in fusions.names(case) if name != left_out]

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""
        return [asdict(case) | {"contender": name, "regime": self._regime.name} for name in self.names(case)]

    def compile(
        self, cases: list[Case], *, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Compile and tune each case's function with torch.compile, until `seconds` have passed.

        A failure is reported again when the case is measured.
        """
        start = clock()
        for case in cases:
            if fusions.COMPILED not in self.names(case) or clock() - start > seconds:
                continue
            began = clock()
            (x,) = fusions.make_sets(case, self._memory, 1)
            try:
                self._make(fusions.COMPILED, case).call(x)
            except Exception as error:
                self._console.print(
                    f"{case} {case.epilogue}: torch.compile failed: {runs.reason(error)}", markup=False
                )
            self._console.print(f"{case} {case.epilogue}: torch.compile took {clock() - began:.1f} s")

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """Rows of the correct contenders, and (epilogue and contender, reason) of the others."""
        self._console.print(f"{case.epilogue}, beta {case.beta}")
        sets = fusions.make_sets(case, self._memory, inputs.set_count(case))
        right: list[Contender] = []
        failures: runs.Failures = []
        for name in self.names(case):
            try:
                right.append(self._ready(name, case, sets[0]))
            except Exception as error:  # an error of one contender must not stop the others
                failures.append((f"{case.epilogue} {name}", runs.reason(error)))
        if not right:
            return [], failures
        times = timing.measure(right, sets, self._regime, device=self._device, sensors=self._sensors)
        plans = {contender.name: contender.plan for contender in right}
        rows = results.case_rows(
            case, times, plans=plans, regime=self._regime.name, baseline=fusions.BASELINE
        )
        return rows, failures

    def _ready(self, name: str, case: Case, x: fusions.Operands) -> Contender:
        """A correct contender that can be captured, after all compiling and loading of its first use."""
        contender = self._make(name, case)
        fusions.check(contender, case, x)
        contender.call(x)
        self._device.capture(lambda: contender.call(x))
        return contender

    def _make(self, name: str, case: Case) -> Contender:
        if name != fusions.COMPILED:
            return fusions.make(name, case)
        if case not in self._compiled:
            self._compiled[case] = fusions.make(name, case, self._compiler)
        return self._compiled[case]


def cases(names: list[str] | None = None) -> list[Case]:
    """The suite's problems, or those of some epilogues."""
    return [
        Case(suite="epilogue", dtype="bf16", majors="kk", m=m, n=n, k=k, epilogue=name, beta=beta)
        for name, beta, (m, n, k) in EPILOGUES
        if names is None or name in names
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("epilogue", __doc__)
    add = parser.add_argument
    add(
        "--cases",
        nargs="+",
        choices=tuple(fusions.FUSIONS),
        metavar="EPILOGUE",
        help=f"of {', '.join(fusions.FUSIONS)}; default all",
    )
    add("--no-compile", action="store_true", help="without torch.compile")
    runs.add_options(parser)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender failed or was wrong."""
    args = parse(arguments)
    console, sensors, out = runs.open_run(args)
    compiler = None if args.no_compile else max_autotune
    bench = Bench(timing.REGIMES["sustained"], sensors, compiler, console=console)
    todo, began = cases(args.cases), time.monotonic()
    bench.compile([case for case in todo if not out.has(bench.keys(case))], seconds=args.seconds)
    left = args.seconds - (time.monotonic() - began)
    outcome = runs.run(todo, bench, out, seconds=left, console=console, describe=gemm.describe)
    console.print(figures.table(out.rows))
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
