# SPDX-License-Identifier: Apache-2.0
"""Many cases in watched processes: a kernel that never ends costs one case, and the worker behind it goes on.

Each worker is a process session of its own that compiles and runs its share of the cases. It writes a line for every
case into a file, and into another what it does and until when. Whoever does not keep that time is killed with its
group; the case is named, and a new worker goes on behind it.
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

# seconds in which a worker has to come to its first case, compile one, run one, compare one
START_SECONDS, COMPILE_SECONDS, RUN_SECONDS = 180.0, 180.0, 20.0
POLL_SECONDS = 0.2
# status of a worker that asks for a new one, as its device runs nothing more
FRESH = 3
PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG (linux/prctl.h)
Entry = dict[str, Any]


@dataclass
class Share:
    """A worker's cases and how far they are.

    Attributes:
        folder: of its files.
        entries: {"id": ..., "case" or "drawn": ...}.
        command: what runs the worker, to which its folder is added.
    """

    folder: Path
    entries: Sequence[Entry]
    command: Sequence[str]
    done: list[Entry] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0

    def start(self) -> None:
        """Start a worker on what is left."""
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
        """Take what is new; restart a worker that hangs or died; whether anything is left."""
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
        """End the worker and its group."""
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
    """Say what a worker does and within how many seconds it says more."""
    part = folder / "state.part"
    part.write_text(json.dumps({"stage": stage, "until": time.time() + within, "case": case}))
    os.replace(part, folder / "state.json")


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
    """The results of all cases that were run in the time.

    Args:
        entries: what to run.
        workers: processes.
        folder: of their files.
        command: of a worker, to which its folder is added.
        seconds: after which the workers are ended.
        told: called every few seconds with what is done.
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
    """What a worker does: every case in turn, a line of results for each.

    Args:
        folder: its files.
        run: of a case; it gives the line, and calls back with what it does.
    """
    # a worker ends with the process that watches it
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
