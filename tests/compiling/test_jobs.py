# SPDX-License-Identifier: Apache-2.0
"""Processes that compile a share each."""

import copy
import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from cutegemm.compiling import job, jobs, kernel_cache
from cutegemm.errors import CompileError
from tests.support.compiled import CONFIG, OTHER, isolated


def test_a_failure_elsewhere_is_raised_here(monkeypatch, tmp_path):
    """A config that cannot be is refused where it would be compiled, with its refusal; those before it count."""
    isolated(monkeypatch, tmp_path)
    broken = copy.copy(CONFIG)
    object.__setattr__(broken, "tile", (128, 60, 64))
    refusal = r"^tile\.n=60: a tile must be a multiple of 8 columns; nearest legal value: 64$"
    with pytest.raises(CompileError, match=refusal) as e:
        jobs.compile_parallel([OTHER, broken], 1)
    assert kernel_cache.entry(OTHER).exists() and "\n" not in str(e.value)


def test_a_process_needs_no_torch(monkeypatch):
    """In a process that compiles, torch cannot be imported: tvm_ffi would, which takes two seconds."""
    monkeypatch.setitem(sys.modules, "torch", sys.modules.get("torch"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("[]"))
    assert job.main() == 0 and sys.modules["torch"] is None


def test_a_process_that_breaks_off_is_reported(monkeypatch, tmp_path):
    """A job that ends without a word of its own is reported with its status and the end of what it said."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\ncat > /dev/null; echo out of memory; exit 137\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(CompileError, match="^a compiling process broke off with status 137: out of memory$"):
        jobs.compile_parallel([CONFIG], 1)


def test_ctrl_c_ends_every_compiler_at_once(monkeypatch, tmp_path):
    """An interrupt kills all compiling processes, their temporary files go, and nobody waits for their kernels."""
    check_interrupted(monkeypatch, tmp_path)


def test_ctrl_c_in_the_start_of_a_thread_ends_its_compiler(monkeypatch, tmp_path):
    """The pool has not noted the second thread, which begins to wait for its process late."""
    begin, leave = threading.Thread.start, subprocess.Popen.__exit__

    def is_second(thread):
        return thread.name.startswith("ThreadPool") and thread.name.endswith("_1")

    def start(thread):
        begin(thread)
        if is_second(thread):
            time.sleep(60)  # until the interrupt

    def late(process, *error):
        if is_second(threading.current_thread()):
            time.sleep(1)
        return leave(process, *error)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(subprocess.Popen, "__exit__", late)
    check_interrupted(monkeypatch, tmp_path)


def check_interrupted(monkeypatch, tmp_path):
    """Interrupt two jobs once their processes run; then no process is left, nor its folder."""
    started = tmp_path / "started"
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\ntouch $TMPDIR/left\necho $$ $TMPDIR >> {started}\nexec sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    def interrupt():
        while not started.exists() or len(started.read_text().splitlines()) < 2:
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    # a shell that runs this in the background ignores it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            jobs.compile_parallel([CONFIG, OTHER], 2)
    finally:
        signal.signal(signal.SIGINT, before)
    for line in started.read_text().splitlines():
        process, folder = line.split()
        with pytest.raises(ProcessLookupError):
            os.kill(int(process), 0)
        assert not os.path.exists(folder)
