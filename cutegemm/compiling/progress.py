# SPDX-License-Identifier: Apache-2.0
"""Progress messages on standard error during long operations."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

# Seconds before the first message on a terminal, and on a pipe or file.
QUIET_SECONDS = 1.0
QUIET_PIPE_SECONDS = 10.0
# On a pipe each message comes after this many times as long as the one before.
GROWTH = 4


@contextlib.contextmanager
def announced(what: Callable[[], str]) -> Iterator[None]:
    """Show on standard error what runs and for how long, once it takes long.

    A terminal shows one line after `QUIET_SECONDS`, which counts the seconds and disappears at the end. A pipe or a
    file gets a whole line after 10, 40, 160 ... seconds.

    Args:
        what: called for each line, in another thread.
    """
    screen = sys.stderr
    if screen is None or screen.closed:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_show, args=(what, done, screen), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _show(what: Callable[[], str], done: threading.Event, screen: TextIO) -> None:
    start, terminal = time.monotonic(), screen.isatty()
    wait = QUIET_SECONDS if terminal else QUIET_PIPE_SECONDS
    # the reader may have closed the pipe
    with contextlib.suppress(OSError, ValueError):
        while not done.wait(wait):
            if terminal:
                _count(what, done, start)
                return
            passed = time.monotonic() - start
            # one write per line, since several processes may share the pipe
            screen.write(f"cutegemm: {what()}, {passed:.0f} s so far\n")
            screen.flush()
            wait = (GROWTH - 1) * passed


def _count(what: Callable[[], str], done: threading.Event, start: float) -> None:
    """Rewrite one line of the terminal every tenth of a second."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        while True:
            status.update(f"cutegemm: {what()}, {time.monotonic() - start:.1f} s")
            if done.wait(0.1):
                return
