# SPDX-License-Identifier: Apache-2.0
"""A watched process: it may take its time as long as it says so; silent it is ended, and stopped it ends well."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from benchmarks import watchdog
from benchmarks.watchdog import Beat, again, watch

SAYS = "import sys, time, pathlib; from benchmarks.watchdog import Beat; beat = Beat(pathlib.Path(sys.argv[1])).beat\n"


def command(path, text):
    """A process that beats into a file."""
    return [sys.executable, "-c", SAYS + text, str(path)]


def test_a_status_is_passed_on(tmp_path):
    """What ends by itself gives its status, however long it had asked for; its session is its own."""
    text = "import os; beat(1000); sys.exit(7 if os.getsid(0) == os.getpid() else 8)"
    assert watch(command(tmp_path / "beat", text), tmp_path / "beat") == 7


def test_a_silent_process_is_ended(tmp_path):
    """It said it would be heard within a moment and hangs: it is killed at once, as a hung kernel can only be."""
    hangs = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); beat(0.1); time.sleep(1e6)"
    assert watch(command(tmp_path / "beat", hangs), tmp_path / "beat") is None


def test_being_stopped_reaches_it(tmp_path):
    """Ctrl-C here is Ctrl-C there, once, and what it keeps is kept before this returns."""
    # a shell's background process has it ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    text = "try:\n    beat(); time.sleep(1e6)\n"
    text += "except KeyboardInterrupt:\n    pathlib.Path(sys.argv[1] + '.kept').touch()"

    def stop():
        while (tmp_path / "beat").read_text() != "inf":
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    (tmp_path / "beat").write_text("")
    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        watch(command(tmp_path / "beat", text), tmp_path / "beat")
    stopper.join()
    signal.signal(signal.SIGINT, before)
    assert (tmp_path / "beat.kept").exists()


def test_nobody_watches(tmp_path):
    """A process whose watcher is gone stops as by Ctrl-C at its next word."""
    before = time.time()
    Beat(tmp_path / "beat").beat(5.0)
    assert before + 5 <= float((tmp_path / "beat").read_text()) <= time.time() + 5
    with pytest.raises(KeyboardInterrupt):
        Beat(tmp_path / "beat", parent=1 if os.getppid() != 1 else 2).beat()


@pytest.mark.parametrize(
    ("statuses", "well"), [([0], True), ([None, 1, 0], True), ([1, 1, None, 1, 0], False)]
)
def test_it_is_started_again_a_few_times(statuses, well):
    """Hung or broken it is started anew, and given up after three times more."""
    left, said = iter(statuses), []
    assert again(lambda: next(left), said.append) is well
    assert len(said) == min(len(statuses) - well, 4) and watchdog.START_SECONDS > 30
    assert not said or ("hung" in said[0]) == (statuses[0] is None)
