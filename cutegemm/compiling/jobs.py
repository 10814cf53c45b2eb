# SPDX-License-Identifier: Apache-2.0
"""Several kernels at once: each process compiles its share into the disk cache, for the DSL is not thread-safe."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

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

    Raises:
        CompileError: a kernel does not compile; the others of its share may be missing too.
    """
    done: list[None] = []
    with (
        announced(lambda: f"compiling kernels, {len(done)} of {len(configs)}"),
        concurrent.futures.ThreadPoolExecutor(workers) as pool,
    ):
        shares = [configs[i::workers] for i in range(workers)]
        jobs = [pool.submit(compile_elsewhere, share, lambda: done.append(None)) for share in shares]
        for job in concurrent.futures.as_completed(jobs):
            job.result()


def compile_elsewhere(configs: Sequence[Config], advance: Callable[[], None]) -> None:
    """Compile configs in one subprocess; `advance` is called after each.

    Raises:
        CompileError: a kernel does not compile, or the process broke off.
    """
    paths = os.pathsep.join(p for p in sys.path if p)
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "cutegemm.compiling.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": paths},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
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
