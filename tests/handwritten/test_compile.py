# SPDX-License-Identifier: Apache-2.0
"""Compiled stages are kept on disk where the user says, reused, and rebuilt when the source changes."""

import pytest

from cutegemm.errors import CompileError
from handwritten import compile as compiler

SOURCE = '#include "common.cuh"\nextern "C" __global__ void gemm(float* x) { x[0] = VALUE; }\n'


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A tiny kernel file, and an empty cache beside it."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    compiler._compile_cached.cache_clear()
    path = tmp_path / "tiny.cu"
    path.write_text(SOURCE)
    return path


def test_second_compile_comes_from_disk(source, monkeypatch):
    """With the in-memory copy gone, the same source and macros do not reach NVRTC again."""
    first = compiler.compile_source(source, {"VALUE": 1})
    compiler._compile_cached.cache_clear()
    monkeypatch.setattr(compiler, "Program", None)
    assert compiler.compile_source(source, {"VALUE": 1}) == first
    assert ".entry gemm" in first.ptx and first.cubin[:4] == b"\x7fELF"


def test_macros_and_headers_are_part_of_the_key(source, monkeypatch):
    """Another macro, or another shared header, is another kernel."""
    first = compiler.compile_source(source, {"VALUE": 1})
    assert compiler.compile_source(source, {"VALUE": 2}).ptx != first.ptx
    compiler._compile_cached.cache_clear()
    monkeypatch.setattr(compiler, "_header_digest", lambda: b"other headers")
    monkeypatch.setattr(compiler, "Program", None)
    with pytest.raises(CompileError):
        compiler.compile_source(source, {"VALUE": 1})


def test_compiler_log_is_in_the_error(source):
    """A source that NVRTC rejects is reported with its name and NVRTC's own words."""
    source.write_text("extern void;;; nonsense\n")
    with pytest.raises(CompileError, match=r"tiny\.cu: NVRTC for sm_90a: (?s:.)*nonsense"):
        compiler.compile_source(source, {})


def test_headers_are_found_wherever_wheels_were_unpacked(tmp_path, monkeypatch):
    """Headers of a folder on sys.path serve where the installed ones are incomplete."""
    unpacked = tmp_path / "nvidia" / "cu13" / "include"
    for name in compiler.HEADERS:
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).touch()
    monkeypatch.setattr(compiler.pathfinder, "find_nvidia_header_directory", lambda name: None)
    monkeypatch.setattr(compiler.sys, "path", [str(tmp_path)])
    assert compiler.include_dirs.__wrapped__() == (str(unpacked),)


def test_missing_headers_are_named_with_their_wheels(monkeypatch):
    """Without the CUDA headers the error says which one and what to install."""
    monkeypatch.setattr(compiler.pathfinder, "find_nvidia_header_directory", lambda name: None)
    monkeypatch.setattr(compiler.sys, "path", [])
    with pytest.raises(
        CompileError, match=r"no cuda_bf16.hpp in .*pip install nvidia-cuda-runtime nvidia-cuda-crt"
    ):
        compiler.include_dirs.__wrapped__()
