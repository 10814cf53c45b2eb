# SPDX-License-Identifier: Apache-2.0
"""Measures the jobs of `benchmarks.sweep_draws`: all configs of a problem briefly, then the best of them longer.

    python -m benchmarks.sweep_jobs --jobs jobs.json --out sweep.jsonl --seconds 500 --compile

Kernels come from CUTEGEMM_CACHE_DIR; a config without its kernel there is not timed. With `--compile`, other processes
compile missing kernels in the order of the jobs, and each problem waits for its kernels. A line is written after every
problem, and the same command continues. One process measures and another watches it. A line is also written before each
config, so a restarted process knows which config hung and skips it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    command_line,
    contenders,
    correctness,
    environment,
    inputs,
    results,
    sweep_draws,
    timing,
    watchdog,
)
from benchmarks.inputs import InputSet
from benchmarks.results import CASE_FIELDS, Case, Row
from cutegemm.compiling import kernel_cache
from cutegemm.compiling.jobs import compile_parallel
from cutegemm.config import config_from_data
from cutegemm.database.entry import refined
from cutegemm.errors import GemmError
from cutegemm.planning.planner import plan
from cutegemm.running.backends.launcher import current_device
from cutegemm.tuning.timing import Sampler

# seconds per sample and samples of all configs, the same of the finalists, and their number
SCREEN, SCREENED = 0.008, 2
FINAL, FINALS = 0.025, 6
FINALISTS = 6
PREHEAT = 0.1
# time limits in seconds of a config's first call and of a sample
CALL_SECONDS, CASE_SECONDS = 15.0, 60.0
# cached bytes of torch beyond which the cache is emptied
MOST_KEPT = 60 << 30
# kernels compiled out of order at most; polling interval in seconds; rounds of compiling
AHEAD, WAIT_SECONDS, ATTEMPTS = 64, 0.3, 3
# processes that a problem may crash before it is skipped
MOST_BEGUN = 2
Contenders = dict[str, Callable[[InputSet], Any]]


def lines(path: Path) -> list[Row]:
    """The lines of a file, without incomplete ones."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


class Bench:
    """Measures one problem after another.

    Args:
        out: file of lines.
        beat: heartbeat of this process.
        sensors: of the GPU.
        device: captures graphs and times them.
        memory: torch device of the operands.
        build: makes a contender.
        ready: whether its kernels are compiled.
    """

    def __init__(
        self,
        out: Path,
        beat: watchdog.Beat,
        sensors: timing.Readable | None,
        *,
        device: timing.Replayer | None = None,
        memory: str = "cuda",
        build: Callable[..., timing.Contender] = contenders.cutegemm_contender,
        ready: Callable[[Case, Any], bool] | None = None,
    ) -> None:
        self._out, self._beat, self._sensors = out, beat, sensors
        self._device, self._memory = device or timing.Device(), memory
        self._build, self._ready = build, ready or _ready
        # the last config that each ended process tried
        tried = [(x["i"], x["trying"]) for x in lines(out) if "trying" in x]
        self._skipped = set(dict(tried).items())

    def _say(self, line: Row) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def measure(self, place: int, job: Row) -> None:
        """Measure a problem and write its line."""
        self._beat.beat(CASE_SECONDS)
        began = time.monotonic()
        self._say({"i": place, "begun": True})
        case = _case(job)
        sets = inputs.make_sets(case, self._memory, inputs.set_count(case))
        right, bad = self._right(place, job, case, sets[0])
        entries = [
            timing.sampler(timing.Contender(name, call), sets, self._device, SCREEN)
            for name, call in right.items()
        ]
        self._beat.beat(CASE_SECONDS)
        timing.preheat(entries, self._device, PREHEAT)
        self._sample(entries, SCREENED, place, None)
        first = {x.name: _digits(x.us) for x in entries}
        best = sorted(entries, key=lambda x: min(x.us))[:FINALISTS]
        longer = [x for x in entries if x in best or x.name in (contenders.BASELINE, "0")]
        for x in longer:
            x.replays, x.us = math.ceil(x.replays * FINAL / SCREEN), []
        self._sample(longer, FINALS, place + 1, self._sensors)
        self._say(
            {
                "i": place,
                "case": {name: job[name] for name in (*CASE_FIELDS, "seed")},
                "first": first,
                "last": {x.name: _digits(x.us) for x in longer},
                "clock": {x.name: _clock(x) for x in longer if x.readings},
                "bad": bad,
                "s": round(time.monotonic() - began, 1),
            }
        )

    def _sample(
        self, entries: list[Sampler], rounds: int, seed: int, sensors: timing.Readable | None
    ) -> None:
        beat = partial(self._beat.beat, CASE_SECONDS)
        timing.take_samples(entries, rounds, self._device, seed=seed, sensors=sensors, before=beat)

    def _right(self, place: int, job: Row, case: Case, one: InputSet) -> tuple[Contenders, dict[str, str]]:
        """cuBLAS and the configs whose D is correct, by index, and the errors of the others."""
        cublas = contenders.make(contenders.BASELINE, case).call
        check = _Reference(one, cublas)
        found: Contenders = {contenders.BASELINE: cublas}
        bad: dict[str, str] = {}
        given = sweep_draws.base(case)
        for name, config in ((str(i), x) for i, x in enumerate(job["configs"])):
            if (place, name) in self._skipped:
                bad[name] = "hung"
                continue
            try:
                spec = refined(given, config["fields"])
                if not self._ready(case, spec):
                    bad[name] = "not compiled"
                    continue
                self._say({"i": place, "trying": name})
                self._beat.beat(CALL_SECONDS)
                call = self._build(case, spec, name).call
                check(call, one)
                found[name] = call
            except (ValueError, RuntimeError, correctness.WrongResult) as error:
                bad[name] = f"{type(error).__name__}: {str(error)[:200]}"
                if "CUDA" in bad[name]:
                    # the context is lost; the next process skips this config
                    raise
        return found, bad


