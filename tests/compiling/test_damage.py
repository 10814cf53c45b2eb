# SPDX-License-Identifier: Apache-2.0
"""Cache entries that are not as they were written: every one ends in the right kernel and one warning."""

import os
import random
import re
import shutil
import warnings
import zipfile

import pytest

from cutegemm.compiling import kernel_cache, sealed_files
from cutegemm.files import SEAL_BYTES, packed, unpacked
from tests.support.compiled import CONFIG, OTHER, isolated
from tests.support.profile import cases

UNUSABLE = "cache entry {} is unusable and will be rebuilt: "


@pytest.fixture(scope="module")
def made():
    """The compiled kernel of `CONFIG`, and another one in the run's cache."""
    kernel_cache.artifact(OTHER)
    return kernel_cache.artifact(CONFIG)


@pytest.fixture
def fresh(made, tmp_path, monkeypatch):
    """A cache directory of the test's own with the entries of both kernels in it; returns that of `CONFIG`."""
    other = kernel_cache.entry(OTHER)
    path = isolated(monkeypatch, tmp_path)
    shutil.copy(other, path.parent / other.name)
    return path


@pytest.fixture
def compiled(made, monkeypatch):
    """The configs that were compiled since; each takes no time."""
    asked = []
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: asked.append(config) or made)
    return asked


def heal(path, compiled, made) -> str:
    """Take the kernel twice: it is right, compiled at most once, warned of once; returns the warning."""
    compiled.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            kernel_cache._MEMORY.clear()
            assert kernel_cache.artifact(CONFIG) == made
    assert compiled == [CONFIG] and len(caught) == 1
    text = str(caught[0].message)
    assert text.startswith(UNUSABLE.format(path)), text
    return text.removeprefix(UNUSABLE.format(path))


def rewrite(path, **members):
    """Replace members of an entry's zip, and leave the checksum."""
    file = path.read_bytes()
    found = unpacked(file[:-SEAL_BYTES]) | {name.replace("_", "."): x for name, x in members.items()}
    zipped = packed({name: data for name, data in found.items() if data is not None})
    path.write_bytes(zipped + file[-SEAL_BYTES:])


def swap_members(path):
    """The object of another kernel in this one's entry."""
    with zipfile.ZipFile(kernel_cache.entry(OTHER)) as file:
        rewrite(path, kernel_o=file.read("kernel.o"))


def pipe(path):
    """A pipe without a writer, which would block whoever opens it to read."""
    path.unlink()
    os.mkfifo(path)


def link(path):
    """A link to the same bytes elsewhere."""
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def enlarge(path):
    """A file of holes, larger than any kernel."""
    os.truncate(path, sealed_files.MOST_BYTES + 1)


