# SPDX-License-Identifier: Apache-2.0
"""Tunes suites into a database in runs of a few minutes, problems with the most to gain first.

    python -m benchmarks.tune --suites square,prefill,decode --seconds 480 --database tuned.sqlite \\
        --export cutegemm/database/shipped.json

All state is in the database: the same command continues, on another machine too. The database starts with the entries
that ship, unless --anew is given. Every problem gets its first candidates before any gets more. Among problems with
equally many, those furthest behind cuBLAS in the `--known` results come first, and the fastest specs of these results
are tried first. Kernels of the next problems compile during measurements. A separate process measures. It is restarted
if a kernel hangs or breaks the device, and does not try that candidate again.
"""

from __future__ import annotations

import argparse
import bisect
import concurrent.futures
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import command_line, contenders, environment, gemm, results, runs
from benchmarks.results import Case
from benchmarks.watchdog import NEVER, Beat, again, watch
from cutegemm import GemmSpec, Problem
from cutegemm.compiling import kernel_cache
from cutegemm.database import Database, Entry, export, import_, key_of
from cutegemm.database.entry import refined
from cutegemm.database.exchange import SHIPPED
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.tuning import CANDIDATES
from cutegemm.tuning.gpu import Bench, GpuBench
from cutegemm.tuning.outcomes import ELSEWHERE, INTERRUPTED, REFUSED, TUNED, Outcome, Screen
from cutegemm.tuning.tuner import BATCH, COMPILE_SECONDS, Tuner

SPEC = GemmSpec()
# problems of the first chunk of compiled kernels; each further chunk doubles the total and adds this number
AHEAD = 12
# fastest specs per problem taken from each file of known results
SEEDS = 3
# fields that promise something about operands; a tuner may not set them
PROMISES = {"constant"}
# remaining seconds below which the measuring process is not restarted
LEAST_SECONDS = 20.0
Size = tuple[Any, ...]
Fields = dict[str, Any]


def size_of(row: dict[str, Any]) -> Size:
    """The key of a problem's ratio."""
    return tuple(row[name] for name in ("batch", "m", "n", "k", "dtype", "majors"))


def ratios(paths: Iterable[Path], gpu: str) -> dict[Size, float]:
    """Our ratio to cuBLAS by problem, from results files of a GPU: rows of the planner's own choice."""
    found = {}
    for path in paths:
        data = json.loads(path.read_text())
        if data.get("environment", {}).get("gpu") != gpu:
            continue
        for row in data.get("rows") or []:
            ours = row.get("contender") in (contenders.OURS, contenders.MODEL) or row.get("spec") == {}
            if ours and row.get("ratio") and row.get("epilogue", "none") == "none":
                found[size_of(row)] = float(row["ratio"])
    return found


def seeds(paths: Iterable[Path]) -> dict[Size, list[Fields]]:
    """The fastest specs of every problem relative to cuBLAS, up to `SEEDS` from each sweep, of any GPU."""
    found: dict[Size, list[Fields]] = {}
    for path in paths:
        swept: dict[Size, list[tuple[float, Fields]]] = {}
        for row in json.loads(path.read_text()).get("rows") or []:
            fields = {name: v for name, v in (row.get("spec") or {}).items() if name not in PROMISES}
            if fields and row.get("ratio"):
                swept.setdefault(size_of(row), []).append((float(row["ratio"]), fields))
        for size, rows in swept.items():
            best: list[Fields] = []
            for _, fields in sorted(rows, key=lambda x: -x[0]):
                if fields not in best:
                    best.append(fields)
            found.setdefault(size, []).extend(best[:SEEDS])
    return found


def by_gain(cases: Sequence[Case], known: dict[Size, float]) -> list[Case]:
    """Problems furthest behind cuBLAS first; an unmeasured problem has its suite's mean."""
    means = {}
    for suite in {case.suite for case in cases}:
        of = [known[x] for case in cases if case.suite == suite and (x := size_of(vars(case))) in known]
        means[suite] = results.geometric_mean(of) if of else 1.0
    return sorted(cases, key=lambda case: known.get(size_of(vars(case)), means[case.suite]))


