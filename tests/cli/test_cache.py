# SPDX-License-Identifier: Apache-2.0
"""`cutegemm cache` and `cutegemm database show`: what is kept on this machine."""

import os

import pytest

from cutegemm import files, problem
from cutegemm.compiling import archive, kernel_cache
from cutegemm.files import packed, sealed
from tests.support.command import document, refused, run
from tests.support.compiled import CONFIG, isolated
from tests.support.tuned import filled


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """A cache with one kernel."""
    return isolated(monkeypatch, tmp_path / "cache")


def test_kernels_are_listed(entry):
    """Name, family, size and what it is; a damaged one with what is wrong."""
    text = run("cache", "list")
    assert text.startswith("1 kernel in") and entry.name[:8] in text and "128 x 64 x 64, bf16" in text
    entry.write_bytes(entry.read_bytes()[:-1])
    found = document("cache", "list")
    assert found["count"] == 1 and "differs from its checksum" in found["kernels"][0]["trouble"]
    assert found["bytes"] == entry.stat().st_size


def test_a_cache_that_is_not_there_is_empty(tmp_path, monkeypatch):
    """Nothing is made by looking."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "none"))
    shown = " ".join(run("cache", "list").split())
    assert shown.startswith("0 kernels in") and not (tmp_path / "none").exists()


def test_kernels_are_cleared(entry):
    """All of them, the old ones, or the damaged ones."""
    assert run("cache", "clear", "--older-than", 1).startswith("0 kernels removed")
    assert run("cache", "clear", "--unusable").startswith("0 kernels removed")
    os.utime(entry, (0, 0))
    assert document("cache", "clear", "--older-than", 1)["count"] == 1
    assert not entry.exists()
    assert run("cache", "clear").startswith("0 kernels removed")


def test_kernels_travel(entry, tmp_path, monkeypatch):
    """What export writes import takes, so that nothing compiles again."""
    before, file = kernel_cache.artifact(CONFIG), tmp_path / "kernels.zip"
    assert run("cache", "export", file).startswith("1 kernel exported")
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr(kernel_cache, "_MEMORY", {})
    assert document("cache", "import", file)["count"] == 1
    assert run("cache", "import", file).startswith("0 kernels imported")
    monkeypatch.setattr(kernel_cache, "compile_config", lambda config: pytest.fail("compiled again"))
    assert kernel_cache.artifact(CONFIG) == before


def test_a_file_that_is_not_whole_is_refused(entry, tmp_path, monkeypatch):
    """Foreign, truncated and changed files change nothing."""
    good, bad = tmp_path / "good.zip", tmp_path / "bad.zip"
    archive.export(good)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path / "other"))
    whole = good.read_bytes()
    for data, says in (
        (b"", "differs from its checksum"),
        (whole[:100], "differs from its checksum"),
        (whole[:99] + bytes([whole[99] ^ 1]) + whole[100:], "differs from its checksum"),
        (sealed(b"no zip"), "must be a file that `cutegemm cache export` wrote"),
        (sealed(packed({"../../x.zip": b""})), "is not the name of a kernel"),
    ):
        bad.write_bytes(data)
        assert says in refused("cache", "import", bad)
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    assert "it holds more than 10 bytes" in refused("cache", "import", good)
    assert not (tmp_path / "other").exists()


def test_a_directory_that_others_may_write_takes_nothing(entry, tmp_path, monkeypatch):
    """Kernels are not put where others could replace them; the error names the directory."""
    file, folder = tmp_path / "kernels.zip", tmp_path / "open" / "kernels"
    archive.export(file)
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(folder.parent))
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert "must be a directory that only you may write" in refused("cache", "import", file)
    assert not list(folder.iterdir())


def test_an_export_that_fails_leaves_what_was_there(entry, tmp_path, monkeypatch):
    """The file is replaced as a whole or not at all, and no part of it stays."""
    file = tmp_path / "kernels.zip"
    file.write_text("before")

    def broken(source, target):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", broken)
    assert "must be a file that can be written: disk full" in refused("cache", "export", file)
    assert file.read_text() == "before" and [x.name for x in tmp_path.glob("kernels*")] == ["kernels.zip"]


def test_entries_are_shown(tmp_path, monkeypatch):
    """The user's entries and those that ship, of some GPUs or all, with gain over the model's choice."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    filled(tmp_path / "tuned.sqlite", problem(1000, 512, 256))
    text = run("database", "show", "--source", "user")
    assert "1 entries" in text and "1000 x 512 x 256" in text and "1.14 x the model's" in text
    assert "tile 128x64x64" in " ".join(text.split())
    every = document("database", "show")["entries"]
    assert {x["source"] for x in every} == {"user", "shipped"}
    h100 = document("database", "show", "--gpu", "h100")["entries"]
    assert h100 and all("H100" in x["gpu"] for x in h100) and len(h100) < len(every)
    assert "must be one of user, shipped, all" in refused("database", "show", "--source", "mine")


@pytest.mark.parametrize("days", ["-1", "nan"])
def test_an_age_is_not_negative(days):
    """A negative age would select all kernels, and nan none."""
    says = refused("cache", "clear", "--older-than", days)
    assert (
        says.startswith("cutegemm cache clear: --older-than=")
        and "must be a number of days, at least 0" in says
    )


def test_a_missing_archive_is_named_once():
    """The error of the system stands without its number."""
    assert refused("cache", "import", "/none/x.zip").endswith("wrote: No such file or directory")
