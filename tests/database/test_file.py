# SPDX-License-Identifier: Apache-2.0
"""One file that many begin at once, that is found damaged by many at once, or that nobody may write."""

from __future__ import annotations

import multiprocessing
import os
import warnings

import pytest

from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H200
from cutegemm.database import Database, choose, export, key_of, sqlite_file
from cutegemm.database.__main__ import main
from cutegemm.errors import InputError
from tests.support.patience import PATIENCE
from tests.support.tuned import entry, filled

OF = problem(512, 512, 512)
KEY = key_of(GemmSpec(), OF, H200)
PROCESSES, TIMES = 6, 8
BEGINNINGS = {"nothing": None, "an empty file": b"", "a damaged file": b"\x07" * 5000}


def _come(path, place, begin, said):
    """Read, then write an entry, as soon as everybody is there; says what went wrong and which warnings came."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        begin.wait(PATIENCE)
        try:
            Database(path).get(KEY)
            Database(path).put(KEY._replace(extents=(place, 8, 8, 1)), entry(OF))
            wrong = None
        except Exception as error:
            wrong = repr(error)
    said.put((wrong, [str(x.message) for x in warned]))


@pytest.mark.parametrize("found", BEGINNINGS.values(), ids=BEGINNINGS)
def test_all_who_begin_at_once_share_one_file(tmp_path, found):
    """Nobody waits in vain, nobody loses an entry; what was damaged is moved once, and nothing else ever is."""
    context = multiprocessing.get_context("fork")
    for time in range(TIMES):
        path = tmp_path / str(time) / "a.sqlite"
        path.parent.mkdir()
        if found is not None:
            path.write_bytes(found)
        begin, said = context.Barrier(PROCESSES), context.Queue()
        jobs = [context.Process(target=_come, args=(path, i, begin, said)) for i in range(PROCESSES)]
        for job in jobs:
            job.start()
        heard = [said.get(timeout=PATIENCE) for _ in jobs]
        for job in jobs:
            job.join(PATIENCE)
        moved = int(bool(found))
        assert [wrong for wrong, _ in heard if wrong] == []
        assert len([x for _, warned in heard for x in warned]) == moved
        assert len(list(path.parent.glob("*.set-aside-*[0-9]"))) == moved
        assert len(Database(path).entries()) == PROCESSES


def test_where_nothing_can_be_written_it_is_read(tmp_path, monkeypatch):
    """Entries in a directory of another user are read without creating a file there; writing raises an error."""
    path = filled(tmp_path / "a b?#.sqlite", OF).path
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(GemmSpec(), OF, H200, Database(path)).plan.chosen_by.startswith("database (")
    assert [x.name for x in tmp_path.iterdir()] == ["a b?#.sqlite"]
    for change in (
        lambda x: x.put(KEY, entry(OF)),
        lambda x: x.kept_open().__enter__(),
    ):
        with pytest.raises(
            InputError, match=r"^database='.*': must be a file that can be written, or made: nothing can"
        ):
            change(Database(path))


def test_a_file_that_goes_while_it_is_opened_stops_nobody(tmp_path, monkeypatch):
    """Another process may move it aside at any time: who reads it finds what was there."""
    path = filled(tmp_path / "a.sqlite", OF).path
    empty = sqlite_file._empty

    def gone(connection):
        found = empty(connection)
        path.rename(tmp_path / "aside")
        return found

    monkeypatch.setattr(sqlite_file, "_empty", gone)
    assert Database(path).get(KEY) == entry(OF)


@pytest.mark.filterwarnings("ignore:tuning database")
def test_a_place_that_is_none_is_named(tmp_path, capsys):
    """A directory in the file's place, or a file in its directory's, is told by name, also by the command."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("")
    export(tmp_path / "out.json", filled(tmp_path / "c.sqlite", OF))
    for path in (tmp_path / "a", tmp_path / "b" / "a.sqlite"):
        with pytest.raises(InputError, match="must be a file that can be written"):
            Database(path).put(KEY, entry(OF))
        assert main(["--database", str(path), "import", str(tmp_path / "out.json")]) == 2
    assert "must be a file" in capsys.readouterr().err


def test_a_damaged_file_that_cannot_be_moved_is_told(tmp_path, monkeypatch):
    """It is not used, and the warning does not say that it was moved."""
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"\x07" * 5000)

    def refused(*paths):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    with pytest.warns(RuntimeWarning, match="is not used: .*; it cannot be moved: Permission denied$"):
        assert Database(path).get(KEY) is None
