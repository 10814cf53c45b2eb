# SPDX-License-Identifier: Apache-2.0
"""The kernel cache on disk: keys, atomic entries, damage, and two processes at once."""

import ast
import dataclasses
import json
import shutil
import subprocess
import sys
import warnings
import zipfile

import pytest

from cutegemm import DType, GemmSpec, Tile, cache, plan, problem
from cutegemm.errors import CompileError

CONFIG = plan(GemmSpec(tile=Tile(128, 64, 64)), problem(512, 512, 512)).config
OTHER = dataclasses.replace(CONFIG, stages=2)


@pytest.fixture(scope="module")
def entry():
    """The file of one compiled kernel, in the session's cache."""
    cache.artifact(CONFIG)
    return cache._path(CONFIG)


@pytest.fixture
def fresh(entry, tmp_path, monkeypatch):
    """An empty memory, and a cache directory of the test's own with the entry in it; returns the entry's path."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cache, "_MEMORY", {})
    path = cache._path(CONFIG)
    path.parent.mkdir(parents=True)
    shutil.copy(entry, path)
    return path


@pytest.fixture
def no_compiler(monkeypatch):
    """Compiling raises: what succeeds came from the cache."""

    def refuse(config):
        raise AssertionError("compiled")

    monkeypatch.setattr(cache, "compile_config", refuse)


def test_the_directory_is_the_users_choice(monkeypatch, tmp_path):
    """CUTEGEMM_CACHE_DIR overrides the user's cache directory."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    assert cache.directory() == tmp_path / "kernels"
    monkeypatch.delenv("CUTEGEMM_CACHE_DIR")
    assert "cutegemm" in str(cache.directory())


def test_an_entry_on_disk_is_not_compiled_again(fresh, no_compiler, entry):
    """Object, PTX, cubin and resources come back from the file."""
    found = cache.artifact(CONFIG)
    with zipfile.ZipFile(entry) as file:
        assert found.obj == file.read("kernel.o") and found.cubin == file.read("kernel.cubin")
        assert found.ptx == file.read("kernel.ptx").decode()
    assert found.resources.instructions["wgmma"] > 0 and found.resources.smem_bytes > 0


def test_an_entry_in_memory_is_not_read_again(fresh, no_compiler):
    """The second use needs no file."""
    first = cache.artifact(CONFIG)
    fresh.unlink()
    assert cache.artifact(CONFIG) is first


def test_an_entry_describes_itself(entry):
    """The config, the resources and the digests of its parts are readable in the file."""
    with zipfile.ZipFile(entry) as file:
        data = json.loads(file.read("entry.json"))
    assert data["config"] == json.loads(json.dumps(CONFIG.to_data()))
    assert set(data["sha256"]) == {"kernel.o", "kernel.ptx", "kernel.cubin"}


