# SPDX-License-Identifier: Apache-2.0
"""The common part of operand-type probes, which compare our kernels with others.

Each problem's rows are written when it is measured, with the error against fp64 and the chosen kernel. The same command
continues a run that stopped. With `--compile-only` kernels go to CUTEGEMM_CACHE_DIR without a GPU. With `--fresh` the
measured sources determine random problems (`fresh_draws`).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console

from benchmarks import contenders, correctness, fresh_draws, fresh_tree, inputs, results, runs, timing
from benchmarks.results import Row
from benchmarks.suites import SUITES, Shape
from benchmarks.timing import Contender
from cutegemm import Gemm, GemmSpec, KernelPlan, Problem
from cutegemm.arch.device import Device
from cutegemm.database import choose
from cutegemm.epilogue.graph import Graph, linear_combination
from cutegemm.errors import GemmError
from cutegemm.running.arguments.call import Request
from cutegemm.running.arguments.describe import describe as described

SUITE = "probe"  # of all rows
CHECKED_ROWS = 128  # of D that are compared with fp64
WRONG = 0.1  # relative Frobenius error that rounding cannot explain
FRESH = "fresh_"  # prefix of families
COUNT = 8  # problems per family
Given = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]  # A, B, and keyword arguments


@dataclass(frozen=True, kw_only=True)
class Case(results.Case):
    """A problem of a suite or family with one kind of operands."""

    kind: str
    of: str

    @property
    def what(self) -> str:
        """Kind and suite, as in rows."""
        return f"{self.kind} {self.of}"

    def __str__(self) -> str:
        return f"{self.what} {self.size} {self.majors}"


@dataclass(frozen=True)
class Ours:
    """Our GEMM: its spec, and the arguments of a run for a set of inputs."""

    spec: GemmSpec
    given: Callable[[Any], Given]

    def problem(self, sets: Any) -> Problem:
        """The problem of a set of inputs, which may be on the meta device."""
        a, b, named = self.given(sets)
        graph = self.spec.epilogue if isinstance(self.spec.epilogue, Graph) else linear_combination(False)
        tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}
        d_dtype = None if isinstance(self.spec.d_dtype, str) else self.spec.d_dtype
        return described(graph, Request(a=a, b=b, inputs=tensors), d_dtype).problem

    def contender(self, name: str, sets: Any, device: Device) -> Contender:
        """The contender with the chosen kernel.

        Raises:
            GemmError: the problem is refused.
        """
        gemm = Gemm(self.spec)

        def call(x: Any) -> torch.Tensor:
            a, b, named = self.given(x)
            return gemm.run(a, b, **named)

        return Contender(name, call, contenders.plan_label(self.plan(sets, device)))

    def plan(self, sets: Any, device: Device) -> KernelPlan:
        """The plan for a set of inputs."""
        return choose(self.spec, self.problem(sets), device).plan


@dataclass(frozen=True)
class Kind:
    """A kind of operands and its contenders.

    Attributes:
        dtype: of the operands, in rows.
        size: bytes per element.
        draw: (case, seed, device) -> a set of inputs; on the meta device without values.
        exact: computes the first `CHECKED_ROWS` of D in fp64.
        ours, others: contenders by name.
        baseline: contender whose time is the numerator of ratios.
    """

    dtype: str
    size: int
    draw: Callable[[Case, int, str], Any]
    exact: Callable[[Any], torch.Tensor]
    ours: Mapping[str, Ours]
    others: Mapping[str, Callable[[Any], torch.Tensor]]
    baseline: str

    @property
    def names(self) -> list[str]:
        """All contenders."""
        return [*self.ours, *self.others]

    def sets(self, case: Case, memory: str) -> list[Any]:
        """Input sets that together exceed L2, on the torch device `memory`."""
        each = self.size * (case.m * case.k + case.k * case.n)
        count = min(64, max(2, -(-inputs.ROTATION_BYTES // each)))
        return [self.draw(case, seed, memory) for seed in range(count)]


def error_of(call: Callable[[Any], torch.Tensor], sets: Any, wanted: torch.Tensor) -> float:
    """The relative Frobenius error of the first rows of D.

    Raises:
        RuntimeError: it exceeds rounding errors.
    """
    error = correctness.relative_error(call(sets)[:CHECKED_ROWS], wanted)
    if not error < WRONG:
        raise RuntimeError(f"error {error:.3g} of the norm")
    return error


class Bench:
    """Checks and times one problem after another; see `runs.Bench`.

    Args:
        kinds: by name.
        regime: of timing.
        sensors: of the GPU, read during samples.
        record: of the GPU.
        device: captures graphs and times them.
        memory: torch device of the operands.
    """

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        regime: timing.Regime,
        sensors: timing.Readable | None,
        record: Device,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
    ) -> None:
        self.kinds, self._regime, self._sensors, self._record = kinds, regime, sensors, record
        self._device, self._memory = device or timing.Device(), memory

    def keys(self, case: Case) -> list[Row]:
        """The key fields of the rows that `measure(case)` returns."""
        fields = {name: x for name, x in asdict(case).items() if name in results.CASE_FIELDS}
        return [
            fields | {"what": case.what, "contender": name, "regime": self._regime.name}
            for name in self.kinds[case.kind].names
        ]

    def measure(self, case: Case) -> tuple[list[Row], runs.Failures]:
        """A row of every contender, and (contender, reason) of ours without times."""
        kind = self.kinds[case.kind]
        sets = kind.sets(case, self._memory)
        wanted, alive, errors, why = kind.exact(sets[0]), [], {}, {}
        for name in kind.names:
            try:
                contender = self._made(kind, name, sets[0])
                errors[name] = error_of(contender.call, sets[0], wanted)
                alive.append(contender)
            except (GemmError, RuntimeError, ValueError) as error:
                why[name] = runs.reason(error)
        times = timing.measure(alive, sets, self._regime, device=self._device, sensors=self._sensors)
        plans = {x.name: x.plan for x in alive}
        timed = results.case_rows(case, times, plans=plans, regime=self._regime.name, baseline=kind.baseline)
        rows = [x | {"what": case.what, "error": errors[x["contender"]], "refused": None} for x in timed] + [
            results.refused_row(x, why[x["contender"]]) for x in self.keys(case) if x["contender"] in why
        ]
        return rows, [(name, why[name]) for name in kind.ours if name in why]

    def _made(self, kind: Kind, name: str, sets: Any) -> Contender:
        if name in kind.ours:
            return kind.ours[name].contender(name, sets, self._record)
        return Contender(name, kind.others[name])


def describe(row: Row) -> str:
    """A row on one line: us | TFLOP/s | x baseline | error."""
    size = results.size_of(row)
    head = f"{row['what']:16} {size:20} {row['majors']} {row['contender']:12} "
    if row["refused"] is not None:
        return f"{head}left out: {row['refused']}"
    speed = f"{row['us']:10.2f} us | {row['tflops']:7.1f} TFLOP/s"
    return f"{head}{speed}{results.ratio_text(row)} | error {row['error']:.2e}"


def summarize(rows: Sequence[Row], console: Console) -> None:
    """Print geometric mean and least ratio by kind, suite, majors and contender."""
    found: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["ratio"] is not None and row["contender"] != row["baseline"]:
            place = row["what"], row["majors"], row["contender"], row["baseline"]
            found.setdefault(place, []).append(row["ratio"])
    for (what, majors, name, baseline), ratios in found.items():
        mean = results.geometric_mean(ratios)
        text = f"{what} {majors}: {baseline} over {name} {mean:.3f}, least {min(ratios):.3f} of {len(ratios)}"
        console.print(f"== {text}", markup=False, soft_wrap=True)


def cases(
    kinds: Mapping[str, Kind],
    names: Sequence[str],
    shapes: Mapping[str, Sequence[Shape]],
    majors: Sequence[str],
) -> Iterator[Case]:
    """The problems of suites, in each kind and choice of majors."""
    for name in names:
        for of, listed in shapes.items():
            for axes in majors:
                for m, n, k in listed:
                    yield Case(
                        suite=SUITE, kind=name, of=of, dtype=kinds[name].dtype, majors=axes, m=m, n=n, k=k
                    )


def drawn(
    kinds: Mapping[str, Kind], names: Sequence[str], families: Sequence[str], seed: int | str, count: int
) -> Iterator[Case]:
    """Unseen problems of families, which fix their majors, in each kind."""
    for name in names:
        for family in families:
            for x in fresh_draws.draw(family, seed, count):
                fields = asdict(x) | {"suite": SUITE, "dtype": kinds[name].dtype}
                yield Case(**fields, kind=name, of=FRESH + family)


def compile_all(kinds: Mapping[str, Kind], todo: Sequence[Case], device: Device, console: Console) -> int:
    """Compile the kernels of all problems in parallel. Returns their number."""
    configs = []
    for case in todo:
        sets = kinds[case.kind].draw(case, 0, "meta")
        for ours in kinds[case.kind].ours.values():
            # a refused problem is reported when it is measured
            with contextlib.suppress(GemmError):
                configs += [step.config for step in ours.plan(sets, device).steps]
    return runs.compiled(configs, len(todo), console)


def add_options(parser: argparse.ArgumentParser, kinds: Mapping[str, Kind], regime: str) -> None:
    """Add the options of all probes."""
    add = parser.add_argument
    add("--kinds", type=runs.names_among(tuple(kinds)), default=list(kinds), help=", ".join(kinds))
    add("--regime", default=regime, choices=sorted(timing.REGIMES))
    add("--all", action="store_true", help="all shapes of the suites, not a selection")
    add(
        "--fresh",
        action="store_true",
        help="random problems determined by the measured sources, instead of suites",
    )
    fresh_tree.add_option(parser)
    add(
        "--training",
        type=int,
        help="with --fresh, draw with this training seed; its results may not be reported",
    )
    add("--count", type=int, default=COUNT, help=f"with --fresh, problems per family; default {COUNT}")
    runs.add_options(parser, required=False)
    add("--compile-only", action="store_true", help="compile the kernels and measure nothing")
    runs.add_gpu(parser, "GPU that --compile-only plans for")


def settle(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Check the options, and find the seed of random problems.

    Raises:
        SystemExit: the file or the commit is missing, or sources differ from the last commit.
    """
    if not args.compile_only and (args.out is None or args.commit is None):
        parser.error("--out and --commit must be given, or --compile-only")
    args.seed = args.training
    if args.fresh and args.training is None:
        try:
            args.seed = (args.trees or fresh_tree.committed()).seed
        except ValueError as error:
            parser.error(str(error))


