# SPDX-License-Identifier: Apache-2.0
"""The user's database: one SQLite file in WAL mode, which many processes read and write at a time.

Three tables under one key (`entry.Key`): what was found best, what has been tried on the way there, and who is at work.
Nothing in it is code, and nothing in it is trusted: a row that is not an entry is left out. `sqlite_file` handles
damage of the file itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.compiling import folders
from cutegemm.database.entry import Entry, Extents, Key, key_from
from cutegemm.database.sqlite_file import File

FORMAT = 1
FILE = "tuned.sqlite"
# seconds for which a claim holds unless it is renewed: longer than any one candidate takes
LEASE = 300.0
_WHERE = "gpu = ? AND spec = ? AND kind = ?"
_EXACT = f"{_WHERE} AND m = ? AND n = ? AND k = ? AND batch = ?"
_KEY = "gpu TEXT, spec TEXT, kind TEXT, m INTEGER, n INTEGER, k INTEGER, batch INTEGER"
_PRIMARY = "gpu, spec, kind, m, n, k, batch"
_SCHEMA = (
    f"CREATE TABLE entries ({_KEY}, data TEXT, PRIMARY KEY ({_PRIMARY}))",
    f"CREATE TABLE trials ({_KEY}, fields TEXT, data TEXT, PRIMARY KEY ({_PRIMARY}, fields))",
    f"CREATE TABLE claims ({_KEY}, holder TEXT, until REAL, PRIMARY KEY ({_PRIMARY}))",
)
# outcomes of trials that are under way, and during which the process ended
RUNNING, BROKE_OFF = "running", "broke off"
# where Linux says which start of the machine this is, and within which of its containers processes have their numbers
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUMBERS = Path("/proc/self/ns/pid")


_changes = 0


def changes() -> int:
    """How often this process has changed a database."""
    return _changes


def default_path() -> Path:
    """$CUTEGEMM_CACHE_DIR/tuned.sqlite, or the same in the user's data directory."""
    return folders.data_folder() / FILE


def holder() -> str:
    """A name for this process's claims, from which others on this machine see whether it still lives."""
    return f"{_machine()} {os.getpid()} {uuid.uuid4().hex[:8]}"


def _machine() -> str:
    """This start of this machine, or of one of its containers."""
    try:
        boot = f"{_BOOT.read_text('utf-8').strip()}/{os.readlink(_NUMBERS)}"
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot or uuid.uuid4().hex}"


def _holds(holder: str, until: float, now: float) -> bool:
    """Whether a claim keeps others off."""
    return now < until <= now + LEASE and not _gone(holder)


