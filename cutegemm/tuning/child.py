# SPDX-License-Identifier: Apache-2.0
"""Tuning in a child process, because a process cannot stop a kernel that it launched and that never ends.

The child reports each step and the longest time until its next report. A child that exceeds it, or dies, is killed with
its process group. The database names the candidate that ran; it is not tried again, and another child continues.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from rich.console import Console

from cutegemm.database import Database
from cutegemm.families.family import load
from cutegemm.problems import Problem
from cutegemm.spec import GemmSpec
from cutegemm.tuning.outcomes import INTERRUPTED, REFUSED, Outcome, Screen
from cutegemm.tuning.race import Regime
from cutegemm.tuning.tuner import COMPILE_SECONDS, Tuner, each

GPU = "cutegemm.tuning.gpu:GpuBench"
# children that may hang or die on one problem before it is refused
LIVES = 16
# time in which an interrupted child stores its results
STOP_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """The work of a child; fields without a comment are as in `Tuner`."""

    spec: GemmSpec
    problems: tuple[Problem, ...]  # that are left
    database: Path
    most: int
    regime: Regime
    again: bool
    until: float
    device: int | None = None  # torch's index of the GPU; None is the current one
    bench: str = GPU  # "module:name" of the bench's class
    resumed: frozenset[Problem] = frozenset()


class ReportingScreen(Screen):
    """A screen that sends its reports to the parent."""

    def __init__(self, to: Connection) -> None:
        super().__init__(Console(quiet=True), 0)
        self._to = to

    def report(self, problem: Problem, text: str, *, within: float = math.inf) -> None:
        """See `Screen`."""
        self._to.send((problem, text, within))

    def done(self, outcome: Outcome) -> None:
        """See `Screen`."""
        self._to.send(outcome)


def tuned(job: Job, screen: Screen) -> list[Outcome]:
    """The outcomes of a job's problems, measured in child processes."""
    done: list[Outcome] = []
    lives = dict.fromkeys(job.problems, LIVES)
    while left := tuple(x for x in job.problems if x not in {y.problem for y in done}):
        outcomes, problem, why = _one(dataclasses.replace(job, problems=left), screen)
        done += outcomes
        if why is None or any(x.status == INTERRUPTED for x in outcomes):
            return done
        problem = left[0] if problem is None else problem
        job = dataclasses.replace(job, resumed=job.resumed | {problem})
        lives[problem] -= 1
        screen.report(problem, f"the measuring process {why}; another one continues")
        if not lives[problem]:
            outcome = Outcome(problem, REFUSED, why=f"the measuring process {why} {LIVES} times")
            screen.done(outcome)
            done.append(outcome)
    return done


def _one(job: Job, screen: Screen) -> tuple[list[Outcome], Problem | None, str | None]:
    """The result of one child: outcomes, its current problem, and how it failed (None if it did not)."""
    receive, send = Pipe(duplex=False)
    paths = os.pathsep.join(x for x in sys.path if x)
    process = subprocess.Popen(
        [sys.executable, "-m", "cutegemm.tuning.child", str(send.fileno())],
        stdin=subprocess.PIPE, pass_fds=[send.fileno()], start_new_session=True,
        env=os.environ | {"PYTHONPATH": paths},
    )  # fmt: skip
    send.close()
    outcomes: list[Outcome] = []
    at: list[Problem] = []
    try:
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(pickle.dumps(job))
        why = _listen(receive, screen, outcomes, at)
        if why is None and process.wait() != 0:
            why = f"ended with status {process.returncode}"
        return outcomes, at[-1] if at else None, why
    except BrokenPipeError:
        return outcomes, None, f"ended with status {process.wait()}"
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        _listen(receive, screen, outcomes, at, STOP_SECONDS)
        return outcomes, None, None
    finally:
        receive.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _listen(
    receive: Connection, screen: Screen, outcomes: list[Outcome], at: list[Problem], most: float = math.inf
) -> str | None:
    """Receive a child's reports until it ends or exceeds its time; returns how it failed (None if it did not)."""
    until = time.monotonic() + min(COMPILE_SECONDS, most)
    text = "starting"
    while True:
        left = until - time.monotonic()
        if not receive.poll(None if left == math.inf else max(0.0, left)):
            return f"hung while {text}"
        try:
            report: Any = receive.recv()
        except EOFError:
            return None
        if isinstance(report, Outcome):
            outcomes.append(report)
            screen.done(report)
            within, text = COMPILE_SECONDS, "planning"
        else:
            problem, text, within = report
            at.append(problem)
            screen.report(problem, text)
        until = time.monotonic() + min(within, most)


def main(arguments: list[str]) -> int:
    """Run the job on standard input in a child."""
    job: Job = pickle.loads(sys.stdin.buffer.read())
    if job.device is not None:
        import torch

        torch.cuda.set_device(job.device)
    tuner = Tuner(
        job.spec, load(job.bench)(), Database(job.database), job.most, job.regime, until=job.until,
        resumed=job.resumed,
    )  # fmt: skip
    with Connection(int(arguments[0]), readable=False) as to:
        for _ in each(tuner, job.problems, ReportingScreen(to), job.again):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