class Ahead:
    """Compiles kernels of the next problems while others are measured.

    Args:
        problems: in the order of measurement.
        configs: the kernels of a problem's next candidates.
        compile: compiles kernels in parallel.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        configs: Callable[[Problem], list[Any]],
        compile: Callable[[list[Any]], None],
    ) -> None:
        self._problems, self._configs, self._compile = problems, configs, compile
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        # first index of each chunk, and the end of the last
        self._ends = [0]
        while self._ends[-1] < len(problems):
            self._ends.append(min(len(problems), 2 * self._ends[-1] + AHEAD))
        self._chunks: dict[int, concurrent.futures.Future[None]] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def ready(self, place: int) -> None:
        """Wait for the kernels of the problem at an index, and start compiling the next chunk."""
        mine = bisect.bisect_right(self._ends, place) - 1
        for chunk in (mine, mine + 1):
            if chunk not in self._chunks and chunk + 1 < len(self._ends):
                self._chunks[chunk] = self._pool.submit(self._make, chunk)
        self._chunks[mine].result()

    def _make(self, chunk: int) -> None:
        problems = self._problems[self._ends[chunk] : self._ends[chunk + 1]]
        with contextlib.suppress(GemmError):
            # the tuner reports kernels that do not compile
            self._compile([x for problem in problems for x in self._configs(problem)])


class Beating(Screen):
    """A screen that also sends heartbeats to the watching process."""

    def __init__(self, console: Console, problems: int, beat: Callable[[float], None]) -> None:
        super().__init__(console, problems)
        self._beat = beat

    def report(self, problem: Problem, text: str, *, within: float = math.inf) -> None:
        """See `Screen`."""
        self._beat(within)
        super().report(problem, text, within=within)


class Work:
    """Tunes cases within a time, in passes that each measure a batch of candidates of some problems.

    Args:
        cases: those with the most to gain first.
        tuner: measures one batch.
        compile: compiles kernels in parallel.
        clock: in seconds.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        tuner: Tuner,
        *,
        compile: Callable[[list[Any]], None] = kernel_cache.ensure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._problems = list(dict.fromkeys(contenders.problem(case) for case in cases))
        self._tuner, self._compile, self._clock = replace(tuner, batches=1), compile, clock
        self._longest = 0.0
        self._dropped: set[Problem] = set()

    def run(self, screen: Screen) -> list[Outcome]:
        """The outcome of every step, until all is done or the longest step so far would exceed the time."""
        with self._tuner.database.kept_open():
            return self._run(screen)

    def _run(self, screen: Screen) -> list[Outcome]:
        found: list[Outcome] = []
        self._have(self._known_config, self._problems, screen)
        while todo := self._next():
            with Ahead(todo, self._configs, self._compile) as ahead:
                for place, problem in enumerate(todo):
                    began = self._clock()
                    if began + self._longest > self._tuner.until:
                        return found
                    screen.report(problem, "compiling", within=COMPILE_SECONDS)
                    ahead.ready(place)
                    outcome = self._tuner.tune(problem, screen)
                    found.append(outcome)
                    screen.done(outcome)
                    if outcome.status == INTERRUPTED:
                        return found
                    if outcome.status in (TUNED, REFUSED, ELSEWHERE):
                        self._dropped.add(problem)
                    self._longest = max(self._longest, self._clock() - began)
        return found

    def _known(self, problem: Problem) -> Entry | None:
        return self._tuner.database.get(key_of(SPEC, problem, self._tuner.bench.record))

    def _next(self) -> list[Problem]:
        """The unfinished problems with the fewest tried candidates."""
        levels: dict[int, list[Problem]] = {}
        for problem in self._problems:
            known = self._known(problem)
            if problem in self._dropped or (known is not None and self._tuner.done(known, problem)):
                continue
            # a finished problem whose kernel changed starts again
            tried = 0 if known is None or known.complete else known.tried
            levels.setdefault(tried // BATCH, []).append(problem)
        return levels[min(levels)] if levels else []

    def _have(
        self, configs: Callable[[Problem], list[Any]], problems: Sequence[Problem], screen: Screen
    ) -> None:
        """Compile some kernels of all problems at once."""
        for problem in problems[:1]:
            screen.report(problem, "compiling", within=COMPILE_SECONDS)
        with contextlib.suppress(GemmError):
            # the tuner reports kernels that do not compile
            self._compile([x for problem in problems for x in configs(problem)])

    def _known_config(self, problem: Problem) -> list[Any]:
        """The kernels of known entries, whose PTX shows whether they changed."""
        known = self._known(problem)
        with contextlib.suppress(GemmError, TypeError):
            if known is not None:
                made = plan(refined(SPEC, known.fields), problem, self._tuner.bench.record)
                return [step.config for step in made.steps]
        return []

    def _configs(self, problem: Problem) -> list[Any]:
        """The kernels of a problem's next candidates, and of tried ones, which may have changed."""
        known = self._known(problem)
        # the model's choice, a batch of others, and tried candidates
        count = 1 + BATCH + (0 if known is None else known.tried)
        first = [] if known is None else [known.fields]
        with contextlib.suppress(GemmError):
            found = self._tuner.proposals(problem, first, count)
            return [step.config for x in found for step in x.plan.steps]
        return []


def summary(cases: Sequence[Case], database: Database, bench: Bench) -> Table:
    """By suite: known and finished problems, and the best's time over that of the model's choice."""
    table = Table("suite", "problems", "known", "complete", "model against tuned", "worst")
    for suite in dict.fromkeys(case.suite for case in cases):
        of = [case for case in cases if case.suite == suite]
        entries = [database.get(key_of(SPEC, contenders.problem(case), bench.record)) for case in of]
        known: list[Entry] = [x for x in entries if x is not None]
        speeds = [x.us / x.model_us for x in known]
        cells = [f"{results.geometric_mean(speeds):.3f}", f"{min(speeds):.3f}"] if speeds else ["", ""]
        table.add_row(suite, str(len(of)), str(len(known)), str(sum(x.complete for x in known)), *cells)
    return table


def work(args: argparse.Namespace, bench: Bench, beat: Callable[[float], None]) -> int:
    """Run the measuring process."""
    console, database = runs.console(), Database(args.database)
    if not args.anew:
        import_(SHIPPED, database)
    cases = by_gain(_cases(args), ratios(args.known, bench.record.name))
    until = time.monotonic() + args.seconds
    best = seeds(args.known)
    known = {contenders.problem(case): best.get(size_of(vars(case)), ()) for case in cases}
    tuner = Tuner(
        SPEC, bench, database, args.candidates, args.regime, until=until, seeds=lambda of: known.get(of, ())
    )
    with Beating(console, len(cases), beat) as screen, contextlib.suppress(KeyboardInterrupt):
        Work(cases, tuner).run(screen)
    console.print(summary(cases, database, bench))
    return 0


def _cases(args: argparse.Namespace) -> list[Case]:
    return gemm.select(args.suites, args.shapes, args.dtype, args.majors)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    from cutegemm.tuning.race import Regime

    parser = command_line.parser("tune", __doc__)
    gemm.add_problems(parser)
    add = parser.add_argument
    runs.add_budget(parser)
    add("--database", type=Path, required=True, help="tuning database, which is extended")
    add("--anew", action="store_true", help="start empty, not with the entries that ship")
    add("--export", type=Path, help="at the end write the entries to this file, in the format that ships")
    add(
        "--known",
        type=Path,
        nargs="*",
        default=[],
        help="results files that show ratios to cuBLAS, and sweeps whose fastest specs are tried first",
    )
    add("--candidates", type=int, default=CANDIDATES, help=f"maximum per problem; default {CANDIDATES}")
    add("--sample", type=float, default=Regime.sample, help=f"seconds per sample; default {Regime.sample}")
    capped = f"the same for GEMMs at the power cap; default {Regime.capped}"
    add("--capped", type=float, default=Regime.capped, help=capped)
    pairs = f"maximum pairs of rounds without a winner; default {Regime.pairs}"
    add("--pairs", type=int, default=Regime.pairs, help=pairs)
    add("--beat", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if not (args.suites or args.shapes):
        parser.error("nothing to tune: give --suites or --shapes")
    args.regime = Regime(sample=args.sample, capped=args.capped, pairs=max(1, args.pairs))
    return args


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if the measuring process kept failing."""
    args = parse(arguments)
    if args.beat is not None:
        try:
            environment.select(args.device)
            bench = GpuBench()
        except ValueError as error:
            # GemmErrors are ValueErrors too
            print(f"python -m benchmarks.tune: {error}", file=sys.stderr)
            return NEVER
        return work(args, bench, Beat(args.beat).beat)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ends, console = time.monotonic() + args.seconds, runs.console()
    ended, tries = False, 0
    with tempfile.TemporaryDirectory() as folder:
        beat = Path(folder) / "beat"

        def measure() -> int | None:
            nonlocal tries
            tries += 1
            left = ends - time.monotonic()
            if tries > 1 and left < LEAST_SECONDS:
                return 0
            words = [*arguments, "--beat", str(beat)] + ([] if math.isinf(left) else ["--seconds", f"{left}"])
            return watch([sys.executable, "-m", "benchmarks.tune", *words], beat)

        try:
            ended = again(measure, console.print)
        except KeyboardInterrupt:
            console.print("stopped; the same command continues")
            ended = True
    if args.export is not None:
        count = export(args.export, Database(args.database))
        console.print(f"{count} entries, {os.path.getsize(args.export):,} bytes, written to {args.export}")
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
