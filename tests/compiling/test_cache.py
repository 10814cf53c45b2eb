# SPDX-License-Identifier: Apache-2.0
"""The kernel cache on disk: keys, atomic entries, damage, and two processes at once."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from cutegemm import DType, GemmSpec, Tile, problem
from cutegemm.compiling import kernel_cache, sealed_files
from cutegemm.database.user_database import default_path
from cutegemm.errors import InputError
from cutegemm.files import unsealed
from cutegemm.planning.planner import plan
from cutegemm.running.backends import properties
from tests.support.compiled import CONFIG, OTHER, isolated


@pytest.fixture(scope="module")
def made():
    """The compiled kernel of `CONFIG`."""
    return kernel_cache.artifact(CONFIG)


@pytest.fixture
def fresh(made, tmp_path, monkeypatch):
    """An empty memory, and a cache directory of the test's own with the entry in it; returns the entry's path."""
    return isolated(monkeypatch, tmp_path)


@pytest.fixture
def no_compiler(monkeypatch):
    """Compiling raises: what succeeds came from the cache."""

    def refuse(config):
        raise AssertionError("compiled")

    monkeypatch.setattr(kernel_cache, "compile_config", refuse)


def test_the_directory_is_the_users_choice(monkeypatch, tmp_path):
    """CUTEGEMM_CACHE_DIR overrides the user's folders for kernels, GPUs and measurements; ~ is the home directory."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    assert kernel_cache.directory() == tmp_path / "kernels"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", "~/kept")
    home = tmp_path / "kept"
    assert kernel_cache.directory().parent == home
    assert properties.path().parent == home and default_path().parent == home
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", "~nobody of this name/kept")
    with pytest.raises(InputError, match="CUTEGEMM_CACHE_DIR='~nobody.*a user who does not exist"):
        kernel_cache.directory()
    monkeypatch.delenv("CUTEGEMM_CACHE_DIR")
    assert "cutegemm" in str(kernel_cache.directory())


def test_a_user_without_a_home_directory_is_asked_for_one(monkeypatch):
    """As in a container whose user has no entry in /etc/passwd and no HOME."""

    def unknown(user):
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("CUTEGEMM_CACHE_DIR", "HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for folder in (kernel_cache.directory, default_path):
        with pytest.raises(
            InputError, match="^CUTEGEMM_CACHE_DIR='': must name a directory, .* no home directory"
        ):
            folder()


def test_an_entry_on_disk_is_not_compiled_again(fresh, no_compiler, made):
    """Object, PTX, cubin and resources come back from the file."""
    assert kernel_cache.artifact(CONFIG) == made and kernel_cache.artifact(CONFIG) is not made
    assert made.resources.instructions["wgmma"] > 0 and made.resources.smem_bytes > 0


def test_an_entry_in_memory_is_not_read_again(fresh, no_compiler):
    """The second use needs no file."""
    first = kernel_cache.artifact(CONFIG)
    fresh.unlink()
    assert kernel_cache.artifact(CONFIG) is first


def test_an_entry_describes_itself(fresh, made):
    """The file is a zip whose config, resources and parts can be read."""
    with zipfile.ZipFile(fresh) as file:
        data = json.loads(file.read("entry.json"))
        assert file.read("kernel.cubin") == made.cubin
    assert data["config"] == json.loads(json.dumps(CONFIG.to_data()))


def test_no_partial_file_is_ever_in_place(fresh, made, monkeypatch):
    """An entry appears by renaming a finished file; what is left when writing fails is nothing."""
    fresh.unlink()
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: made)
    whole = []

    def fail(source, target):
        whole.append(open(source, "rb").read())
        raise OSError("no space left on device")

    monkeypatch.setattr(sealed_files.os, "replace", fail)
    with pytest.warns(RuntimeWarning, match="^compiled kernel not cached: no space left on device$"):
        kernel_cache.artifact(CONFIG)
    assert kernel_cache._unpacked(unsealed(whole[0], fresh.name)) == made
    assert {x.name for x in fresh.parent.iterdir()} == {sealed_files.LOCKS}


