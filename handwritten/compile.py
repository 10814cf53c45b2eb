# SPDX-License-Identifier: Apache-2.0
"""Stages to CUBIN and PTX by NVRTC, on any machine: no GPU, driver or CUDA toolkit is needed.

The compiler and its headers come as wheels (`nvidia-cuda-nvrtc`, `nvidia-cuda-runtime`,
`nvidia-cuda-crt`). Results are kept on disk by `cuda.core`'s program cache, whose key covers the
source, the options and the NVRTC version; this module adds the headers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from cuda import pathfinder
from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from cutegemm.errors import CompileError, check
from cutegemm.hardware import ARCH

FOLDER = Path(__file__).parent
CACHE_DIR_VARIABLE = "CUTEGEMM_CACHE_DIR"


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel file: the CUBIN that is launched and the PTX it came from."""

    cubin: bytes
    ptx: str


def cache_dir() -> Path:
    """Return the folder that holds compiled stages; `CUTEGEMM_CACHE_DIR` overrides its parent."""
    root = os.environ.get(CACHE_DIR_VARIABLE) or platformdirs.user_cache_dir("cutegemm")
    return Path(root) / "handwritten"


@functools.cache
def include_dir() -> str:
    """Return the folder of the CUDA runtime headers.

    Raises:
        CompileError: they are not installed.
    """
    folder = pathfinder.find_nvidia_header_directory("cudart")
    if folder is None or not Path(folder, "crt", "mma.hpp").exists():
        raise CompileError(
            f"CUDA headers: found {folder!r} without crt/mma.hpp; the stages need cuda_bf16.h and mma.h; "
            "pip install nvidia-cuda-runtime nvidia-cuda-crt"
        )
    return str(folder)


@functools.cache
def _header_digest() -> bytes:
    """Digest what the sources include: our shared headers, and the CUDA headers by name and size."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.cuh")):
        digest.update(path.name.encode() + path.read_bytes())
    for name in ("cuda_bf16.hpp", "cuda_fp16.hpp", "mma.h", "crt/mma.hpp"):
        digest.update(f"{name} {Path(include_dir(), name).stat().st_size}".encode())
    return digest.digest()


def compile_source(path: Path, macros: dict[str, int]) -> Compiled:
    """Compile one `.cu` file for sm_90a, or fetch it from the cache.

    `macros` are the `-D` definitions that choose the operand type and the majors.

    Raises:
        CompileError: NVRTC rejects the source; the message carries its log.
    """
    return _compile_cached(path, tuple(sorted(macros.items())), str(cache_dir()))


@functools.cache
def _compile_cached(path: Path, macros: tuple[tuple[str, int], ...], folder: str) -> Compiled:
    source = path.read_text()
    options = ProgramOptions(
        arch=ARCH,
        std="c++17",
        name=path.name,
        include_path=[str(FOLDER), include_dir()],
        define_macro=[(name, str(value)) for name, value in macros] or None,
        lineinfo=True,
    )
    keys = {
        kind: make_program_cache_key(
            code=source, code_type="c++", options=options, target_type=kind, extra_digest=_header_digest()
        )
        for kind in ("cubin", "ptx")
    }
    with FileStreamProgramCache(folder) as cache:
        found = {kind: cache.get(key) for kind, key in keys.items()}
        if None in found.values():
            found = _nvrtc(source, options)
            for kind, key in keys.items():
                cache[key] = found[kind]
    return Compiled(found["cubin"], found["ptx"].decode().rstrip("\0"))


def _nvrtc(source: str, options: ProgramOptions) -> dict[str, bytes]:
    """Compile once and return both products."""
    try:
        program = Program(source, "c++", options)
        cubin = bytes(program.compile("cubin").code)
    except Exception as error:  # cuda.core raises its private NVRTC error type, with the log as text
        raise CompileError(f"{options.name}: NVRTC for {ARCH}: {error}") from error
    # cuda.core's own way to the PTX asks the driver whether it could load it; there may be no driver.
    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    ptx = b" " * size
    (status,) = nvrtc.nvrtcGetPTX(program.handle, ptx)
    check(status == nvrtc.nvrtcResult.NVRTC_SUCCESS, CompileError, f"{options.name}: nvrtcGetPTX: {status}")
    return {"cubin": cubin, "ptx": ptx}
