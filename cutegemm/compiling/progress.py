# SPDX-License-Identifier: Apache-2.0
"""A word on the screen while something takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

# Nothing is said before this many seconds have passed.
QUIET_SECONDS = 1.0
# Where the screen cannot be rewritten, the second line comes after this many times as long, and so on.
GROWTH = 4


@contextlib.contextmanager
def announced(what: Callable[[], str]) -> Iterator[None]:
    """Say on standard error what goes on and how long it has taken, once that is more than `QUIET_SECONDS`.

    A terminal shows one line that counts the seconds and goes away at the end; elsewhere a line is written
    after 1, 4, 16, 64 ... seconds. `what` is called for each line, in another thread.
    """
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: Callable[[], str], done: threading.Event) -> None:
    start, wait = time.monotonic(), QUIET_SECONDS
    while not done.wait(wait):
        if sys.stderr.isatty():
            _count(what, done, start)
            return
        passed = time.monotonic() - start
        print(f"cutegemm: {what()}, {passed:.0f} s so far", file=sys.stderr, flush=True)
        wait = (GROWTH - 1) * passed


def _count(what: Callable[[], str], done: threading.Event, start: float) -> None:
    """Rewrite one line of the terminal every tenth of a second until it is done."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        while True:
            status.update(f"cutegemm: {what()}, {time.monotonic() - start:.1f} s")
            if done.wait(0.1):
                return