def test_a_directory_that_cannot_be_made_is_no_error(monkeypatch, tmp_path, made):
    """Without a place to keep it, a kernel is compiled, used, and the loss reported."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: made)
    with pytest.warns(RuntimeWarning, match="^compiled kernel not cached: "):
        assert kernel_cache.artifact(CONFIG) is made


WITH_C = plan(
    GemmSpec(tile=Tile(128, 64, 64), stages=CONFIG.stages - 1), problem(512, 512, 512, c_dtype="bf16")
).config
CHANGES = {
    "stages": dataclasses.replace(CONFIG, stages=3),
    "tile": dataclasses.replace(CONFIG, tile=(256, 64, 64), stages=4),
    "type": dataclasses.replace(CONFIG, outputs=(dataclasses.replace(CONFIG.d, dtype=DType.FP32),), epi_n=32),
    "epilogue": WITH_C,
    "input": dataclasses.replace(WITH_C, inputs=(dataclasses.replace(WITH_C.inputs[0], load="direct"),)),
    "input stages": dataclasses.replace(CONFIG, epi_n=32, input_stages=2),
    "device scalars": dataclasses.replace(CONFIG, device_scalars=("alpha",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_of_a_config_is_in_the_key(name):
    """Another config is another entry; an equal one is the same entry."""
    assert (
        kernel_cache.key(CHANGES[name])
        != kernel_cache.key(CONFIG)
        == kernel_cache.key(dataclasses.replace(CONFIG))
    )


@pytest.mark.parametrize("part", ["sources_digest", "version"])
def test_sources_and_dsl_are_in_the_key(part, monkeypatch):
    """Changed kernel sources, or another DSL, make other entries."""
    before = kernel_cache.key(CONFIG)
    monkeypatch.setattr(kernel_cache, part, lambda: "another")
    assert kernel_cache.key(CONFIG) != before


def test_the_digest_covers_every_kernel_source(monkeypatch, tmp_path):
    """Changing any file that a kernel's code comes from changes the digest; a planner's is not among them."""
    package = tmp_path / "cutegemm"
    shutil.copytree(kernel_cache.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernel_cache, "PACKAGE", package)
    digest = kernel_cache.sources_digest.__wrapped__
    found = []
    behind = kernel_cache.sources.behind
    monkeypatch.setattr(kernel_cache.sources, "behind", lambda *of: found.extend(behind(*of)) or found)
    seen = {digest()}
    # imports are read once: what follows changes comments
    monkeypatch.setattr(kernel_cache.sources, "behind", lambda *of: found)
    kernels = sorted(package.glob("kernels/**/*.py"))
    names = (
        "config/kernel_config.py",
        "dtypes.py",
        "arch/sm90.py",
        "epilogue/graph.py",
        "layouts/hardware.py",
    )
    others = [package / name for name in names]
    for path in (*kernels, *others):
        path.write_text(path.read_text() + "\n# changed\n")
        seen.add(digest())
    assert len(seen) == 1 + len(kernels) + len(others) and len(kernels) >= 20
    assert package / "planning" / "planner.py" not in found


CHILD = """
import json, sys
from cutegemm import config
from cutegemm.compiling import kernel_cache
compiled, compile_config = [], kernel_cache.compile_config
kernel_cache.compile_config = lambda config: compiled.append(config) or compile_config(config)
wanted = config.config_from_data(json.loads(sys.stdin.read()))
print(len(kernel_cache.artifact(wanted).obj), len(compiled))
"""


def test_two_processes_at_once_compile_once(monkeypatch, tmp_path):
    """Both get the kernel, which one of them has compiled, and one whole entry is left."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-W", "error", "-c", CHILD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        child.stdin.write(json.dumps(OTHER.to_data()))
        child.stdin.close()
    for child in children:
        assert child.wait() == 0, child.stderr.read()
    sizes, compiled = zip(*(map(int, child.stdout.read().split()) for child in children), strict=True)
    assert sizes[0] == sizes[1] and sorted(compiled) == [0, 1]
    names = {kernel_cache.entry(OTHER).name, sealed_files.LOCKS}
    assert {x.name for x in (tmp_path / "kernels").iterdir()} == names
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    monkeypatch.setattr(kernel_cache, "compile_config", None)
    assert kernel_cache.artifact(OTHER).cubin[:4] == b"\x7fELF"


def test_missing_kernels_are_compiled_elsewhere(fresh, made, monkeypatch):
    """`ensure` compiles many missing configs in subprocesses and nothing that is there; a process has three or more."""
    asked = []
    monkeypatch.setattr(kernel_cache.jobs, "compile_parallel", lambda *job: asked.append(job))
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: made)
    monkeypatch.setattr(kernel_cache, "START", 3)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    first, *others = wanted = [CONFIG, *CHANGES.values()]
    kernel_cache.ensure([*wanted, first])
    ((configs, workers),) = asked
    assert configs == others and workers == len(CHANGES) // 3 == 2
    assert set(kernel_cache._MEMORY) == set(wanted)


def test_few_missing_kernels_are_compiled_here(fresh, made, monkeypatch):
    """Five kernels start no process, which would take longer to start than its share takes to compile."""
    monkeypatch.setattr(kernel_cache.jobs, "compile_parallel", None)
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: made)
    monkeypatch.setattr(kernel_cache, "START", 3)
    kernel_cache.ensure([CONFIG, *list(CHANGES.values())[:5]])
    assert len(kernel_cache._MEMORY) == 6