class _Reference:
    """Compares all of D with cuBLAS's D, whose sampled rows and columns are checked against fp64."""

    def __init__(self, one: InputSet, cublas: Callable[[InputSet], Any]) -> None:
        correctness.check(cublas, one)
        self._d = one.out.clone()
        self._scale = float(self._d.float().norm())

    def __call__(self, call: Callable[[InputSet], Any], one: InputSet) -> None:
        one.out.fill_(math.nan)
        call(one)
        error = float((one.out - self._d).float().norm()) / self._scale
        bound = 2 * correctness.FROBENIUS_BOUND[one.out.dtype]
        if not error <= bound:
            raise correctness.WrongResult(f"relative Frobenius error {error:.2e} of cuBLAS's D")


def _digits(us: list[float]) -> list[float]:
    return [round(x, 4) for x in us]


def _clock(entry: Sampler) -> list[float]:
    """Median clock in MHz and power in W."""
    clocks, watts = zip(*entry.readings, strict=True)
    return [sorted(clocks)[len(clocks) // 2], round(sorted(watts)[len(watts) // 2], 1)]


def _ready(case: Case, spec: Any) -> bool:
    made = plan(spec, contenders.problem(case), current_device()[1])
    return all(kernel_cache.entry(x.config).exists() for x in made.steps)


def left(jobs: list[Row], out: Path) -> Iterator[tuple[int, Row]]:
    """Jobs without times, except those that crashed too many processes."""
    said = lines(out)
    done = {x["i"] for x in said if "first" in x}
    begun = Counter(x["i"] for x in said if "begun" in x)
    return ((i, x) for i, x in enumerate(jobs) if i not in done and begun[i] < MOST_BEGUN)


class Compiling:
    """Kernels that other processes compile in order.

    Args:
        jobs: the file of jobs.
        running: a file that exists while they compile.
    """

    def __init__(self, jobs: Path, running: Path) -> None:
        self._running = running
        self._configs = [config_from_data(x) for x in json.loads(jobs.read_text())["kernels"]]
        self._paths = [kernel_cache.entry(x) for x in self._configs]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Compiling:
        """The compilation of parsed options."""
        return cls(args.jobs, args.out.with_name(args.out.name + ".compiling"))

    def __call__(self, workers: int) -> None:
        """Compile missing kernels."""
        try:
            for _ in range(ATTEMPTS):
                missing = [x for x, path in zip(self._configs, self._paths, strict=True) if not path.exists()]
                print(f"{len(self._configs)} kernels, {len(missing)} to compile", flush=True)
                if not missing:
                    break
                with contextlib.suppress(GemmError):
                    # a failing kernel ends its process; the next round compiles the rest
                    compile_parallel(missing, min(workers, len(missing)))
        finally:
            self._running.unlink(missing_ok=True)

    @contextlib.contextmanager
    def begun(self, command: list[str]) -> Iterator[None]:
        """Run a compiling command within the context, and kill it at the end."""
        self._running.touch()
        process = subprocess.Popen(command, start_new_session=True)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, job: Row, beat: watchdog.Beat, until: float) -> None:
        """Wait for a problem's kernels while they may still be compiled."""
        needed = sorted({place for x in job["configs"] for place in x["kernels"]})
        while time.time() < until and self._running.exists():
            missing = [x for x in needed if not self._paths[x].exists()]
            # if later kernels exist, a missing earlier one has failed
            beyond = self._paths[missing[-1] + AHEAD : missing[-1] + 2 * AHEAD] if missing else ()
            if not missing or any(x.exists() for x in beyond):
                return
            beat.beat(CASE_SECONDS)
            time.sleep(WAIT_SECONDS)


def child(args: argparse.Namespace) -> int:
    """Measure the remaining jobs until the time is over."""
    beat = watchdog.Beat(args.out.with_name(args.out.name + ".beat"))
    sensors = environment.sensors(0)
    if not lines(args.out):
        args.out.write_text(json.dumps({"environment": environment.record(args.commit, sensors)}) + "\n")
    bench = Bench(args.out, beat, sensors)
    jobs = json.loads(args.jobs.read_text())["jobs"]
    compiling = Compiling.of(args) if args.compile else None
    for i, job in left(jobs, args.out):
        if compiling is not None:
            compiling.wait(job, beat, args.until)
        if time.time() > args.until:
            break
        if torch.cuda.memory_reserved() > MOST_KEPT:
            torch.cuda.empty_cache()
        bench.measure(i, job)
        print(_told(job, lines(args.out)[-1]), flush=True)
    return 0


def _case(job: Row) -> Case:
    return Case(**{name: job[name] for name in CASE_FIELDS})


def _told(job: Row, line: Row) -> str:
    us = {name: min(x) for name, x in (line["first"] | line["last"]).items()}
    cublas, ours = us.pop(contenders.BASELINE), us
    best = cublas / min(ours.values(), default=math.inf)
    own = f", own {cublas / ours['0']:.3f}" if "0" in ours else ""
    size = results.size_of(job)
    measured = f"{len(ours)} configs in {line['s']} s, {len(line['bad'])} bad"
    return f"{line['i']} {job['suite']} {size}: {measured}; of cuBLAS {best:.3f}{own}"


def main(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_line.parser("sweep_jobs", __doc__)
    add = parser.add_argument
    add("--jobs", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("--commit", default="unknown", help="hash of the commit that is measured")
    add("--seconds", type=float, default=math.inf)
    add("--compile", action="store_true", help="compile missing kernels while others are measured")
    add("--workers", type=int, default=os.cpu_count() or 1, help="compiling processes")
    add("--until", type=float, help=argparse.SUPPRESS)
    add("--only-compile", action="store_true", help="compile missing kernels and measure nothing")
    args = parser.parse_args(arguments)
    with contenders.no_database():
        return _run(args, arguments)


def _run(args: argparse.Namespace, arguments: list[str]) -> int:
    """Compile, measure in this process, or start processes that do both."""
    if args.until is not None:
        return child(args)
    if args.only_compile:
        Compiling.of(args)(args.workers)
        return 0
    until = time.time() + args.seconds
    command = [sys.executable, "-m", "benchmarks.sweep_jobs", *arguments]
    beat = args.out.with_name(args.out.name + ".beat")
    with contextlib.ExitStack() as stack:
        if args.compile:
            stack.enter_context(Compiling.of(args).begun([*command, "--only-compile"]))
        done = watchdog.again(lambda: watchdog.watch([*command, "--until", str(until)], beat), print, most=8)
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
