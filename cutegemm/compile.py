# SPDX-License-Identifier: Apache-2.0
"""From a config to a compiled kernel: object, PTX, cubin and resources. Needs no GPU.

The DSL is imported here, inside functions: a cached kernel never needs it. It is not thread-safe, so one
process compiles one kernel at a time, and several specs compile in subprocesses.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm import hardware as hw
from cutegemm import loader, resources
from cutegemm.config import Config, KernelConfig, SimtConfig
from cutegemm.errors import CompileError

_DSL = threading.Lock()  # the DSL aborts the process when two threads compile


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
        CompileError: the DSL or ptxas refused it; the message holds their last lines.
    """
    os.environ.setdefault("CUTE_DSL_ARCH", hw.ARCH)  # read when the DSL is first imported
    with _DSL, tempfile.TemporaryDirectory() as folder:
        import cutlass.cute as cute
        from cutlass.cute.runtime import make_fake_stream

        driver, arguments = _driver(config)
        options = f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch {hw.ARCH}"
        try:
            compiled = cute.compile(driver, *arguments, make_fake_stream(), options=options)
            path = Path(folder) / "kernel.o"
            compiled.export_to_c(str(path), function_name=loader.ENTRY)
        except Exception as error:  # the DSL raises many kinds, none documented
            tail = "\n".join(str(error).strip().splitlines()[-6:])
            raise CompileError(
                f"{config.family} kernel does not compile: {tail}\nconfig: {config}"
            ) from error
        obj, ptx, cubin = path.read_bytes(), compiled.__ptx__, compiled.__cubin__
    launch = record_launches(obj, ptx, _sample_arguments(config))[0]
    return Artifact(obj, ptx, cubin, resources.measure(ptx, cubin, launch.smem))


def record_launches(obj: bytes, ptx: str, arguments: tuple) -> list[loader.Launch]:
    """Run the object's host code with CUDA replaced and return what it launches."""
    record = loader.recorder(obj, resources.kernel_name(ptx), resources.param_sizes(ptx))
    return record(*arguments)


def _driver(config: Config) -> tuple[Any, tuple]:
    """The kernel's driver and arguments of the right types for tracing."""
    from cutlass import Float32, Int32, Int64

    if config.family == "relayout":
        from cutegemm.kernels.relayout import Relayout

        return Relayout(config), ((Int64(0),) * 2, (Int32(1),) * 3, (Int64(8),) * 6)
    if isinstance(config, SimtConfig):
        from cutegemm.kernels.simt import SimtGemm as driver
    elif config.family == "multistage":
        from cutegemm.kernels.multistage import MultistageGemm as driver
    else:
        from cutegemm.kernels.warp_specialized import WarpSpecializedGemm as driver
    numbers = ((Int64(0),) * 4, (Int32(1),) * 6, (Int64(8),) * 12)
    return driver(config), (*numbers, (Float32(1), Float32(0)), (Int32(1), Int32(1)))


def _sample_arguments(config: Config) -> tuple:
    """Host arguments of a tiny problem on the null stream, for recording a launch."""
    if config.family == "relayout":
        return (1024, 2048), (1, 1, 1), (8,) * 6, 0
    return (1024, 2048, 3072, 4096), (1,) * 6, (8,) * 12, (1.0, 0.0), (1, 1), 0


__all__ = ["Artifact", "KernelConfig", "compile_config", "record_launches"]
