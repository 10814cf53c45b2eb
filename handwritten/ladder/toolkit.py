# SPDX-License-Identifier: Apache-2.0
"""Finds NVRTC and the CUDA headers: in wheels first, then in CUDA_PATH, CUDA_HOME and /usr/local/cuda.

The wheels are `nvidia-cuda-nvrtc`, `nvidia-cuda-runtime` and `nvidia-cuda-crt`. A CUDA toolkit of the same major
version works too.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from cuda import pathfinder

from cutegemm.errors import CompileError

HEADERS = ("cuda_bf16.hpp", "cuda_fp16.hpp", "mma.h", "crt/mma.hpp")  # included by the stages
HEADER_PACKAGES = "nvidia-cuda-runtime nvidia-cuda-crt"
NVRTC_PACKAGE = "nvidia-cuda-nvrtc"
ROOT_VARIABLES = ("CUDA_PATH", "CUDA_HOME")  # in the order in which pathfinder reads them
USUAL_ROOT = Path("/usr/local/cuda")
_WHEEL_INCLUDE = Path("nvidia", "cu13", "include")  # inside a folder that wheels were unpacked into
_ROOT_INCLUDES = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
_ROOT_LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


def roots() -> list[Path]:
    """Return the folders of CUDA toolkits: those in the environment, then the usual one."""
    named = [Path(os.environ[name]) for name in ROOT_VARIABLES if os.environ.get(name)]
    return [root for root in dict.fromkeys([*named, USUAL_ROOT]) if root.is_dir()]


def _header_folders() -> Iterator[Path]:
    """Yield every folder that may contain CUDA headers, in order of preference."""
    located = pathfinder.find_nvidia_header_directory("cudart")
    if located:
        yield Path(located)
    for entry in sys.path:
        yield Path(entry) / _WHEEL_INCLUDE
    for root in roots():
        for include in _ROOT_INCLUDES:
            yield root / include


@functools.cache
def include_dirs() -> tuple[str, ...]:
    """Return the folders of the CUDA headers: one with all of them, else the first with each.

    Raises:
        CompileError: a header is missing; names the header, the searched folders and the packages.
    """
    folders = list(dict.fromkeys(_header_folders()))
    for folder in folders:
        if all((folder / header).exists() for header in HEADERS):
            return (str(folder),)
    found: dict[str, None] = {}
    for header in HEADERS:
        holder = next((folder for folder in folders if (folder / header).exists()), None)
        if holder is None:
            looked = [str(root) for root in roots()]
            raise CompileError(
                f"CUDA headers: no {header} in an installed package, on sys.path or in {looked}; "
                f"pip install {HEADER_PACKAGES}, or set CUDA_HOME to a CUDA toolkit"
            )
        found[str(holder)] = None
    return tuple(found)


@functools.cache
def load_nvrtc() -> None:
    """Load NVRTC, so that later loads by name find it in this process.

    Raises:
        CompileError: NVRTC is missing; names the package.
    """
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
        return
    except pathfinder.DynamicLibNotFoundError:
        pass
    for path in _nvrtc_files():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            # finds the loaded library by name if its major version is right
            pathfinder.load_nvidia_dynamic_lib("nvrtc")
            return
        except (OSError, pathfinder.DynamicLibNotFoundError):
            continue
    looked = [str(root) for root in roots()]
    raise CompileError(
        f"NVRTC, the CUDA compiler as a library: no libnvrtc in an installed package, on the linker's path or in "
        f"{looked}; pip install {NVRTC_PACKAGE}, or set CUDA_HOME to a CUDA toolkit"
    )


def _nvrtc_files() -> Iterator[Path]:
    """Yield the libraries of the toolkits, newest first."""
    for root in roots():
        for folder in _ROOT_LIBRARIES:
            yield from sorted((root / folder).glob("libnvrtc.so.*"), reverse=True)


def require() -> None:
    """Check that stages can be compiled on this machine.

    Raises:
        CompileError: NVRTC or a header is missing.
    """
    load_nvrtc()
    include_dirs()
