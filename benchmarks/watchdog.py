# SPDX-License-Identifier: Apache-2.0
"""A process that is watched: a kernel that never ends cannot be stopped from within the process that launched it.

The watched process says in a file that it lives and within how many seconds it will say so again (`Beat`); who watches
ends it when it does not, and may start it anew (`watch`).
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

POLL_SECONDS = 0.2
# in which a process has to say its first word: imports, the first CUDA call
START_SECONDS = 120.0
# status of a process that said why it cannot work
NEVER = 2
# in which a process that is asked to stop keeps what it knows
STOP_SECONDS = 60.0


class Beat:
    """What the watched process says.

    Args:
        path: of the file.
        parent: process id of who watches; None is whoever that is now.
    """

    def __init__(self, path: Path, parent: int | None = None) -> None:
        self.path, self._parent = path, os.getppid() if parent is None else parent

    def beat(self, within: float = math.inf) -> None:
        """Say that this process lives, and within how many seconds it says so again.

        Raises:
            KeyboardInterrupt: nobody watches any more.
        """
        if os.getppid() != self._parent:
            raise KeyboardInterrupt
        part = self.path.with_name(f"{self.path.name}.part")
        part.write_text(f"{time.time() + within}")
        os.replace(part, self.path)


def watch(
    command: Sequence[str], path: Path, start: float = START_SECONDS, stop: float = STOP_SECONDS
) -> int | None:
    """Run a command that beats into a file; its exit status, None where it was ended because it did not.

    It has a process session of its own, so that Ctrl-C reaches it once, from here.

    Raises:
        KeyboardInterrupt: as this process was asked to stop; the command has been, and has ended.
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
    """Run something until it ends well, at most so often after the first; whether it did."""
    for left in range(most, -1, -1):
        status = run()
        if status in (0, NEVER):
            return status == 0
        how = "hung and was ended" if status is None else f"ended with status {status}"
        say(f"the measuring process {how}; {'it is started again' if left else 'it is not started again'}")
    return False
