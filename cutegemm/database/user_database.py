# SPDX-License-Identifier: Apache-2.0
"""The user's database: one SQLite file in WAL mode, which many processes read and write at the same time.

Two tables share one key (`entry.Key`): the best entry of each problem, and the trials of its candidates. The file holds
no code and is not trusted: rows that are not entries are skipped. `sqlite_file` handles a damaged file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.compiling import folders
from cutegemm.database.entry import Entry, Key, digest, key_from
from cutegemm.database.sqlite_file import File

FORMAT = 1
FILE = "tuned.sqlite"
_WHERE = "gpu = ? AND spec = ? AND kind = ? AND m = ? AND n = ? AND k = ? AND batch = ?"
_KEY = "gpu TEXT, spec TEXT, kind TEXT, m INTEGER, n INTEGER, k INTEGER, batch INTEGER"
_PRIMARY = "gpu, spec, kind, m, n, k, batch"
_SCHEMA = (
    f"CREATE TABLE entries ({_KEY}, data TEXT, PRIMARY KEY ({_PRIMARY}))",
    f"CREATE TABLE trials ({_KEY}, fields TEXT, data TEXT, PRIMARY KEY ({_PRIMARY}, fields))",
)
# outcomes of a trial in progress, and of one during which the process ended
RUNNING, BROKE_OFF = "running", "broke off"
_changes = 0


def changes() -> int:
    """How often this process has changed a database."""
    return _changes


def default_path() -> Path:
    """$CUTEGEMM_CACHE_DIR/tuned.sqlite, or the same in the user's data directory."""
    return folders.data_folder() / FILE


@dataclass(frozen=True)
class Trial:
    """The result of one candidate of a problem."""

    # "timed", "wrong", "refused" or "does not compile"; `RUNNING` during its first run, `BROKE_OFF` if the process
    # ended during that run
    outcome: str
    us: float | None = None  # microseconds per call if it was timed
    why: str = ""  # the reason if it was not
    ptx: str = ""  # digest of the kernel's PTX; empty if there is none
    made: Mapping[str, Any] | None = None  # fields of a timed candidate in full (`planning.why.fields_of`)


class Database:
    """A database in a file, which the first write creates.

    Every method opens the file anew, so any thread may use an object, also after a fork.

    Args:
        path: of the file; None is the user's.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else Path(path)
        self._file = File(self.path, FORMAT, _SCHEMA)

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the file open: SQLite checkpoints the whole WAL whenever the last connection closes."""
        # creates the file
        self._file.change(lambda file: None)
        with contextlib.closing(self._file.opened()) as file:
            # a connection opens the file at its first read
            file.execute("SELECT count(*) FROM entries").fetchone()
            yield

    def entries(self, gpu: str | None = None) -> dict[Key, Entry]:
        """All entries, or those of one GPU."""

        def read(file: sqlite3.Connection) -> dict[Key, Entry]:
            condition, given = ("", ()) if gpu is None else (" WHERE gpu = ?", (gpu,))
            rows = file.execute(f"SELECT {_PRIMARY}, data FROM entries{condition} ORDER BY {_PRIMARY}", given)
            return dict(pair for row in rows if (pair := self._row(row)) is not None)

        return self._file.read(read, {})

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, or None."""

        def read(file: sqlite3.Connection) -> Entry | None:
            row = file.execute(f"SELECT {_PRIMARY}, data FROM entries WHERE {_WHERE}", _flat(key)).fetchone()
            pair = None if row is None else self._row(row)
            return None if pair is None else pair[1]

        return self._file.read(read, None)

    def put(self, key: Key, entry: Entry) -> None:
        """Store an entry; it replaces an earlier one with the same key."""
        row = (*_flat(key), json.dumps(entry.to_data(), sort_keys=True))
        self._change("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def trials(self, key: Key) -> dict[str, Trial]:
        """The trials of a key, by the candidate's fields as JSON."""

        def read(file: sqlite3.Connection) -> dict[str, Trial]:
            rows = file.execute(f"SELECT fields, data FROM trials WHERE {_WHERE}", _flat(key))
            trials = {}
            for fields, data in rows:
                with contextlib.suppress(TypeError, ValueError, RecursionError):
                    trials[fields] = Trial(**json.loads(data))
            return trials

        return self._file.read(read, {})

    def all_trials(self) -> dict[Key, dict[str, Trial]]:
        """All trials, by key and the candidate's fields as JSON."""

        def read(file: sqlite3.Connection) -> list[Key]:
            keys = []
            for row in file.execute(f"SELECT DISTINCT {_PRIMARY} FROM trials ORDER BY {_PRIMARY}"):
                with contextlib.suppress(ValueError):
                    keys.append(key_from(row[:3], row[3:]))
            return keys

        nothing: list[Key] = []
        return {key: self.trials(key) for key in self._file.read(read, nothing)}

    def tried(self, key: Key, fields: str, trial: Trial) -> None:
        """Store the trial of a candidate."""
        row = (*_flat(key), fields, json.dumps(vars(trial)))
        self._change("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def forget_trials(self, key: Key, fields: str | None = None) -> None:
        """Delete the trials of a key, or of one candidate of it."""
        if fields is None:
            self._change(f"DELETE FROM trials WHERE {_WHERE}", _flat(key))
        else:
            self._change(f"DELETE FROM trials WHERE {_WHERE} AND fields = ?", (*_flat(key), fields))

    @contextlib.contextmanager
    def claimed(self, key: Key) -> Iterator[bool]:
        """Claim a key against other processes; False if another process has it. A claim ends with its process."""
        import filelock

        folder = self.path.with_name(f"{self.path.name}.locks")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / f"{digest(json.dumps(key))}.lock")
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        global _changes
        self._file.change(lambda file: file.execute(statement, values))
        _changes += 1

    def _row(self, row: tuple[Any, ...]) -> tuple[Key, Entry] | None:
        """A row's key and entry; None and a warning if the row is not an entry."""
        try:
            return key_from(row[:3], row[3:7]), Entry.from_data(json.loads(row[7]))
        except (TypeError, ValueError, RecursionError) as error:
            warnings.warn(f"{self.path}: a row is skipped: {error}", RuntimeWarning, stacklevel=5)
            return None


def _flat(key: Key) -> tuple[Any, ...]:
    return (*key[:3], *key.extents)