def _gone(holder: str) -> bool:
    """Whether a claim's holder was a process of this machine that has ended."""
    words = holder.split(" ")
    if len(words) != 4 or " ".join(words[:2]) != _machine() or not words[2].isdecimal():
        return False
    try:
        os.kill(int(words[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class Trial:
    """How one candidate of a problem fared.

    Attributes:
        outcome: "timed", "wrong", "refused" or "does not compile"; "running" for the first time now, and "broke off"
            where it was that when the process ended.
        us: microseconds a call where it was timed; why: in words where it was not.
        ptx: digest of the kernel's PTX; empty where there is none.
        made: fields that name the candidate in full (`planning.why.fields_of`), where it was timed.
    """

    outcome: str
    us: float | None = None
    why: str = ""
    ptx: str = ""
    made: Mapping[str, Any] | None = None


class Database:
    """A database in a file, which is made when something is first written.

    Every method opens the file anew, so that an object may be used by any thread, and after a fork.

    Args:
        path: of the file; None is the user's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self._file = File(self.path, FORMAT, _SCHEMA)

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the file open: SQLite writes all changes back whenever its last connection is closed."""
        # makes the file
        self._file.change(lambda file: None)
        with contextlib.closing(self._file.opened()) as file:
            # a connection that has read nothing holds no file
            file.execute("SELECT count(*) FROM claims").fetchone()
            yield

    def entries(self, gpu: str | None = None) -> dict[Key, Entry]:
        """All entries, or those of one GPU."""

        def read(file: sqlite3.Connection) -> dict[Key, Entry]:
            text, given = ("", ()) if gpu is None else (" WHERE gpu = ?", (gpu,))
            rows = file.execute(f"SELECT {_PRIMARY}, data FROM entries{text} ORDER BY {_PRIMARY}", given)
            return dict(found for row in rows if (found := self._row(row)) is not None)

        return self._file.read(read, {})

    def neighbours(self, key: Key) -> dict[Extents, Entry]:
        """The entries of a key's GPU, spec and kind, by extents."""

        def read(file: sqlite3.Connection) -> dict[Extents, Entry]:
            rows = file.execute(f"SELECT {_PRIMARY}, data FROM entries WHERE {_WHERE}", key[:3])
            found = dict(x for row in rows if (x := self._row(row)) is not None)
            return {near.extents: entry for near, entry in found.items()}

        return self._file.read(read, {})

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, or None."""

        def read(file: sqlite3.Connection) -> Entry | None:
            row = file.execute(f"SELECT {_PRIMARY}, data FROM entries WHERE {_EXACT}", _flat(key)).fetchone()
            found = None if row is None else self._row(row)
            return None if found is None else found[1]

        return self._file.read(read, None)

    def put(self, key: Key, entry: Entry) -> None:
        """Keep an entry in the place of any other of its key."""
        row = (*_flat(key), json.dumps(entry.to_data(), sort_keys=True))
        self._change("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def trials(self, key: Key) -> dict[str, Trial]:
        """What has been tried for a key, by the candidate's fields as JSON."""

        def read(file: sqlite3.Connection) -> dict[str, Trial]:
            rows = file.execute(f"SELECT fields, data FROM trials WHERE {_EXACT}", _flat(key))
            found = {}
            for fields, data in rows:
                with contextlib.suppress(TypeError, ValueError):
                    found[fields] = Trial(**json.loads(data))
            return found

        return self._file.read(read, {})

    def all_trials(self) -> dict[Key, dict[str, Trial]]:
        """What has been tried, by key and the candidate's fields as JSON."""

        def read(file: sqlite3.Connection) -> list[Key]:
            found = []
            for row in file.execute(f"SELECT DISTINCT {_PRIMARY} FROM trials ORDER BY {_PRIMARY}"):
                with contextlib.suppress(ValueError):
                    found.append(key_from(row[:3], row[3:]))
            return found

        nothing: list[Key] = []
        return {key: self.trials(key) for key in self._file.read(read, nothing)}

    def tried(self, key: Key, fields: str, trial: Trial) -> None:
        """Keep how a candidate fared."""
        row = (*_flat(key), fields, json.dumps(vars(trial)))
        self._change("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def forget_trials(self, key: Key, fields: str | None = None) -> None:
        """Forget what has been tried for a key, or one candidate of it."""
        if fields is None:
            self._change(f"DELETE FROM trials WHERE {_EXACT}", _flat(key))
        else:
            self._change(f"DELETE FROM trials WHERE {_EXACT} AND fields = ?", (*_flat(key), fields))

    def claim(self, key: Key, holder: str, now: float | None = None) -> bool:
        """Say that `holder` works on a key, or goes on with it; False where another holds it.

        A claim that is not renewed within `LEASE` seconds holds no longer, nor does that of a process of this machine
        that has ended (`holder`), nor one from a clock that was further ahead than that.
        """
        now = time.time() if now is None else now

        def change(file: sqlite3.Connection) -> bool:
            found = file.execute(f"SELECT holder, until FROM claims WHERE {_EXACT}", _flat(key)).fetchone()
            if found is not None and found[0] != holder and _holds(found[0], found[1], now):
                return False
            row = (*_flat(key), holder, now + LEASE)
            file.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return True

        return self._file.change(change)

    def release(self, key: Key, holder: str) -> None:
        """Say that `holder` no longer works on a key."""
        self._change(f"DELETE FROM claims WHERE {_EXACT} AND holder = ?", (*_flat(key), holder))

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        global _changes
        self._file.change(lambda file: file.execute(statement, values))
        _changes += 1

    def _row(self, row: tuple[Any, ...]) -> tuple[Key, Entry] | None:
        """An entry and its key; None, and a warning, where a row is none."""
        try:
            return key_from(row[:3], row[3:7]), Entry.from_data(json.loads(row[7]))
        except (TypeError, ValueError, RecursionError) as error:
            warnings.warn(f"{self.path}: a row is left out: {error}", RuntimeWarning, stacklevel=5)
            return None


def _flat(key: Key) -> tuple[Any, ...]:
    return (*key[:3], *key.extents)
