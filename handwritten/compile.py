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
import sys
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


HEADERS = ("cuda_bf16.hpp", "cuda_fp16.hpp", "mma.h", "crt/mma.hpp")  # what the stages include
_WHEEL_INCLUDE = Path("nvidia", "cu13", "include")  # inside a folder that wheels were unpacked into


@functools.cache
def include_dirs() -> tuple[str, ...]:
    """Return the folders of the CUDA headers: where wheels or a toolkit put them, or anywhere on `sys.path`.

    Raises:
        CompileError: one is not installed.
    """
    located = pathfinder.find_nvidia_header_directory("cudart")
    candidates = [Path(located)] if located else []
    candidates += [Path(entry) / _WHEEL_INCLUDE for entry in sys.path]
    found = {}
    for header in HEADERS:
        folder = next((folder for folder in candidates if (folder / header).exists()), None)
        if folder is None:
            raise CompileError(
                f"CUDA headers: no {header} in {[str(folder) for folder in candidates[:1]]} or on sys.path; "
                "pip install nvidia-cuda-runtime nvidia-cuda-crt"
            )
        found[str(folder)] = None
    return tuple(found)


@functools.cache
def _header_digest() -> bytes:
    """Digest what the sources include: our shared headers, and the CUDA headers by name and size."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.cuh")):
        digest.update(path.name.encode() + path.read_bytes())
    for name in HEADERS:
        path = next(Path(folder, name) for folder in include_dirs() if Path(folder, name).exists())
        digest.update(f"{name} {path.stat().st_size}".encode())
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
        include_path=[str(FOLDER), *include_dirs()],
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
