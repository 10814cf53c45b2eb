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
from cutegemm.config import Config, SimtConfig
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
    launch = record_launches(obj, ptx, (*sample_arguments(config), 0))[0]
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
    if config.family == "finish":
        from cutegemm.kernels.finish import Finish

        return Finish(config), ((Int64(0),) * 2, (Int32(1),) * 2)
    if isinstance(config, SimtConfig):
        from cutegemm.kernels.simt import SimtGemm as driver
    elif config.family == "multistage":
        from cutegemm.kernels.multistage import MultistageGemm as driver
    else:
        from cutegemm.kernels.warp_specialized import WarpSpecializedGemm as driver
    addresses, shape, strides, numbers, walk = sample_arguments(config)
    kinds = [Int32 if kind == "integer" else Float32 for kind in config.host_numbers.values()] or [Float32]
    typed = tuple(kind(x) for kind, x in zip(kinds, numbers))
    return driver(config), (
        tuple(map(Int64, addresses)), tuple(map(Int32, shape)), tuple(map(Int64, strides)), typed,
        tuple(map(Int32, walk)),
    )  # fmt: skip


def sample_arguments(config: Config, address: int = 1024) -> tuple:
    """Host arguments, but for the stream, of a problem of 8 x 8 matrices, all at one address.

    Extents and strides of 8 elements satisfy whatever alignment a config was compiled for.
    """
    if config.family == "relayout":
        return (address,) * 2, (8, 8, 1), (8, 8, 64) * 2
    if config.family == "finish":
        return (address,) * 2, (1, 1)
    graph = config.epilogue
    tensors = 2 + len(config.inputs) + len(config.outputs)
    places = tensors + len(graph.reductions) + len(config.device_scalars)
    shape = (8, 8, 8, 1, 1, 1, *(1 for _ in config.inputs))
    numbers = tuple(0 if kind == "integer" else 0.0 for kind in config.host_numbers.values())
    gate = (64,) if graph.gated else ()
    return (address,) * places, shape, (8, 8, 64) * tensors + gate, numbers or (0.0,), (1, 1, 1, 1, 1)
