# SPDX-License-Identifier: Apache-2.0
"""Runs many cases in watched processes: a hanging kernel costs one case, and a new worker continues.

Each worker has its own process session, and compiles and runs its share of the cases. It writes a line per case to one
file, and its current stage with a deadline to another. A worker that misses a deadline is killed with its process
group. Its case is reported, and a new worker continues with the next one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutegemm import files

# deadlines in seconds: of starting a worker, compiling a case, running it
START_SECONDS, COMPILE_SECONDS, RUN_SECONDS = 180.0, 180.0, 20.0
POLL_SECONDS = 0.2
# exit status of a worker that needs replacement, since its device is unusable
FRESH = 3
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG (linux/prctl.h)
Entry = dict[str, Any]


@dataclass
class Share:
    """A worker's cases and their progress.

    Attributes:
        folder: of its files.
        entries: {"id": ..., "case" or "drawn": ...}.
        command: starts the worker; its folder is appended.
    """

    folder: Path
    entries: Sequence[Entry]
    command: Sequence[str]
    done: list[Entry] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0

    def start(self) -> None:
        """Start a worker on the remaining cases."""
        self.folder.mkdir(parents=True, exist_ok=True)
        left = self.entries[len(self.done) :]
        (self.folder / "entries.json").write_text(json.dumps(list(left)))
        (self.folder / "results.jsonl").write_text("")
        self._say("starting", START_SECONDS)
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.command, str(self.folder)], start_new_session=True, stdout=log, stderr=log
            )

    def poll(self) -> bool:
        """Collect new results, and restart a worker that hung or died. Returns whether cases remain."""
        process = self.process
        if process is None:
            return False
        ended = process.poll() is not None
        base = [x for x in self.done if x.get("run") != self.restarts]
        found = [dict(x, run=self.restarts) for x in self._results()]
        self.done = [*base, *found]
        if len(self.done) >= len(self.entries):
            self.stop()
            return False
        state = self._state()
        if not ended and time.time() <= state["until"]:
            return True
        self.stop()
        self.done = [*base, *(dict(x, run=self.restarts) for x in self._results())]
        fresh = ended and process.returncode == FRESH and len(self.done) > len(base)
        if len(self.done) < len(self.entries) and not fresh:
            how = f"ended with status {process.returncode}" if ended else f"hung while {state['stage']}"
            words = _last_words(self.folder / "log") if ended else ""
            entry = self.entries[len(self.done)]
            self.done.append({"id": entry["id"], "outcome": "hung" if not ended else "died",
                              "case": state.get("case"), "why": f"{how} {words}".strip(), "run": -1})  # fmt: skip
        self.restarts += 1
        if len(self.done) < len(self.entries):
            self.start()
            return True
        return False

    def stop(self) -> None:
        """Kill the worker and its process group."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            self.process = None

    def _results(self) -> list[Entry]:
        lines = (self.folder / "results.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def _state(self) -> Entry:
        found: Entry = json.loads((self.folder / "state.json").read_text())
        return found

    def _say(self, stage: str, within: float) -> None:
        say(self.folder, stage, within)


def say(folder: Path, stage: str, within: float, case: Any = None) -> None:
    """Write a worker's stage and the seconds until its next message."""
    state = {"stage": stage, "until": time.time() + within, "case": case}
    files.replace(folder / "state.json", json.dumps(state).encode())


def _last_words(path: Path) -> str:
    return path.read_bytes()[-300:].decode(errors="replace")


def farm(
    entries: Sequence[Entry],
    workers: int,
    folder: Path,
    *,
    command: Sequence[str] = (sys.executable, "-m", "benchmarks.combinations", "--worker"),
    seconds: float = float("inf"),
    told: Callable[[list[Entry]], None] = lambda done: None,
) -> list[Entry]:
    """Run cases; returns the results of all that ran in time.

    Args:
        entries: the cases.
        workers: number of processes.
        folder: of their files.
        command: starts a worker; its folder is appended.
        seconds: time after which workers are stopped.
        told: called every few seconds with all results.
    """
    until, said = time.monotonic() + seconds, time.monotonic()
    shares = [Share(folder / f"worker_{i}", entries[i::workers], command) for i in range(workers)]
    shares = [x for x in shares if x.entries]
    gather = lambda: [dict(x) for share in shares for x in share.done]
    try:
        for share in shares:
            share.start()
        while any([share.poll() for share in shares]) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            if time.monotonic() - said > 5:
                said = time.monotonic()
                told(gather())
    finally:
        for share in shares:
            share.stop()
    return gather()


def work(folder: Path, run: Callable[[Entry, Callable[[str], None]], Entry]) -> None:
    """Run a worker: every case in order, with a line of results for each.

    Args:
        folder: of its files.
        run: runs a case, calls back with its stages, and returns the line.
    """
    # a worker dies with the process that watches it
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    limits = {"drawing": 60.0, "compiling": COMPILE_SECONDS, "running": RUN_SECONDS, "comparing": 60.0,
              "emulating": 300.0}  # fmt: skip
    for entry in json.loads((folder / "entries.json").read_text()):
        current: Entry = {}

        def told(stage: str, current: Entry = current, entry: Entry = entry) -> None:
            say(folder, stage, limits[stage], entry.get("case") or current.get("case"))

        told("drawing")
        line = run(entry, told)
        with open(folder / "results.jsonl", "a") as results:
            results.write(json.dumps({"id": entry["id"]} | line) + "\n")
            results.flush()
        if line.get("fresh"):
            os._exit(FRESH)


__all__ = ["Share", "farm", "say", "work"]
