# SPDX-License-Identifier: Apache-2.0
"""The user's file: what is put is found, by any process; what is damaged or of another version is set aside."""

from __future__ import annotations

import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import warnings

import pytest

from benchmarks import prune
from cutegemm import GemmSpec, problem
from cutegemm.arch.records import H100, H200
from cutegemm.database import Database, choose, export, import_, key_of
from cutegemm.database.__main__ import main
from cutegemm.database.entry import refined
from cutegemm.database.exchange import SHIPPED, read, shipped
from cutegemm.database.user_database import Trial
from cutegemm.errors import InputError
from cutegemm.planning.planner import plan
from tests.support.patience import PATIENCE
from tests.support.tuned import entry, filled

OF, OTHER = problem(1024, 1024, 1024), problem(2048, 1024, 512, batch=2)
KEY = key_of(GemmSpec(), OF, H200)


def test_what_is_put_is_found(tmp_path):
    """Entries come back as they were, under their own key alone; the file is in WAL mode."""
    database = filled(tmp_path / "a.sqlite", OF, OTHER)
    assert database.get(KEY) == entry(OF) and len(database.entries()) == 2
    for other in (
        key_of(GemmSpec(), OF, H100),
        key_of(GemmSpec(stages=3), OF, H200),
        key_of(GemmSpec(), problem(1024, 1024, 1024, majors="kk"), H200),
    ):
        assert database.get(other) is None
    assert sqlite3.connect(database.path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_nothing_is_made_by_looking(tmp_path):
    """A database that nobody wrote has no file, no entries, no trials."""
    database = Database(tmp_path / "none" / "a.sqlite")
    assert database.get(KEY) is None and database.entries() == {} == database.trials(KEY)
    assert not (tmp_path / "none").exists()


def test_trials_of_what_is_no_key_are_left_out(tmp_path):
    """Reading all trials leaves out those whose key is none."""
    database = Database(tmp_path / "a.sqlite")
    for key in (KEY, KEY._replace(extents=(-1, 8, 8, 1)), KEY._replace(gpu=None)):
        database.tried(key, "{}", Trial("timed", 1.0))
    assert list(database.all_trials()) == [KEY]


DAMAGE = {
    "noise": lambda path: path.write_bytes(b"\x07" * 5000),
    "a page": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + b"\xff" * 4096 + path.read_bytes()[8192:]
    ),
    "version": lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 0"),
    "newer": lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99"),
    "no table": lambda path: sqlite3.connect(path).execute("DROP TABLE trials"),
    "columns": lambda path: sqlite3.connect(path).execute("ALTER TABLE entries RENAME COLUMN m TO n2"),
}


