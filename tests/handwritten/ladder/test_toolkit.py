# SPDX-License-Identifier: Apache-2.0
"""The compiler and its headers are found as wheels or as a CUDA toolkit; what is missing is named with its package."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda import pathfinder

from cutegemm.errors import CompileError
from handwritten.ladder import toolkit


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A machine without wheels and without a toolkit; `tmp_path / "usual"` is where one is usually installed."""

    def no_library(name: str) -> None:
        raise pathfinder.DynamicLibNotFoundError(name)

    for name in toolkit.ROOT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolkit, "USUAL_ROOT", tmp_path / "usual")
    monkeypatch.setattr(toolkit.pathfinder, "find_nvidia_header_directory", lambda name: None)
    monkeypatch.setattr(toolkit.pathfinder, "load_nvidia_dynamic_lib", no_library)
    monkeypatch.setattr(toolkit.sys, "path", [])
    toolkit.include_dirs.cache_clear()
    toolkit.load_nvrtc.cache_clear()
    yield monkeypatch
    toolkit.include_dirs.cache_clear()
    toolkit.load_nvrtc.cache_clear()


def headers(folder: Path, names: tuple[str, ...] = toolkit.HEADERS) -> str:
    """The folder, holding empty headers."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return str(folder)


def test_headers_are_found_wherever_wheels_were_unpacked(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Headers of a folder on sys.path serve where nothing is installed."""
    bare.setattr(toolkit.sys, "path", [str(tmp_path)])
    unpacked = headers(tmp_path / "nvidia" / "cu13" / "include")
    assert toolkit.include_dirs() == (unpacked,)


@pytest.mark.parametrize("variable", toolkit.ROOT_VARIABLES)
def test_headers_of_a_named_toolkit(bare: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    """CUDA_PATH and CUDA_HOME name a toolkit whose headers serve, before those of the usual place."""
    headers(tmp_path / "usual" / "include")
    mine = headers(tmp_path / "mine" / "targets" / "x86_64-linux" / "include")
    bare.setenv(variable, str(tmp_path / "mine"))
    assert toolkit.include_dirs() == (mine,)


def test_headers_of_the_usual_toolkit(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without wheels and variables the toolkit in the usual place serves."""
    assert toolkit.USUAL_ROOT == tmp_path / "usual"
    usual = headers(tmp_path / "usual" / "include")
    assert toolkit.include_dirs() == (usual,)


def test_a_whole_set_of_headers_is_preferred(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A toolkit with all headers is taken alone, rather than mixed with a folder that has only some."""
    some = headers(tmp_path / "nvidia" / "cu13" / "include", toolkit.HEADERS[:2])
    bare.setattr(toolkit.sys, "path", [str(tmp_path)])
    whole = headers(tmp_path / "usual" / "include")
    assert toolkit.include_dirs() == (whole,)
    (tmp_path / "usual" / "include" / toolkit.HEADERS[0]).unlink()
    toolkit.include_dirs.cache_clear()
    assert toolkit.include_dirs() == (some, whole), "no folder has all: the first that has each"


def test_missing_headers_are_named_with_their_packages(bare: pytest.MonkeyPatch) -> None:
    """Without the CUDA headers the error says which one, and what to install or set."""
    message = (
        r"no cuda_bf16\.hpp in .*; pip install nvidia-cuda-runtime nvidia-cuda-crt, "
        r"or set CUDA_HOME to a CUDA toolkit$"
    )
    with pytest.raises(CompileError, match=message):
        toolkit.include_dirs()


def test_missing_compiler_is_named_with_its_package(bare: pytest.MonkeyPatch) -> None:
    """Without NVRTC the error is one line that names the package."""
    with pytest.raises(
        CompileError, match=r"^NVRTC.*; pip install nvidia-cuda-nvrtc, or set CUDA_HOME"
    ) as caught:
        toolkit.load_nvrtc()
    assert "\n" not in str(caught.value)


def test_compiler_of_a_toolkit_is_loaded(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A libnvrtc of the toolkit is loaded, newest first; one of a version that does not serve is passed over."""
    for version in ("11.2", "13.0"):
        (tmp_path / "usual" / "lib64").mkdir(parents=True, exist_ok=True)
        (tmp_path / "usual" / "lib64" / f"libnvrtc.so.{version}").touch()
    loaded: list[str] = []

    def find(name: str) -> None:
        if "libnvrtc.so.11.2" not in loaded:
            raise pathfinder.DynamicLibNotFoundError(name)

    bare.setattr(toolkit.ctypes, "CDLL", lambda path, mode: loaded.append(Path(path).name))
    bare.setattr(toolkit.pathfinder, "load_nvidia_dynamic_lib", find)
    toolkit.load_nvrtc()
    assert loaded == ["libnvrtc.so.13.0", "libnvrtc.so.11.2"]


def test_a_library_that_cannot_be_loaded_is_no_compiler(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A damaged libnvrtc ends in the error that names the package, not in the linker's."""
    (tmp_path / "usual" / "lib64").mkdir(parents=True)
    (tmp_path / "usual" / "lib64" / "libnvrtc.so.13").write_text("no library")
    with pytest.raises(CompileError, match="pip install nvidia-cuda-nvrtc"):
        toolkit.load_nvrtc()