def rewrite(path, **members):
    """Replace members of an entry."""
    with zipfile.ZipFile(path) as file:
        found = {name: file.read(name) for name in file.namelist()}
    found |= {name.replace("_", "."): data for name, data in members.items()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in found.items():
            if data is not None:
                file.writestr(name, data)


def truncate(path):
    """Cut the file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_kernel(path):
    """Make the entry's description that of another config."""
    with zipfile.ZipFile(path) as file:
        data = json.loads(file.read("entry.json"))
    rewrite(path, entry_json=json.dumps(data | {"config": OTHER.to_data()}))


DAMAGE = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_bytes(b"something else entirely"),
    "object changed": lambda path: rewrite(path, kernel_o=b"not the object"),
    "cubin missing": lambda path: rewrite(path, kernel_cubin=None),
    "no description": lambda path: rewrite(path, entry_json=None),
    "description of nothing": lambda path: rewrite(path, entry_json=b"[]"),
    "another kernel's": of_another_kernel,
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_reported_and_rebuilt(name, fresh, entry, monkeypatch):
    """A file that is not what its name says is never used: a warning, a compilation, and a whole file again."""
    DAMAGE[name](fresh)
    compiled, good = [], _artifact(entry)
    monkeypatch.setattr(cache, "compile_config", lambda config: compiled.append(config) or good)
    with pytest.warns(RuntimeWarning, match=r"^cache entry .*\.zip is unusable and will be rebuilt: "):
        assert cache.artifact(CONFIG) == good
    assert compiled == [CONFIG]
    cache._MEMORY.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.artifact(CONFIG) == good
    assert compiled == [CONFIG]


def _artifact(entry):
    """The artifact in an entry's file."""
    from cutegemm.compile import Artifact
    from cutegemm.resources import Resources

    with zipfile.ZipFile(entry) as file:
        data = json.loads(file.read("entry.json"))
        parts = [file.read(f"kernel.{x}") for x in ("o", "ptx", "cubin")]
    return Artifact(parts[0], parts[1].decode(), parts[2], Resources(**data["resources"]))


def test_no_partial_file_is_ever_in_place(fresh, entry, monkeypatch):
    """An entry appears by renaming a finished file; what is left when writing fails is nothing."""
    fresh.unlink()
    monkeypatch.setattr(cache, "compile_config", lambda config: _artifact(entry))

    def fail(source, target):
        assert zipfile.ZipFile(source).testzip() is None
        raise OSError("no space left on device")

    monkeypatch.setattr(cache.os, "replace", fail)
    with pytest.warns(RuntimeWarning, match="^compiled kernel not kept: no space left on device$"):
        cache.artifact(CONFIG)
    assert list(fresh.parent.iterdir()) == []


def test_a_directory_that_cannot_be_made_is_no_error(monkeypatch, tmp_path, entry):
    """Without a place to keep it, a kernel is compiled, used, and the loss reported."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "_MEMORY", {})
    monkeypatch.setattr(cache, "compile_config", lambda config: _artifact(entry))
    with pytest.warns(RuntimeWarning, match="^compiled kernel not kept: "):
        assert cache.artifact(CONFIG).cubin[:4] == b"\x7fELF"


WITH_C = plan(GemmSpec(tile=Tile(128, 64, 64), stages=CONFIG.stages - 1), problem(512, 512, 512, c_dtype="bf16")).config
CHANGES = {
    "stages": dataclasses.replace(CONFIG, stages=3),
    "tile": dataclasses.replace(CONFIG, tile=(64, 64, 64)),
    "type": dataclasses.replace(CONFIG, outputs=(dataclasses.replace(CONFIG.d, dtype=DType.FP32),)),
    "epilogue": WITH_C,
    "input": dataclasses.replace(WITH_C, inputs=(dataclasses.replace(WITH_C.inputs[0], load="direct"),)),
    "input stages": dataclasses.replace(CONFIG, input_stages=2),
    "device scalars": dataclasses.replace(CONFIG, device_scalars=("alpha",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_part_of_a_config_is_in_the_key(name):
    """Another config is another entry; an equal one is the same entry."""
    assert cache.key(CHANGES[name]) != cache.key(CONFIG) == cache.key(dataclasses.replace(CONFIG))


@pytest.mark.parametrize("part", ["sources_digest", "dsl_version"])
def test_sources_and_dsl_are_in_the_key(part, monkeypatch):
    """Changed kernel sources, or another DSL, make other entries."""
    before = cache.key(CONFIG)
    monkeypatch.setattr(cache, part, lambda: "another")
    assert cache.key(CONFIG) != before


def test_the_digest_covers_every_kernel_source(monkeypatch, tmp_path):
    """Changing any file that a kernel's code comes from changes the digest."""
    package = tmp_path / "cutegemm"
    shutil.copytree(cache.Path(cache.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(cache, "__file__", str(package / "cache.py"))
    digest = cache.sources_digest.__wrapped__
    seen = {digest()}
    kernels = sorted(package.glob("kernels/*.py"))
    imported = {package / f"{name.replace('.', '/')}.py" for path in kernels for name in imports(path)}
    files = [*kernels, *sorted(imported - {package / "errors.py"})]
    for path in files:
        path.write_text(path.read_text() + "\n# changed\n")
        seen.add(digest())
    assert len(seen) == 1 + len(files) and len(kernels) >= 20 and len(imported) >= 5


def imports(path):
    """The modules of the package, kernels aside, that a source file imports, relative to the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "cutegemm":
            name = node.module.removeprefix("cutegemm").removeprefix(".")
            found = [name] if name else [x.name for x in node.names]
            yield from (x for x in found if not x.startswith("kernels"))


CHILD = """
import json, sys
from cutegemm import cache, config
wanted = config.config_from_data(json.loads(sys.stdin.read()))
print(len(cache.artifact(wanted).obj))
"""


def test_two_processes_at_once_lose_nothing(monkeypatch, tmp_path):
    """Both get the kernel, and one whole entry is left."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-W", "error", "-c", CHILD]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for child in children:
        child.stdin.write(json.dumps(OTHER.to_data()))
        child.stdin.close()
    for child in children:
        assert child.wait() == 0, child.stderr.read()
    assert [x.name for x in (tmp_path / "kernels").iterdir()] == [cache._path(OTHER).name]
    monkeypatch.setattr(cache, "_MEMORY", {})
    monkeypatch.setattr(cache, "compile_config", None)
    assert cache.artifact(OTHER).cubin[:4] == b"\x7fELF"


def test_missing_kernels_are_compiled_elsewhere(fresh, monkeypatch):
    """`ensure` compiles several missing configs in subprocesses and nothing that is there."""
    asked = []
    monkeypatch.setattr(cache, "_compile_elsewhere", lambda configs, advance: asked.extend(configs))
    monkeypatch.setattr(cache, "compile_config", lambda config: _artifact(fresh))
    wanted = [CONFIG, *CHANGES.values(), CONFIG]
    cache.ensure(wanted)
    assert len(asked) == len(CHANGES) and set(asked) == set(CHANGES.values())
    assert set(cache._MEMORY) == set(wanted)


def test_a_failure_elsewhere_is_raised_here(fresh):
    """A config that does not compile in its subprocess raises with the compiler's words; those before it count."""
    broken = dataclasses.replace(CONFIG, tile=(128, 60, 64))
    done = []
    with pytest.raises(CompileError, match="warp_specialized kernel does not compile: "):
        cache._compile_elsewhere([CONFIG, broken], lambda: done.append(1))
    assert done == [1]
