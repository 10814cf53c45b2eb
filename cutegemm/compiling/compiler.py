# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel: object, PTX, cubin and resources. Needs no GPU.

The DSL is imported here, inside functions: a cached kernel never needs it. It is not thread-safe, so one
process compiles one kernel at a time, and several specs compile in subprocesses.
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

# Characters of a compiler's words that stand in an error.
LAST_WORDS = 240
# The DSL aborts the process when two threads compile.
_DSL = threading.Lock()


@dataclass(frozen=True)
class Artifact:
    """One compiled kernel.

    Attributes:
        obj: host code with the cubin inside, for `loader.load`.
        ptx, cubin: of the kernel.
        resources: registers, spills, shared memory, code size, instructions.
    """

    obj: bytes
    ptx: str
    cubin: bytes
    resources: resources.Resources


def compile_config(config: Config) -> Artifact:
    """Compile one kernel for sm_90a; about a second.

    Raises:
        CompileError: the DSL or ptxas refused it; the message holds their last words, its cause all of them.
        MissingPackageError: the DSL is not installed.
    """
    # read when the DSL is first imported
    os.environ.setdefault("CUTE_DSL_ARCH", hw.ARCH)
    with _DSL, tempfile.TemporaryDirectory() as folder:
        with needing():
            import cutlass.cute as cute
            from cutlass.cute.runtime import make_fake_stream

        driver, arguments = _driver(config)
        options = f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch {hw.ARCH}"
        try:
            with announced(lambda: f"compiling a {config.family} kernel"), _standard_error(), _undisturbed():
                # exported, never called: an engine would make the host code twice more
                compiled = cute.compile(
                    driver, *arguments, make_fake_stream(), options=options, no_jit_engine=True
                )
            path = Path(folder) / "kernel.o"
            compiled.export_to_c(str(path), function_name=loader.ENTRY)
        # the DSL raises many kinds, none documented
        except Exception as error:
            rule = f"{config.family} kernel does not compile: {_last_words(error)}"
            raise CompileError(rule).about(config=config) from error
        obj, ptx, cubin = path.read_bytes(), compiled.__ptx__, compiled.__cubin__
    launch = record_launches(obj, ptx, (*layout_of(config).sample(), 0))[0]
    return Artifact(obj, ptx, cubin, resources.measure(ptx, cubin, launch.smem))


@contextlib.contextmanager
def _standard_error() -> Iterator[None]:
    """Give the DSL a `sys.stderr` and a descriptor 2, which it flushes and redirects; a service may lack both."""
    with contextlib.ExitStack() as stack:
        try:
            os.fstat(2)
        except OSError:
            # the lowest free descriptor may be another one
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
    """Ctrl-C is heard when the compiler is done: a KeyboardInterrupt in its midst ends the process by a fault.

    A handler of the program's own, and other threads, are left as they are.
    """
    usual = signal.default_int_handler
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not usual
    ):
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if heard:
            raise KeyboardInterrupt


def _last_words(error: Exception) -> str:
    """What a compiler calls an error, or else its last line; without colours, shortened."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().splitlines() or [type(error).__name__]
    named = [x.split("error: ", 1)[1] for x in said if x.startswith("error: ")]
    last = (named or said)[-1]
    return last if len(last) <= LAST_WORDS else f"{last[: LAST_WORDS - 4]} ..."


def record_launches(obj: bytes, ptx: str, arguments: tuple[Any, ...]) -> list[loader.Launch]:
    """Run the object's host code with CUDA replaced and return what it launches."""
    record = loader.recorder(obj, resources.kernel_name(ptx), resources.param_sizes(ptx))
    return record(*arguments)


def _driver(config: Config) -> tuple[Any, tuple[Any, ...]]:
    """The kernel's driver and arguments of the right types for tracing."""
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
