# SPDX-License-Identifier: Apache-2.0
"""Several kernels at once, in processes that compile into the disk cache, because the DSL is not thread-safe."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

from cutegemm.compiling.progress import announced
from cutegemm.config import Config
from cutegemm.errors import CompileError

# Lines that a job prints: one after each kernel, and one before an error's text in JSON.
DONE = "compiled\n"
FAILED = "does not compile: "
# Characters that are shown of the last output of a job that broke off.
LAST_OUTPUT = 300


def compile_parallel(configs: Sequence[Config], workers: int) -> None:
    """Compile into the disk cache in `workers` fresh interpreters, and show the progress.

    Ctrl-C ends all of them at once; kernels that are compiled by then stay in the cache.

    Raises:
        CompileError: a kernel does not compile; others of its process may be missing too.
    """
    done: list[None] = []
    with (
        announced(lambda: f"compiling kernels, {len(done)} of {len(configs)}"),
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
        _killed_when_interrupted() as start,
    ):
        jobs = [
            pool.submit(_followed, lambda: start(folder), configs[i::workers], lambda: done.append(None))
            for i in range(workers)
        ]
        for job in concurrent.futures.as_completed(jobs):
            job.result()


@contextlib.contextmanager
def _killed_when_interrupted() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`_started`, whose processes are killed and waited for on any exception but a CompileError.

    The pool's threads call it, where no signal can arrive between a process's start and its entry in the list.
    """
    processes: list[subprocess.Popen[str]] = []
    stopped, starting = threading.Event(), threading.Lock()

    def start(folder: str) -> subprocess.Popen[str]:
        with starting:
            processes.append(process := _started(folder))
            if stopped.is_set():
                process.kill()
        return process

    try:
        yield start
    except CompileError:
        raise
    except BaseException:
        # the pool does not wait for a thread in whose start the exception arrived
        with starting:
            stopped.set()
        for process in list(processes):
            process.kill()
            process.wait()
        raise


def _started(folder: str) -> subprocess.Popen[str]:
    """A process that waits for a list of configs; a killed one leaves its temporary files in the folder."""
    paths = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(
        [sys.executable, "-m", "cutegemm.compiling.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths, "TMPDIR": folder},
    )


def _followed(
    start: Callable[[], subprocess.Popen[str]], configs: Sequence[Config], advance: Callable[[], None]
) -> None:
    """Start a process that compiles configs, and follow its output; `advance` is called after each kernel.

    Raises:
        CompileError: a kernel does not compile, or the process broke off.
    """
    output: list[str] = []
    with start() as process:
        assert process.stdin is not None and process.stdout is not None
        # a process that broke off before it read is reported below
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([config.to_data() for config in configs]))
            process.stdin.close()
        for line in process.stdout:
            output.append(line)
            if line == DONE:
                advance()
    failed = [line for line in output if line.startswith(FAILED)]
    if failed:
        raise CompileError(json.loads(failed[0].removeprefix(FAILED)))
    if process.returncode:
        last = "".join(output).strip()[-LAST_OUTPUT:]
        raise CompileError(f"a compiling process broke off with status {process.returncode}: {last}")
