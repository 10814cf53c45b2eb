# SPDX-License-Identifier: Apache-2.0
"""What is said while something takes long."""

import io
import re
import sys
import time

import pytest

from cutegemm.compiling import progress


@pytest.fixture
def hurried(monkeypatch):
    """Fifty times less patience than users get."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)


def test_nothing_is_said_of_what_is_quick(capsys):
    """Within the first second the screen stays empty."""
    with progress.announced(lambda: "compiling"):
        pass
    assert capsys.readouterr() == ("", "")


def test_lines_with_the_elapsed_time_come_less_and_less_often(hurried, capsys):
    """What takes long is named on standard error with the seconds so far, again after four times as long."""
    counts = iter(range(100))
    with progress.announced(lambda: f"compiling {next(counts)} of 9"):
        time.sleep(0.25)
    said = capsys.readouterr().err.splitlines()
    assert 2 <= len(said) <= 3
    for i, line in enumerate(said):
        assert re.fullmatch(rf"cutegemm: compiling {i} of 9, \d+ s so far", line)


class Terminal(io.StringIO):
    """A screen that can be rewritten."""

    def isatty(self):
        """It says so."""
        return True


def test_a_terminal_shows_one_line_that_counts(hurried, monkeypatch):
    """On a terminal one line is rewritten with the seconds, and goes away at the end."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.announced(lambda: "compiling"):
        time.sleep(0.5)
    said = sys.stderr.getvalue()
    assert len(set(re.findall(r"cutegemm: compiling, (0\.\d) s", said))) >= 2
    assert "\n" not in said.rstrip("\n") or "\x1b[2K" in said


def test_an_error_passes_through(hurried):
    """What fails meanwhile fails as it would."""
    with pytest.raises(KeyError), progress.announced(lambda: "compiling"):
        raise KeyError("x")
