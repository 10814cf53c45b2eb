# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one mutant in a copy of the tree, and gives the verdict."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.mutants import calls, watch
from benchmarks.mutants.changes import ROOT, Mutant, function_at

# test folders by package, and further ones for surviving mutants
FOLDERS = {
    "kernels": ("kernels",),
    "planning": ("planning", "config", "families"),
    "plans": ("planning", "plans", "running"),
    "request": ("planning", "config", "families"),
    "running": ("running", "gemm", "contract"),
}
FURTHER = {
    "kernels": ("running", "gemm"),
    "planning": ("gemm", "kernels"),
    "plans": ("gemm", "kernels"),
    "request": ("gemm", "kernels"),
    "running": ("kernels",),
}
SKIPPED = (".git", ".gpu", ".ci", "__pycache__", ".*_cache", ".hypothesis", ".venv", "build", "dist", "site")
SLOWEST = 1e9  # seconds of a file whose time is unknown


@dataclass
class Outcome:
    """The outcome of a test session.

    Attributes:
        seconds: of each test that passed or was skipped.
        failed: failed tests in order, including files that cannot be imported.
        running: the test that had started but not ended.
        timed_out: whether the session was killed.
        status: exit status of pytest; negative for a signal.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    running: str = ""
    timed_out: bool = False
    status: int = 0


@dataclass(frozen=True)
class Baseline:
    """The results without a mutant.

    Attributes:
        broken: failing tests.
        seconds: of each test file.
        callers: test files by the functions that they call, as "module:function".
    """

    broken: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    callers: dict[str, list[str]] = field(default_factory=dict)

    def files(self, mutant: Mutant) -> list[str]:
        """The test files that call a mutant's function, fastest first; empty if there are none."""
        source = (ROOT / "cutegemm" / mutant.module).read_text()
        found = self.callers.get(f"{mutant.module}:{function_at(source, mutant.line)}", [])
        return sorted(found, key=lambda x: self.seconds.get(x, SLOWEST))


class Tree:
    """A copy of the tree in which mutants are tested one by one.

    Args:
        folder: must not exist yet.
        cache: of compiled kernels, whose keys contain a hash of the kernel's sources.

    Attributes:
        ended: whether no further session may start.
    """

    def __init__(self, folder: Path, cache: Path) -> None:
        self.path, self.cache = folder, cache
        self.log = folder.with_suffix(".log")
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*SKIPPED))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self.ended = False

    def write(self, module: str, data: bytes) -> None:
        """Replace a module's source, and delete its byte code, which may match the old time and length."""
        path = self.path / "cutegemm" / module
        for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            old.unlink()
        path.write_bytes(data)

    def tested(
        self,
        tests: Sequence[str],
        limit: float,
        *,
        without: Sequence[str] = (),
        first: bool = True,
        traced: Path | None = None,
    ) -> Outcome:
        """Run tests except those of `without`, until the `first` failure or the limit in seconds.

        The called functions are written to the file `traced`, if given.
        """
        command = [sys.executable, "-m", "pytest", "-q", "-p", watch.__name__, "-p", "no:cacheprovider"]
        command += [*["-x"] * first, *(f"--deselect={x}" for x in without), *tests]
        if traced is not None:
            command += ["-p", calls.__name__]
        others = [x for x in os.environ.get("PYTHONPATH", "").split(":") if x and Path(x).resolve() != ROOT]
        environment = os.environ | {
            "PYTHONPATH": ":".join((str(self.path), *others)),
            "CUTEGEMM_TEST_CACHE_DIR": str(self.cache),
            "CUTEGEMM_COMBINATIONS_SEED": os.environ.get("CUTEGEMM_COMBINATIONS_SEED", "0"),
            "CUDA_VISIBLE_DEVICES": "",
            watch.VARIABLE: str(self.log),
        }
        if traced is not None:
            # a cached kernel would hide calls of its generators
            del environment["CUTEGEMM_TEST_CACHE_DIR"]
            environment[calls.VARIABLE] = str(traced)
        self.log.write_bytes(b"")
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self.ended:
                    return Outcome(timed_out=True)
                # a mutant may hang in native code or leave child processes behind
                self._process = subprocess.Popen(
                    command, cwd=self.path, env=environment, stdout=said, stderr=said, start_new_session=True
                )
            try:
                status, timed_out = self._process.wait(limit), False
            except subprocess.TimeoutExpired:
                status, timed_out = 0, True
            self._kill()
        return self._read(status, timed_out or self.ended)

    def end(self) -> None:
        """Kill the running session; no further one starts."""
        with self._lock:
            self.ended = True
        self._kill()

    def _kill(self) -> None:
        with self._lock:
            if self._process is not None:
                try:
                    os.killpg(self._process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                self._process.wait()

    def _read(self, status: int, timed_out: bool) -> Outcome:
        found = Outcome(status=status, timed_out=timed_out)
        for text in self.log.read_text().splitlines(keepends=True):
            if not text.endswith("\n"):
                continue
            line = json.loads(text)
            found.running = "" if "outcome" in line else line["id"]
            if line.get("outcome") == "failed":
                found.failed.append(line["id"])
            elif "outcome" in line:
                found.seconds[line["id"]] = line["seconds"]
        return found


def files_of(package: str, further: bool = False) -> list[str]:
    """The test files of a package, or the further ones."""
    folders = [ROOT / "tests" / x for x in (FURTHER if further else FOLDERS)[package]]
    return [str(x.relative_to(ROOT)) for folder in folders for x in sorted(folder.glob("test_*.py"))]


def tests_of(module: str, baseline: Baseline, further: bool = False) -> list[str]:
    """The test files of a module: those with its name, then those that mention it, fastest first."""
    package, stem = module.split("/")[0], Path(module).stem
    word = re.compile(rf"\b{stem}\b")
    own = f"tests/{package}/"

    def order(file: str) -> tuple[bool, bool, bool, float]:
        named = bool(word.search((ROOT / file).read_text()))
        seconds = baseline.seconds.get(file, SLOWEST)
        return stem not in Path(file).stem, not named, not file.startswith(own), seconds

    return sorted(files_of(package, further), key=order)


def judged(
    mutant: Mutant, tree: Tree, baseline: Baseline, limit: float, further: bool = False
) -> dict[str, object] | None:
    """The verdict of the tests, or of the further ones, on a mutant; None if the run ended before."""
    began = time.monotonic()
    was = (tree.path / "cutegemm" / mutant.module).read_bytes()
    tree.write(mutant.module, was[: mutant.start] + mutant.now.encode() + was[mutant.end :])
    try:
        tests = [] if further else baseline.files(mutant)
        tests = tests or tests_of(mutant.module, baseline, further)
        found = tree.tested(tests, limit, without=baseline.broken)
    finally:
        tree.write(mutant.module, was)
    if found.failed:
        status, by = "killed", found.failed[0]
    elif found.timed_out:
        if tree.ended:
            return None
        status, by = "time limit", found.running
    elif found.status:
        status, by = "killed", found.running or f"pytest ended with status {found.status}"
    else:
        status, by = "survived", ""
    seconds = round(time.monotonic() - began, 1)
    line = {"status": status, "by": by, "passed": len(found.seconds), "seconds": seconds, "further": further}
    return dataclasses.asdict(mutant) | line


__all__ = ["Baseline", "Outcome", "Tree", "files_of", "judged", "tests_of"]
