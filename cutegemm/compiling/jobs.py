# SPDX-License-Identifier: Apache-2.0
"""Several kernels at once: each process compiles its share into the disk cache, for the DSL is not thread-safe."""

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

# What a job says on a line of its own: after each kernel, and before the words of an error in JSON.
DONE = "compiled\n"
FAILED = "does not compile: "
# Characters kept of what a job that broke off said last.
LAST_WORDS = 300


def compile_parallel(configs: Sequence[Config], workers: int) -> None:
    """Compile into the disk cache in `workers` fresh interpreters, and say how far it is.

    Ctrl-C ends them all at once; what they have compiled by then is kept.

    Raises:
        CompileError: a kernel does not compile; the others of its share may be missing too.
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
    """`_started`, whose processes all end when anything but a kernel that does not compile is raised.

    It is called in the pool's threads: there no signal comes between a process's start and its place in the list.
    """
    processes: list[subprocess.Popen[str]] = []
    stopped = threading.Event()

    def start(folder: str) -> subprocess.Popen[str]:
        processes.append(process := _started(folder))
        if stopped.is_set():
            process.kill()
        return process

    try:
        yield start
    except CompileError:
        raise
    except BaseException:
        stopped.set()
        for process in list(processes):
            process.kill()
        raise


def _started(folder: str) -> subprocess.Popen[str]:
    """A process that waits for a list of configs; its temporary files lie in a folder, also when it is killed."""
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
    """Start a process that compiles configs, and read what it says; `advance` is called after each.

    Raises:
        CompileError: a kernel does not compile, or the process broke off.
    """
    said: list[str] = []
    with start() as process:
        assert process.stdin is not None and process.stdout is not None
        # one that broke off before it read is told of below
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps([config.to_data() for config in configs]))
            process.stdin.close()
        for line in process.stdout:
            said.append(line)
            if line == DONE:
                advance()
    failed = [line for line in said if line.startswith(FAILED)]
    if failed:
        raise CompileError(json.loads(failed[0].removeprefix(FAILED)))
    if process.returncode:
        words = "".join(said).strip()[-LAST_WORDS:]
        raise CompileError(f"a compiling process broke off with status {process.returncode}: {words}")
