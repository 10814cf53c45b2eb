# SPDX-License-Identifier: Apache-2.0
"""Compiles stages to CUBIN and PTX with NVRTC, without a GPU or driver.

`cuda.core`'s program cache stores results on disk. Its key covers the source, the options and the NVRTC version; this
module adds the headers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from cuda.bindings import nvrtc
from cuda.core import Program, ProgramOptions
from cuda.core.utils import FileStreamProgramCache, make_program_cache_key

from cutegemm.arch.sm90 import ARCH
from cutegemm.errors import CompileError, GemmError, check
from handwritten.ladder import toolkit
from handwritten.ladder.source import FOLDER

if TYPE_CHECKING:
    from handwritten.ladder.stage import Stage

CACHE_DIR_VARIABLE = "CUTEGEMM_CACHE_DIR"
MAJORS = ("rr", "rc", "cr", "cc")  # of A and B: "r" row-major, "c" column-major


@dataclass(frozen=True)
class Compiled:
    """A compiled `.cu` file: its CUBIN and PTX."""

    cubin: bytes
    ptx: str


def legal_majors(stage: Stage) -> tuple[str, ...]:
    """Return the majors of A and B that a stage supports."""
    return MAJORS if stage.limits.col_major else MAJORS[:1]


def compile_stage(stage: Stage, dtype: str, majors: str) -> Compiled:
    """Compile a stage for an operand type and the majors of A and B.

    Raises:
        GemmError: the stage does not have that dtype or those majors.
        CompileError: NVRTC is missing or rejects the source.
    """
    types = ", ".join(stage.dtypes)
    check(dtype in stage.dtypes, GemmError, f"dtype={dtype!r}: stage {stage.key} takes {types}")
    legal = legal_majors(stage)
    check(majors in legal, GemmError, f"majors={majors!r}: stage {stage.key} takes {', '.join(legal)}")
    macros = {
        "HALF": int(dtype == "fp16"),
        "A_COL": int(majors[0] == "c"),
        "B_COL": int(majors[1] == "c"),
    }
    return compile_source(stage.path, macros | stage.macros)


def compile_source(path: Path, macros: dict[str, int]) -> Compiled:
    """Compile one `.cu` file for sm_90a, or fetch it from the cache.

    `macros` are the `-D` definitions that choose the operand type and the majors.

    Raises:
        CompileError: NVRTC or a CUDA header is missing, or NVRTC rejects the source; the message carries its log.
    """
    return _compile_cached(path, tuple(sorted(macros.items())), str(cache_dir()))


def cache_dir() -> Path:
    """Return the folder that holds compiled stages; `CUTEGEMM_CACHE_DIR` overrides its parent."""
    root = os.environ.get(CACHE_DIR_VARIABLE) or platformdirs.user_cache_dir("cutegemm")
    return Path(root) / "handwritten"


@functools.cache
def _header_digest() -> bytes:
    """Digest the included files: our shared headers, and the CUDA headers by name and size."""
    digest = hashlib.sha256()
    for path in sorted(FOLDER.glob("*.cuh")):
        digest.update(path.name.encode() + path.read_bytes())
    folders = toolkit.include_dirs()
    for name in toolkit.HEADERS:
        path = next(Path(folder, name) for folder in folders if Path(folder, name).exists())
        digest.update(f"{name} {path.stat().st_size}".encode())
    return digest.digest()


@functools.cache
def _compile_cached(path: Path, macros: tuple[tuple[str, int], ...], folder: str) -> Compiled:
    toolkit.require()
    source = path.read_text("utf-8")
    options = ProgramOptions(
        arch=ARCH,
        std="c++17",
        name=path.name,
        include_path=[str(FOLDER), *toolkit.include_dirs()],
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
        found: dict[str, Any] = {kind: cache.get(key) for kind, key in keys.items()}
        if None in found.values():
            found = _nvrtc(source, options)
            for kind, key in keys.items():
                cache[key] = found[kind]
    return Compiled(found["cubin"], found["ptx"].decode().rstrip("\0"))


def _nvrtc(source: str, options: ProgramOptions) -> dict[str, Any]:
    """Compile once and return both products."""
    try:
        program = Program(source, "c++", options)
        cubin = bytes(program.compile("cubin").code)
    except Exception as error:  # cuda.core raises a private error type with the log as text
        raise CompileError(f"{options.name}: NVRTC for {ARCH}: {error}") from error
    # cuda.core's own function for the PTX needs a driver, which may be missing
    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    ptx = b" " * size
    (status,) = nvrtc.nvrtcGetPTX(program.handle, ptx)
    check(status == nvrtc.nvrtcResult.NVRTC_SUCCESS, CompileError, f"{options.name}: nvrtcGetPTX: {status}")
    return {"cubin": cubin, "ptx": ptx}
