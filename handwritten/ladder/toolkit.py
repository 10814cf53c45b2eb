# SPDX-License-Identifier: Apache-2.0
"""Where the compiler's library and the CUDA headers are: wheels first, then CUDA_PATH, CUDA_HOME and /usr/local/cuda.

The wheels are `nvidia-cuda-nvrtc`, `nvidia-cuda-runtime` and `nvidia-cuda-crt`; a CUDA toolkit of the same major
version serves as well.
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

HEADERS = ("cuda_bf16.hpp", "cuda_fp16.hpp", "mma.h", "crt/mma.hpp")  # what the stages include
HEADER_PACKAGES = "nvidia-cuda-runtime nvidia-cuda-crt"
NVRTC_PACKAGE = "nvidia-cuda-nvrtc"
ROOT_VARIABLES = ("CUDA_PATH", "CUDA_HOME")  # in the order in which pathfinder reads them
USUAL_ROOT = Path("/usr/local/cuda")
_WHEEL_INCLUDE = Path("nvidia", "cu13", "include")  # inside a folder that wheels were unpacked into
_ROOT_INCLUDES = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")
_ROOT_LIBRARIES = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")


def roots() -> list[Path]:
    """Return the folders of CUDA toolkits: those that the environment names, then the usual one."""
    named = [Path(os.environ[name]) for name in ROOT_VARIABLES if os.environ.get(name)]
    return [root for root in dict.fromkeys([*named, USUAL_ROOT]) if root.is_dir()]


def _header_folders() -> Iterator[Path]:
    """Yield every folder that may hold CUDA headers, in the order in which they are preferred."""
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
    """Return the folders of the CUDA headers: one that has all of them, else the first that has each.

    Raises:
        CompileError: a header is nowhere; the message names it, where it was looked for, and the packages.
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
    """Load the compiler's library, so that whoever asks for it finds it in this process.

    Raises:
        CompileError: it is nowhere; the message names the package.
    """
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
        return
    except pathfinder.DynamicLibNotFoundError:
        pass
    for path in _nvrtc_files():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            # Finds a library of the right major version by its name, now that it is loaded.
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
    """Make sure that stages can be compiled here.

    Raises:
        CompileError: NVRTC or a header is missing.
    """
    load_nvrtc()
    include_dirs()
