# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a command compiles: it ends with 130, and what is kept is whole."""

import os
import signal
import subprocess
import sys
import time

from cutegemm.compiling import archive, kernel_cache
from tests.support.patience import PATIENCE


def test_ctrl_c_leaves_the_cache_whole(tmp_path, monkeypatch):
    """A compilation that is stopped leaves no part of a kernel, and the next one starts anew."""
    line = [sys.executable, "-m", "cutegemm", "ptx", "256", "128", "128", "--spec", "tile=(128, 64, 64)"]
    process = subprocess.Popen(
        line,
        env=os.environ | {"CUTEGEMM_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background job ignores SIGINT, which its children inherit
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + PATIENCE
    while not list(tmp_path.glob("kernels/locks/*.lock")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "stopped" in error and "Traceback" not in error, (
        process.returncode,
        error,
    )
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    assert not out and archive.listed() == [] and not list(kernel_cache.directory().glob(".*.part"))