SEAL = r"it differs from its checksum"
DAMAGE = {
    "truncated": (lambda path: os.truncate(path, path.stat().st_size // 2), SEAL),
    "empty": (lambda path: path.write_bytes(b""), SEAL),
    "shorter than a seal": (lambda path: path.write_bytes(b"x" * 31), SEAL),
    "foreign": (lambda path: path.write_bytes(b"something else entirely"), SEAL),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), SEAL),
    "object changed": (lambda path: rewrite(path, kernel_o=b"not the object"), SEAL),
    "deep json": (lambda path: rewrite(path, entry_json=b"[" * 100_000), SEAL),
    "bad text": (lambda path: rewrite(path, kernel_ptx=b"\xff\xfe"), SEAL),
    "cubin missing": (lambda path: rewrite(path, kernel_cubin=None), SEAL),
    "another kernel's object": (swap_members, SEAL),
    "another kernel's entry": (lambda path: shutil.copy(kernel_cache.entry(OTHER), path), SEAL),
    "too large": (enlarge, r"it has 268,435,457 bytes"),
    "a pipe": (pipe, r"it is not a regular file"),
    "a link": (link, r".*symbolic links.*"),
    "writable by the group": (lambda path: path.chmod(0o664), r"it may be written by others, .*-rw-rw-r--"),
    "writable by all": (lambda path: path.chmod(0o606), r"it may be written by others, .*-rw----rw-"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_entry_is_reported_and_rebuilt(name, fresh, compiled, made):
    """A file that is not what its name says is never used: a warning, a compilation, and a whole file again."""
    damage, why = DAMAGE[name]
    damage(fresh)
    said = heal(fresh, compiled, made)
    assert re.fullmatch(why, said), said


@pytest.mark.parametrize("data", [b"", b"PK", b"{}", b"[" * 100_000])
def test_a_sealed_entry_of_another_form_is_rebuilt(data, fresh, compiled, made):
    """What this directory sealed but this version cannot read is rebuilt like any other."""
    sealed_files.write(fresh.parent, fresh.name, data)
    heal(fresh, compiled, made)


def test_every_flipped_bit_heals(fresh, compiled, made):
    """Wherever in an entry one bit is flipped, the kernel is right and the file is whole again."""
    rng = random.Random(20)
    for _ in range(cases(300, 6_000)):
        data = bytearray(fresh.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        fresh.write_bytes(data)
        heal(fresh, compiled, made)


def test_every_cut_and_swapped_range_heals(fresh, compiled, made):
    """Any range of an entry that is missing, doubled, zeroed or moved is noticed."""
    rng = random.Random(21)
    for _ in range(cases(60, 1_000)):
        data = fresh.read_bytes()
        a, b = sorted(rng.sample(range(len(data)), 2))
        changed = rng.choice(
            [
                data[:a] + data[b:],
                data[:b] + data[a:],
                data[:a] + bytes(b - a) + data[b:],
                data[b:] + data[:b],
            ]
        )
        if changed != data:
            fresh.write_bytes(changed)
            heal(fresh, compiled, made)


@pytest.fixture
def another_user(monkeypatch):
    """Call with a path: from then on it belongs to somebody else (root may change owners, others see them changed)."""
    stat, fstat, given = os.stat, os.fstat, set()

    def seen(found):
        changed = list(found)
        changed[4] = 12345
        return os.stat_result(changed) if (found.st_dev, found.st_ino) in given else found

    monkeypatch.setattr(sealed_files.os, "stat", lambda *x, **y: seen(stat(*x, **y)))
    monkeypatch.setattr(sealed_files.os, "fstat", lambda x: seen(fstat(x)))
    return lambda path: given.add((path.stat().st_dev, path.stat().st_ino))


def test_an_entry_of_another_user_is_rebuilt(fresh, compiled, made, another_user):
    """Entries hold code. Only entries that the user or root owns are loaded."""
    another_user(fresh)
    assert heal(fresh, compiled, made) == "it belongs to user 12345"


def refused(path, compiled, made) -> str:
    """Take the kernel from a directory that cannot be used: right, one warning; returns the warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert kernel_cache.artifact(CONFIG) == made
    assert compiled == [CONFIG] and len(caught) == 1
    return str(caught[0].message)


def test_a_directory_of_another_user_is_neither_read_nor_written(fresh, compiled, made, another_user):
    """Kernels are compiled and not kept where the directory is somebody else's."""
    before = fresh.read_bytes()
    another_user(fresh.parent)
    text = refused(fresh, compiled, made)
    why = f"directory {fresh.parent} belongs to user 12345"
    assert text == UNUSABLE.format(fresh) + f"{why}; compiled kernel not cached: {why}"
    assert fresh.read_bytes() == before


def test_a_directory_that_others_may_write_is_neither_read_nor_written(fresh, compiled, made):
    """The same for a directory whose mode lets others write; with the mode mended it serves again."""
    fresh.parent.chmod(0o777)
    assert "may be written by others, its mode is drwxrwxrwx" in refused(fresh, compiled, made)
    fresh.parent.chmod(0o755)
    kernel_cache._MEMORY.clear()
    assert kernel_cache.artifact(CONFIG) == made and compiled == [CONFIG]


def test_a_new_directory_is_the_users_alone(tmp_path, monkeypatch):
    """Whatever the umask, nobody else may write what is made."""
    before = os.umask(0)
    try:
        sealed_files.write(tmp_path / "new" / "kernels", "a", b"data")
    finally:
        os.umask(before)
    folder = tmp_path / "new" / "kernels"
    modes = {x.name: x.stat().st_mode & 0o777 for x in (folder, *folder.iterdir())}
    assert modes == {"kernels": 0o700, "a": 0o644}
    assert sealed_files.read(folder, "a") == b"data" and sealed_files.read(folder, "b") is None
