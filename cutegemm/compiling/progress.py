# SPDX-License-Identifier: Apache-2.0
"""Progress on standard error while something takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

# A terminal stays empty for this many seconds, anything else that standard error may be for the second number.
QUIET_SECONDS = 1.0
QUIET_PIPE_SECONDS = 10.0
# Where a line cannot be rewritten, the second comes after this many times as long, and so on.
GROWTH = 4


@contextlib.contextmanager
def announced(what: Callable[[], str]) -> Iterator[None]:
    """Say on standard error what goes on and how long it has taken, once it takes long.

    A terminal shows one line after `QUIET_SECONDS`, which counts the seconds and goes away at the end. A pipe or a file
    gets a whole line after 10, 40, 160 ... seconds. Without standard error nothing is said.

    Args:
        what: called for each line, in another thread.
    """
    screen = sys.stderr
    if screen is None or screen.closed:
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done, screen), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: Callable[[], str], done: threading.Event, screen: TextIO) -> None:
    start, terminal = time.monotonic(), screen.isatty()
    wait = QUIET_SECONDS if terminal else QUIET_PIPE_SECONDS
    # nobody may listen any more
    with contextlib.suppress(OSError, ValueError):
        while not done.wait(wait):
            if terminal:
                _count(what, done, start)
                return
            passed = time.monotonic() - start
            # one call a line: several processes may share the pipe
            screen.write(f"cutegemm: {what()}, {passed:.0f} s so far\n")
            screen.flush()
            wait = (GROWTH - 1) * passed


def _count(what: Callable[[], str], done: threading.Event, start: float) -> None:
    """Rewrite one line of the terminal every tenth of a second until it is done."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        while True:
            status.update(f"cutegemm: {what()}, {time.monotonic() - start:.1f} s")
            if done.wait(0.1):
                return
