# SPDX-License-Identifier: Apache-2.0
"""Compiled stages are kept on disk where the user says, reused, and rebuilt when the source changes."""

from pathlib import Path

import pytest

import handwritten
from cutegemm.errors import CompileError, GemmError
from handwritten.ladder import compiling

SOURCE = '#include "common.cuh"\nextern "C" __global__ void gemm(float* x) { x[0] = VALUE; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny kernel file, and an empty cache beside it."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "cache"))
    compiling._compile_cached.cache_clear()
    path = tmp_path / "tiny.cu"
    path.write_text(SOURCE)
    return path


def test_second_compile_comes_from_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the in-memory copy gone, the same source and macros do not reach NVRTC again."""
    first = compiling.compile_source(source, {"VALUE": 1})
    compiling._compile_cached.cache_clear()
    monkeypatch.setattr(compiling, "Program", None)
    assert compiling.compile_source(source, {"VALUE": 1}) == first
    assert ".entry gemm" in first.ptx and first.cubin[:4] == b"\x7fELF"


def test_macros_and_headers_are_part_of_the_key(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another macro, or another shared header, is another kernel."""
    first = compiling.compile_source(source, {"VALUE": 1})
    assert compiling.compile_source(source, {"VALUE": 2}).ptx != first.ptx
    compiling._compile_cached.cache_clear()
    monkeypatch.setattr(compiling, "_header_digest", lambda: b"other headers")
    monkeypatch.setattr(compiling, "Program", None)
    with pytest.raises(CompileError):
        compiling.compile_source(source, {"VALUE": 1})


def test_compiler_log_is_in_the_error(source: Path) -> None:
    """A source that NVRTC rejects is reported with its name and NVRTC's own words."""
    source.write_text("extern void;;; nonsense\n")
    with pytest.raises(CompileError, match=r"tiny\.cu: NVRTC for sm_90a: (?s:.)*nonsense"):
        compiling.compile_source(source, {})


def test_ptx_is_for_hopper() -> None:
    """PTX comes without a GPU and targets the architecture that the CUBIN is for."""
    assert ".target sm_90a" in handwritten.stage(1).ptx


@pytest.mark.parametrize(
    ("stage", "dtype", "majors", "message"),
    [
        (1, "bf16", "rr", r"^dtype='bf16': stage 01_naive takes fp32$"),
        (6, "fp32", "rc", r"^majors='rc': stage 06_vectorised takes rr$"),
        (14, "fp16", "nn", r"^majors='nn': stage 14_mma_sync takes rr, rc, cr, cc$"),
    ],
)
def test_wrong_dtype_or_majors(stage: int, dtype: str, majors: str, message: str) -> None:
    """A dtype or majors that the stage lacks are refused with those it has."""
    with pytest.raises(GemmError, match=message):
        handwritten.stage(stage).compiled(dtype, majors)
