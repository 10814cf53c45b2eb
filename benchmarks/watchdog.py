# SPDX-License-Identifier: Apache-2.0
"""Watches a process from outside, since a process cannot stop a hanging kernel that it launched.

The watched process writes heartbeats to a file, each with a deadline for the next one (`Beat`). The watcher kills the
process after a missed deadline, and may restart it (`watch`, `again`).
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cutegemm import files

POLL_SECONDS = 0.2
# deadline of the first heartbeat: imports, the first CUDA call
START_SECONDS = 120.0
# exit status of a process that reported why it cannot work
NEVER = 2
# time in which a process that is asked to stop saves its state
STOP_SECONDS = 60.0


class Beat:
    """The heartbeat of a watched process.

    Args:
        path: of the file.
        parent: process id of the watcher; None is the current parent.
    """

    def __init__(self, path: Path, parent: int | None = None) -> None:
        self.path, self._parent = path, os.getppid() if parent is None else parent

    def beat(self, within: float = math.inf) -> None:
        """Write a heartbeat; the next one follows within so many seconds.

        Raises:
            KeyboardInterrupt: the watcher has ended.
        """
        if os.getppid() != self._parent:
            raise KeyboardInterrupt
        files.replace(self.path, f"{time.time() + within}".encode())


def watch(
    command: Sequence[str], path: Path, start: float = START_SECONDS, stop: float = STOP_SECONDS
) -> int | None:
    """Run a command that writes heartbeats. Returns its exit status, or None if it missed a deadline and was killed.

    The command has its own process session, so Ctrl-C reaches it only through this function.

    Raises:
        KeyboardInterrupt: this process was interrupted; the command has been interrupted too, and has ended.
    """
    path.write_text(f"{time.time() + start}")
    process = subprocess.Popen(command, start_new_session=True)
    try:
        while process.poll() is None:
            if time.time() > _until(path):
                return None
            time.sleep(POLL_SECONDS)
        return process.returncode
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(stop)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _until(path: Path) -> float:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return math.inf


def again(run: Callable[[], int | None], say: Callable[[str], None], *, most: int = 3) -> bool:
    """Repeat `run` until it succeeds, at most `most` times after the first. Returns whether it did."""
    for left in range(most, -1, -1):
        status = run()
        if status in (0, NEVER):
            return status == 0
        how = "hung and was killed" if status is None else f"ended with status {status}"
        say(f"the measuring process {how}; {'it is restarted' if left else 'it is not restarted'}")
    return False