@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_or_older_file_is_set_aside(tmp_path, damage, writes):
    """It is moved, with one warning that says why, and nothing in it is used; a new file is begun."""
    database = filled(tmp_path / "a.sqlite", OF)
    sqlite3.connect(database.path).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(database.path)
    with pytest.warns(RuntimeWarning, match=r"is not used: .*; it was moved to a\.sqlite\.set-aside-\d+"):
        if writes:
            database.put(key_of(GemmSpec(), OTHER, H200), entry(OTHER))
        else:
            assert database.get(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(database.entries()) == int(writes)
    assert len(list(tmp_path.glob("a.sqlite.set-aside-*[0-9]"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"us": "fast"},
        {"us": float("nan")},
        {"us": float("inf")},
        {"us": True},
        {"us": 10**400},
        {"date": "soon"},
        {"extra": 1},
        {"fields": {"tile": [1, 2, 3]}},
        {"fields": {"colour": 1}},
        # what only a user may promise, or ask for
        {"fields": {"constant": ["b"]}},
        {"fields": {"d_dtype": "fp16"}},
    ],
    ids=lambda x: str(x)[:24],
)
def test_a_row_that_is_no_entry_is_left_out(tmp_path, change):
    """Values of other types, and fields that no spec has, are told and not used."""
    database = filled(tmp_path / "a.sqlite", OF)
    data = json.dumps(entry(OF).to_data() | change)
    sqlite3.connect(database.path, isolation_level=None).execute("UPDATE entries SET data = ?", (data,))
    with pytest.warns(RuntimeWarning, match="a row is skipped: "):
        assert database.get(KEY) is None


@pytest.mark.parametrize(
    "column,value",
    [
        ("data", None),
        ("data", "[" * 100_000),
        ("data", b"\xff"),
        ("m", "many"),
        ("k", None),
        ("batch", b"x"),
        ("n", -8),
    ],
    ids=lambda x: str(x)[:8],
)
def test_a_row_of_other_types_is_left_out(tmp_path, column, value):
    """SQLite keeps any value in any column: such rows are neither used nor exported, with a warning."""
    database = filled(tmp_path / "a.sqlite", OF)
    sqlite3.connect(database.path, isolation_level=None).execute(f"UPDATE entries SET {column} = ?", (value,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not choose(GemmSpec(), OF, H200, database).plan.chosen_by.startswith("database")
    with pytest.warns(RuntimeWarning, match="a row is skipped: "):
        assert export(tmp_path / "out.json", database) == 0


def _write(path, count, first):
    for i in range(first, first + count):
        Database(path).put(key_of(GemmSpec(), problem(8 * (i + 1), 64, 64), H200), entry(problem(64, 64, 64)))


def test_processes_write_at_a_time(tmp_path):
    """Two processes begin the same file and lose nothing of each other's."""
    path = tmp_path / "a.sqlite"
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=_write, args=(path, 10, 10 * i)) for i in range(2)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(PATIENCE)
        assert job.exitcode == 0
    assert len(Database(path).entries()) == 20


def test_one_process_at_a_time_claims_a_problem(tmp_path):
    """A claim keeps others off until it is released or its process ends, also by a signal; other keys are free."""
    database, other = Database(tmp_path / "a.sqlite"), KEY._replace(extents=(8, 8, 8, 1))
    code = (
        f"from cutegemm.database import Database, Key; from pathlib import Path\n"
        f"with Database(Path({str(database.path)!r})).claimed(Key(*{tuple(KEY)!r})) as claimed:\n"
        f"    print(claimed, flush=True); input()"
    )
    with database.claimed(KEY) as mine, database.claimed(KEY) as again, database.claimed(other) as free:
        assert (mine, again, free) == (True, False, True)
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout.readline() == "True\n"
        with database.claimed(KEY) as claimed:
            assert not claimed
        process.kill()
    with database.claimed(KEY) as claimed:
        assert claimed


def test_trials_are_kept_by_candidate(tmp_path):
    """How each candidate of a problem fared, until it is forgotten."""
    database = Database(tmp_path / "a.sqlite")
    database.tried(KEY, "{}", Trial("timed", 3.0, ptx="1"))
    database.tried(KEY, '{"stages": 3}', Trial("wrong", why="off"))
    assert database.trials(KEY) == {
        "{}": Trial("timed", 3.0, ptx="1"),
        '{"stages": 3}': Trial("wrong", why="off"),
    }
    database.forget_trials(KEY)
    assert database.trials(KEY) == {}


def test_entries_travel_as_json(tmp_path, capsys):
    """Exported entries can be imported into another database, where newer ones stay. So does the command."""
    database = filled(tmp_path / "a.sqlite", OF, OTHER)
    there, file = Database(tmp_path / "b.sqlite"), tmp_path / "out.json"
    assert export(file, database) == 2 and import_(file, there) == 2 and import_(file, there) == 0
    assert there.entries() == database.entries() == read(file)
    there.put(KEY, entry(OF, date="2027-01-01", us=1.0))
    assert import_(file, there) == 0 and there.get(KEY).us == 1.0
    assert main(["--database", str(there.path), "export", str(file), "--gpu", KEY.gpu]) == 0
    assert main(["--database", str(tmp_path / "c.sqlite"), "import", str(file)]) == 0
    assert main(["--database", str(tmp_path / "c.sqlite"), "show"]) == 0
    assert "1024 x 1024 x 1024, batch 1; a bf16 row-major; b bf16 row-major" in capsys.readouterr().out


def _exported(words, extents):
    """An export of one entry under another key."""
    return json.dumps({"format": 1, "entries": [{"key": [*words, extents], **entry(OF).to_data()}]})


BAD = {
    "empty": "",
    "no fields": "{}",
    "format": '{"format": 0, "entries": []}',
    "no entry": '{"format": 1, "entries": [{}]}',
    "nested": "[" * 100_000,
    "type of an extent": _exported(KEY[:3], [1024, 1024, "k", 1]),
    "extent beyond SQLite's integers": _exported(KEY[:3], [1024, 1024, 10**30, 1]),
    "half a surrogate pair": _exported((KEY.gpu + "\ud800", *KEY[1:3]), [1024, 1024, 1024, 1]),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_file_that_is_no_export_is_refused(tmp_path, text, capsys):
    """It is named, and nothing of it is taken."""
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(InputError, match="must be a file that cutegemm.database.export wrote"):
        import_(file, Database(tmp_path / "a.sqlite"))
    assert main(["--database", str(tmp_path / "a.sqlite"), "import", str(file)]) == 2


def test_what_cannot_be_exported_leaves_what_was_there(tmp_path, capsys, monkeypatch):
    """A database that is not there is no empty one, and a full disk leaves the old file; the command says so."""
    file, there = tmp_path / "x.json", filled(tmp_path / "a.sqlite", OF)
    export(file, there)
    before = file.read_text()
    for words in (["export", str(file)], ["show"]):
        assert main(["--database", str(tmp_path / "b.sqlite"), *words]) == 2
    assert main(["--database", str(there.path), "export", str(tmp_path / "none" / "x.json")]) == 2

    def full(*paths):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="must be a file that can be written: .*No space left"):
        export(file, there)
    assert file.read_text() == before and sorted(x.name for x in tmp_path.iterdir()) == ["a.sqlite", "x.json"]
    assert "must be a file that is there" in capsys.readouterr().err


def test_what_ships_is_sound():
    """The package's own file reads, and is at most 1 MB."""
    assert SHIPPED.stat().st_size <= 1_000_000
    assert shipped() == read(SHIPPED)


def test_what_ships_serves():
    """Every entry is of a problem that its key tells in full, on a GPU with a record, and `plan` takes its fields."""
    entries = read(SHIPPED)
    for key, found in entries.items():
        spec, of = prune.asked(key)
        assert plan(refined(spec, found.fields), of, prune.DEVICES[key.gpu]).config is not None
    assert entries


def test_the_command_has_nothing_to_list(tmp_path, capsys, monkeypatch):
    """Without entries `show` names the file, and a missing file to import is named without the error's class."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    assert main(["show"]) == 0 and "no entries in " in capsys.readouterr().out
    assert main(["import", str(tmp_path / "x.json")]) == 2
    assert capsys.readouterr().err.endswith("wrote: No such file or directory\n")


def test_the_command_s_reader_may_go_away(tmp_path):
    """`python -m cutegemm.database show | true` prints nothing on standard error, and a full disk is one line."""
    command = f"{sys.executable} -m cutegemm.database --database {tmp_path / 'x.sqlite'}"
    assert main(["--database", str(tmp_path / "x.sqlite"), "import", str(SHIPPED)]) == 0
    for more, says in (
        ("| true", ""),
        ("> /dev/full", "python -m cutegemm.database: No space left on device\n"),
    ):
        line = ["bash", "-c", f"{command} show {more}"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.stderr == says
