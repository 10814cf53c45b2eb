# SPDX-License-Identifier: Apache-2.0
"""Speed of cutegemm and cuBLAS on the project's suites. Each problem is checked before it is timed.

    python -m benchmarks.gemm --suites square,batched,fp32 --out benchmarks/results/gemm.json --commit HASH

cuBLAS runs through torch.mm, or torch.bmm for a batch, without tf32, in the same run. Results are written after every
problem. The same command continues a run that stopped, because of --seconds or an error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from rich.console import Console
from rich.table import Table

from benchmarks import command_line, contenders, correctness, inputs, libraries, results, runs, suites, timing
from benchmarks.results import Case, Row
from cutegemm.errors import GemmError
from cutegemm.running.backends.launcher import current_device

DEFAULT_DTYPE = "bf16"


class Bench:
    """Checks and times one problem after another.

    Args:
        names: of the contenders.
        regime: of timing.
        sensors: of the GPU, read during samples.
        device: captures graphs and times them.
        memory: torch device of the operands.
        baseline: contender whose time is the numerator of all ratios.
    """

    def __init__(
        self,
        names: list[str],
        regime: timing.Regime,
        sensors: timing.Readable | None,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        baseline: str = contenders.BASELINE,
    ) -> None:
        self.names = names
        self._regime = regime
        self._sensors = sensors
        self._device = device or timing.Device()
        self._memory = memory
        self._baseline = baseline

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""
        regime = self.regime(case).name
        return [asdict(case) | {"contender": name, "regime": regime} for name in self.names]

    def regime(self, case: Case) -> timing.Regime:
        """The regime that times a case."""
        return self._regime

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """Rows of the correct contenders, and (contender, reason) of the others."""
        sets = inputs.make_sets(case, self._memory, inputs.set_count(case))
        right: list[timing.Contender] = []
        failures: runs.Failures = []
        for name in self.names:
            try:
                contender = contenders.make(name, case)
                correctness.check(contender.call, sets[0])
                if name in libraries.NAMES:
                    # fails before the timing if the library cannot be captured
                    self._device.capture(partial(contender.call, sets[0]))
                right.append(contender)
            except (GemmError, libraries.LeftOut, correctness.WrongResult) as error:
                failures.append((name, str(error)))
        regime = self.regime(case)
        times = timing.measure(right, sets, regime, device=self._device, sensors=self._sensors)
        plans = {contender.name: contender.plan for contender in right}
        rows = results.case_rows(case, times, plans=plans, regime=regime.name, baseline=self._baseline)
        return rows, failures


def describe(row: Row) -> str:
    """A row on one line: us | TFLOP/s | x baseline."""
    size = results.size_of(row)
    return (
        f"{row['suite']:8} {size:20} {row['dtype']} {row['majors']} {row['contender']:10} "
        f"{row['us']:10.2f} us | {row['tflops']:7.1f} TFLOP/s{results.ratio_text(row)}"
    )


def summarize(rows: Sequence[Row], console: Console) -> None:
    """Print the geometric means."""
    table = Table("suite", "dtype", "majors", "regime", "contender", "rows", "geomean", "least", "greatest")
    for line in results.summary(rows):
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in line.values()))
    console.print(table)


def select(
    names: list[str], shapes: list[suites.Shape], dtypes: list[str] | None, majors: list[str]
) -> list[Case]:
    """Every problem of the suites, then the shapes as suite "custom", in each dtype and choice of majors.

    A suite that fixes its operand type keeps it. Other suites use bf16 unless dtypes are given.
    """
    sized = [(suite, size) for suite in names for size in suites.extents(suite)]
    sized += [("custom", (1, *shape)) for shape in shapes]
    cases = [
        Case(
            suite=suite,
            dtype=suites.DTYPES.get(suite, dtype),
            majors=major,
            batch=batch,
            m=m,
            n=n,
            k=k,
        )
        for dtype in dtypes or [DEFAULT_DTYPE]
        for major in majors
        for suite, (batch, m, n, k) in sized
    ]
    return list(dict.fromkeys(cases))


def shapes_of(text: str) -> list[suites.Shape]:
    """Parse shapes such as "4096x4096x512,64x64x64".

    Raises:
        argparse.ArgumentTypeError: the text is malformed, or an extent is not positive.
    """
    try:
        found = [(m, n, k) for m, n, k in (map(int, shape.split("x")) for shape in text.split(",") if shape)]
    except ValueError:
        found = []
    if not found or any(min(shape) < 1 for shape in found):
        raise argparse.ArgumentTypeError(
            f"{text}: must be M x N x K, each at least 1, as in 4096x4096x512,64x64x64"
        )
    return found


def add_problems(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose single and batched GEMMs."""
    add = parser.add_argument
    add("--suites", type=runs.names_among(suites.PRODUCTS), default=[], help=", ".join(suites.PRODUCTS))
    add("--shapes", type=shapes_of, default=[], help="more problems, MxNxK,...: suite 'custom'")
    add(
        "--dtype",
        type=runs.names_among(tuple(inputs.DTYPES)),
        help=f"default {DEFAULT_DTYPE}, and fp32 for suite fp32",
    )
    add(
        "--majors",
        type=runs.names_among(inputs.MAJORS),
        default=["kk"],
        help="unit-stride axes of A and B; default kk",
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("gemm", __doc__)
    add_problems(parser)
    add = parser.add_argument
    add("--contenders", type=runs.names_among(contenders.CHOICES), default=list(contenders.NAMES))
    add("--regime", choices=tuple(timing.REGIMES), default="sustained")
    runs.add_options(parser)
    args = parser.parse_args(arguments)
    if not (args.suites or args.shapes):
        parser.error("nothing to measure: give --suites or --shapes")
    return args


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if a contender refused a problem or was wrong."""
    args = parse(arguments)
    todo = select(args.suites, args.shapes, args.dtype, args.majors)
    return carry_out(args, todo, Bench, describe, summarize)


def carry_out(
    args: argparse.Namespace,
    todo: Sequence[Case],
    bench_of: Callable[..., Bench],
    describe: Callable[[Row], str],
    summarize: Callable[[list[Row], Console], None],
) -> int:
    """Measure problems with parsed options; returns 1 if a contender refused a problem or was wrong.

    Args:
        args: contenders, regime, and the options of `runs.add_options`.
        todo: the problems.
        bench_of: makes a bench from contenders, regime and sensors.
        describe, summarize: print a row, and all rows in the end.
    """
    console, sensors, out = runs.open_run(args)
    bench = bench_of(args.contenders, timing.REGIMES[args.regime], sensors)
    left = [case for case in todo if not out.has(bench.keys(case))]
    console.print(f"{contenders.ready(args.contenders, left, current_device()[1])} kernels ready")
    outcome = runs.run(todo, bench, out, seconds=args.seconds, console=console, describe=describe)
    summarize(out.rows, console)
    return runs.report(outcome, console)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
