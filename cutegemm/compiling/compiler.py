# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel: object, PTX, cubin and resources. Needs no GPU.

Functions import the DSL when they need it, since a cached kernel does not. The DSL is not thread-safe, so a process
compiles one kernel at a time, and several specs compile in subprocesses.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.arch import sm90 as hw
from cutegemm.compiling import loader, resources
from cutegemm.compiling.progress import announced
from cutegemm.config import Config
from cutegemm.errors import CompileError, field_error, needing
from cutegemm.families import FAMILIES, load
from cutegemm.launch_layout import FLOAT32, INT32, INT64, layout_of

# Characters of a compiler's message that an error shows.
LONGEST_MESSAGE = 240
# The DSL aborts the process if two threads compile.
_DSL = threading.Lock()


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel."""

    obj: bytes  # host code that contains the cubin, for `loader.load`
    ptx: str
    cubin: bytes
    resources: resources.Resources


def compile_config(config: Config) -> Artifact:
    """Compile one kernel for sm_90a; about a second.

    Raises:
        CompileError: the DSL or ptxas refused it; its text has their last message, its cause all of them.
        MissingPackageError: the DSL is not installed.
    """
    # read when the DSL is first imported
    os.environ.setdefault("CUTE_DSL_ARCH", hw.ARCH)
    with _DSL, tempfile.TemporaryDirectory() as folder:
        with needing():
            import cutlass.cute as cute
            from cutlass.cute.runtime import make_fake_stream

        driver, arguments = driver_of(config)
        options = f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch {hw.ARCH}"
        try:
            with announced(lambda: f"compiling a {config.family} kernel"), _standard_error(), _undisturbed():
                # the object is exported and never called, so no JIT engine is needed
                compiled = cute.compile(
                    driver, *arguments, make_fake_stream(), options=options, no_jit_engine=True
                )
            path = Path(folder) / "kernel.o"
            compiled.export_to_c(str(path), function_name=loader.ENTRY)
        # the DSL raises many kinds, none documented
        except Exception as error:
            rule = f"{config.family} kernel does not compile: {_last_message(error)}"
            raise CompileError(rule).about(config=config) from error
        obj, ptx, cubin = path.read_bytes(), compiled.__ptx__, compiled.__cubin__
    launch = record_launches(obj, ptx, (*layout_of(config).sample(), 0))[0]
    return Artifact(obj, ptx, cubin, resources.measure(ptx, cubin, launch.smem))


@contextlib.contextmanager
def _standard_error() -> Iterator[None]:
    """Provide `sys.stderr` and file descriptor 2, which the DSL redirects; a service may have neither."""
    with contextlib.ExitStack() as stack:
        try:
            os.fstat(2)
        except OSError:
            # open returns the lowest free descriptor, which may not be 2
            sink = os.open(os.devnull, os.O_WRONLY)
            if sink != 2:
                os.dup2(sink, 2)
                os.close(sink)
            stack.callback(os.close, 2)
        if sys.stderr is None or sys.stderr.closed:
            text = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stderr(text))
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Delay Ctrl-C until the compiler is done, because a KeyboardInterrupt inside it crashes the process.

    A program's own signal handler, and other threads, are left alone.
    """
    usual = signal.default_int_handler
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not usual
    ):
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if interrupts:
            raise KeyboardInterrupt


def _last_message(error: Exception) -> str:
    """The last line that starts with "error: ", or the last line; without colours, shortened."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    errors = [x.removeprefix("error: ") for x in lines if x.startswith("error: ")]
    last = (errors or lines)[-1]
    return last if len(last) <= LONGEST_MESSAGE else f"{last[: LONGEST_MESSAGE - 4]} ..."


def record_launches(obj: bytes, ptx: str, arguments: tuple[Any, ...]) -> list[loader.RecordedLaunch]:
    """Run the object's host code with CUDA replaced and return its launches."""
    record = loader.recorder(obj, resources.kernel_name(ptx), resources.param_sizes(ptx))
    return record(*arguments)


def driver_of(config: Config) -> tuple[Any, tuple[Any, ...]]:
    """The kernel's driver, and typed arguments with which it is traced."""
    import cutlass

    if config.family not in FAMILIES:
        raise field_error(CompileError, "family", config.family, f"must be one of {', '.join(FAMILIES)}")
    driver = load(FAMILIES[config.family].driver)
    types = {INT32: cutlass.Int32, INT64: cutlass.Int64, FLOAT32: cutlass.Float32}
    layout = layout_of(config)
    typed = tuple(
        tuple(types[kind](x) for kind, x in zip(group.kinds, flat, strict=True))
        for group, flat in zip(layout.groups, layout.sample(), strict=True)
    )
    return driver(config), typed