def carry_out(args: argparse.Namespace, kinds: Mapping[str, Kind], todo: Sequence[Case]) -> int:
    """Compile or measure problems with parsed options; returns 1 if ours refused a problem or was wrong."""
    if args.compile_only:
        record = runs.record_of(args.gpu)
        compile_all(kinds, todo, record, runs.console())
        return 0
    # imported here, since it calls the driver
    from cutegemm.running.backends.launcher import current_device

    console, sensors, out = runs.open_run(args)
    record = current_device()[1]
    bench = Bench(kinds, timing.REGIMES[args.regime], sensors, record)
    compile_all(kinds, [x for x in todo if not out.has(bench.keys(x))], record, console)
    outcome = runs.run(todo, bench, out, seconds=args.seconds, console=console, describe=describe)
    summarize(out.rows, console)
    return runs.report(outcome, console)


def shapes_of(
    names: Sequence[str], some: Mapping[str, Sequence[Shape]], every: bool
) -> dict[str, list[Shape]]:
    """The problems of suites by name: all, or a selection."""
    return {name: list(SUITES[name] if every else some[name]) for name in names}


def normal(
    rows: int,
    columns: int,
    seed: int,
    device: str,
    *,
    by_rows: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """A normally distributed matrix, row-major or column-major; on the meta device without values."""
    shape = (rows, columns) if by_rows else (columns, rows)
    if device == "meta":
        found = torch.empty(shape, device=device, dtype=dtype)
    else:
        found = torch.randn(shape, generator=torch.Generator(device).manual_seed(seed), device=device).to(
            dtype
        )
    return found if by_rows else found.T
