# SPDX-License-Identifier: Apache-2.0
"""Tests a seeded sample of mutants: whether a test fails if one operator, number, condition or call changes.

    python -m benchmarks.mutants --seed 1 --count 120 --workers 12 --seconds 540 --commit HASH --out mutants.json
    python -m benchmarks.mutants --resume mutants.json --out mutants.json --workers 2

Each mutant changes one place of a package of `changes.PACKAGES` in a worker's copy of the tree. First all test
files of these packages run once without a mutant. Tests that fail then are excluded, and the time and called functions
of each file are recorded. For a mutant, the files that call its function run until one test fails, the fastest first.
If no file calls it, the files of its package run, those that name the module first. Survivors are then tested with
further packages, in the remaining time. The results file is written after every verdict. A mutant that reaches the time
limit is listed as such, with the running test and the number of passed tests.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import command_line
from benchmarks.mutants.changes import PACKAGES, Mutant, sample
from benchmarks.mutants.judge import Baseline, Tree, files_of, judged

SEED, COUNT = 1, 120
# time limits in seconds: a mutant's tests, and one test file without a mutant
LIMIT_SECONDS, FILE_SECONDS = 150.0, 240.0
# remaining seconds below which a mutant's tests are not started
LEAST_SECONDS = 10.0
FIELDS = tuple(x.name for x in dataclasses.fields(Mutant))


def mutant_of(verdict: dict[str, Any]) -> Mutant:
    """The mutant of a verdict."""
    return Mutant(**{name: verdict[name] for name in FIELDS})


class Run:
    """The verdicts of a run, stored in a file that is replaced as a whole.

    Args:
        options: of the command line.
        kept: verdicts of an earlier run of the same sample.
        baseline: of that run.
    """

    def __init__(self, options: argparse.Namespace, kept: list[dict[str, Any]], baseline: Baseline) -> None:
        self.options, self.kept, self.baseline = options, kept, baseline
        self.began = time.monotonic()
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds until the whole run ends."""
        return self.options.seconds - self.took

    @property
    def took(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def add(self, verdict: dict[str, Any]) -> None:
        """Store a verdict, replacing an earlier one on the same mutant, and print it."""
        with self._lock:
            self.kept = [x for x in self.kept if mutant_of(x) != mutant_of(verdict)] + [verdict]
            self.write()
        change = f"{verdict['was']!r:.60} -> {verdict['now']!r:.60}"
        print(f"{verdict['status']:10} {verdict['module']}:{verdict['line']} {change}", flush=True)

    def write(self) -> None:
        """Write the results file."""
        options, counts = self.options, collections.Counter(x["status"] for x in self.kept)
        held = {
            "seed": options.seed, "count": options.count, "limit": options.limit, "commit": options.commit,
            "verdicts": {x: counts[x] for x in ("killed", "survived", "time limit")},
            "left_out": list(self.baseline.broken), "file_seconds": self.baseline.seconds,
            "callers": self.baseline.callers, "mutants": self.kept,
        }  # fmt: skip
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps(held, indent=1) + "\n")
        os.replace(part, options.out)


def measured(run: Run, trees: list[Tree], packages: set[str]) -> Baseline:
    """Run all tests without a mutant, one file at a time per tree."""
    files = sorted({x for package in packages for x in files_of(package)}, key=_bytes, reverse=True)
    waiting = collections.deque(files)
    broken: list[str] = []
    seconds: dict[str, float] = {}
    callers: dict[str, list[str]] = collections.defaultdict(list)

    def work(tree: Tree) -> None:
        traced = tree.path.with_suffix(".calls")
        while waiting and run.left > LEAST_SECONDS and not tree.ended:
            try:
                file = waiting.popleft()
            except IndexError:
                return
            began = time.monotonic()
            traced.unlink(missing_ok=True)
            limit = min(run.options.file_seconds, run.left)
            found = tree.tested([file], limit, first=False, traced=traced)
            if traced.exists():
                for module, name in json.loads(traced.read_text()):
                    callers[f"{module}:{name}"].append(file)
            broken.extend(found.failed)
            if found.timed_out or (found.status and not found.failed):
                # a file that fails as a whole cannot judge mutants
                broken.append(file)
            seconds[file] = round(time.monotonic() - began, 1)

    with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(work, trees))
    wanted = {x: sorted(files) for x, files in sorted(callers.items()) if x.split("/")[0] in packages}
    return Baseline(tuple(sorted(broken)), dict(sorted(seconds.items())), wanted)


