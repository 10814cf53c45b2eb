# SPDX-License-Identifier: Apache-2.0
"""Progress messages of commands that take long."""

import io
import re
import sys
import threading
import time
import types

import pytest

from cutegemm.compiling import progress
from tests.support.patience import PATIENCE


@pytest.fixture
def hurried(monkeypatch):
    """Far less patience than users get."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(progress, "QUIET_PIPE_SECONDS", 0.02)


class Pipe(io.StringIO):
    """Keeps each write apart, as the readers of a pipe that several processes share see them."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.third = threading.Event()

    def write(self, text):
        """One write."""
        self.writes.append(text)
        if len(self.writes) == 3:
            self.third.set()
        return len(text)


def test_nothing_is_said_of_what_is_quick(capsys):
    """A terminal stays empty for a second, a pipe for ten."""
    assert (progress.QUIET_SECONDS, progress.QUIET_PIPE_SECONDS) == (1, 10)
    with progress.announced(lambda: "compiling"):
        pass
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_whole_lines_less_and_less_often(hurried, monkeypatch):
    """Each line is one write, so that those of several processes never mix; the waits between them quadruple."""
    pipe, waits, counts = Pipe(), [], iter(range(100))

    class Watched(threading.Event):
        """Notes for how long the teller waits."""

        def wait(self, timeout=None):
            """As an event does."""
            waits.append(timeout)
            return super().wait(timeout)

    monkeypatch.setattr(sys, "stderr", pipe)
    monkeypatch.setattr(progress, "threading", types.SimpleNamespace(Event=Watched, Thread=threading.Thread))
    with progress.announced(lambda: f"compiling {next(counts)} of 9"):
        assert pipe.third.wait(PATIENCE)
    for i, line in enumerate(pipe.writes):
        assert re.fullmatch(rf"cutegemm: compiling {i} of 9, \d+ s so far\n", line)
    first, second, third = waits[:3]
    assert first == 0.02 and second >= 3 * first and third >= 3 * (first + second)


@pytest.mark.parametrize("closed", [False, True])
def test_without_standard_error_nothing_is_said(hurried, monkeypatch, closed):
    """A service without standard error, or one that closed it, goes on in silence."""
    stream = io.StringIO() if closed else None
    if closed:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.announced(lambda: pytest.fail("nobody listens")):
        time.sleep(0.1)


def test_a_reader_that_goes_away_is_no_error(hurried, monkeypatch):
    """A pipe that nobody reads any more ends the progress, not the work."""
    tried = threading.Event()

    class Broken(io.StringIO):
        """A pipe without a reader."""

        def write(self, text):
            """Fails."""
            tried.set()
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    with progress.announced(lambda: "compiling"):
        assert tried.wait(PATIENCE)
    assert failures == []


class Terminal(io.StringIO):
    """A screen that can be rewritten."""

    def __init__(self):
        super().__init__()
        self.shown = set()
        self.counted = threading.Event()

    def write(self, text):
        """Notes the seconds that it shows."""
        self.shown |= set(re.findall(r"cutegemm: compiling, (\d+\.\d) s", text))
        if len(self.shown) >= 2:
            self.counted.set()
        return super().write(text)

    def isatty(self):
        """It says so."""
        return True


def test_a_terminal_shows_one_line_that_counts(hurried, monkeypatch):
    """On a terminal one line is rewritten with the seconds, and goes away at the end."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.announced(lambda: "compiling"):
        assert sys.stderr.counted.wait(PATIENCE)
    said = sys.stderr.getvalue()
    assert "\n" not in said.rstrip("\n") or "\x1b[2K" in said


def test_an_error_passes_through(hurried):
    """What fails meanwhile fails as it would."""
    with pytest.raises(KeyError), progress.announced(lambda: "compiling"):
        raise KeyError("x")