def _bytes(file: str) -> tuple[bool, int]:
    # tests of kernels compile, and are the slowest
    return file.startswith("tests/kernels/"), Path(file).stat().st_size


def judge_all(run: Run, trees: list[Tree], wanted: list[Mutant], further: bool = False) -> None:
    """Judge each mutant on the next free tree."""
    waiting = collections.deque(wanted)

    def work(tree: Tree) -> None:
        while waiting and run.left > LEAST_SECONDS and not tree.ended:
            try:
                mutant = waiting.popleft()
            except IndexError:
                return
            verdict = judged(mutant, tree, run.baseline, run.options.limit, further)
            if verdict is not None and not (further and verdict["status"] == "time limit"):
                run.add(verdict)

    with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
        list(pool.map(work, trees))


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = command_line.parser("mutants", __doc__)
    add = parser.add_argument
    add("--seed", type=int, default=SEED)
    add("--count", type=int, default=COUNT, help="mutants of the sample")
    add("--most", type=int, default=10**6, help="mutants to judge now")
    add("--packages", nargs="+", default=list(PACKAGES), choices=PACKAGES, help="judge only mutants of these")
    add("--limit", type=float, default=LIMIT_SECONDS, help="seconds for a mutant's tests")
    add("--file-seconds", type=float, default=FILE_SECONDS, help="seconds for a test file without a mutant")
    add("--seconds", type=float, default=float("inf"), help="seconds for the whole run")
    add("--workers", type=int, default=1)
    add("--commit", default="", help="hash of the tree's commit")
    add("--resume", type=Path, help="results of an earlier run, to continue")
    add("--out", type=Path, required=True, help="results file")
    return parser.parse_args(arguments)


def earlier(path: Path | None, wanted: list[Mutant]) -> tuple[list[dict[str, Any]], Baseline]:
    """The verdicts of an earlier run on mutants of the sample, and its baseline."""
    if path is None or not path.exists():
        return [], Baseline()
    held = json.loads(path.read_text())
    kept = [x for x in held["mutants"] if mutant_of(x) in wanted]
    return kept, Baseline(tuple(held["left_out"]), held["file_seconds"], held.get("callers", {}))


def main(arguments: list[str]) -> int:
    """Judge the sample; returns 1 if a mutant has no verdict yet."""
    options = parse(arguments)
    wanted = sample(options.seed, options.count)
    kept, baseline = earlier(options.resume, wanted)
    known = {mutant_of(x) for x in kept}
    todo = [x for x in wanted if x not in known and x.module.split("/")[0] in options.packages][
        : options.most
    ]
    run = Run(options, kept, baseline)
    with tempfile.TemporaryDirectory(prefix="cutegemm-mutants-", ignore_cleanup_errors=True) as folder:
        cache = Path(folder) / "cache"
        cache.mkdir()
        trees = [Tree(Path(folder) / f"tree_{i}", cache) for i in range(options.workers)]
        end = lambda *_: [x.end() for x in trees]
        signal.signal(signal.SIGTERM, end)
        timer = threading.Timer(min(run.left, threading.TIMEOUT_MAX), end)
        timer.daemon = True
        timer.start()
        try:
            if not baseline.seconds:
                run.baseline = measured(run, trees, {x.module.split("/")[0] for x in todo})
                run.write()
                print(
                    f"left out: {', '.join(run.baseline.broken) or 'nothing'}; {run.took:.0f} s", flush=True
                )
            judge_all(run, trees, todo)
            alive = [x for x in run.kept if x["status"] == "survived" and not x["further"]]
            judge_all(run, trees, [mutant_of(x) for x in alive], further=True)
        finally:
            timer.cancel()
            end()
    run.write()
    print(f"{len(run.kept)} of {len(wanted)} judged", flush=True)
    return int(len(run.kept) < len(wanted))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
