# SPDX-License-Identifier: Apache-2.0
"""The user's database: one SQLite file in WAL mode, which many processes read and write at a time.

Three tables under one key (`entry.Key`): what was found best, what has been tried on the way there, and who is at work.
Nothing in it is code, and nothing in it is trusted: a file that SQLite finds damaged, or that another version wrote, is
moved aside with a warning; a row that is no entry is left out.
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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from cutegemm.database.entry import Entry, Extents, Key

FORMAT = 1
FILE = "tuned.sqlite"
# seconds that a statement waits for another process's
PATIENCE = 30.0
# seconds for which a claim holds unless it is renewed: longer than any one candidate takes
LEASE = 300.0
_WHERE = "gpu = ? AND spec = ? AND kind = ?"
_EXACT = f"{_WHERE} AND m = ? AND n = ? AND k = ? AND batch = ?"
_KEY = "gpu TEXT, spec TEXT, kind TEXT, m INTEGER, n INTEGER, k INTEGER, batch INTEGER"
_PRIMARY = "gpu, spec, kind, m, n, k, batch"
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS entries ({_KEY}, data TEXT, PRIMARY KEY ({_PRIMARY}));
CREATE TABLE IF NOT EXISTS trials ({_KEY}, fields TEXT, data TEXT, PRIMARY KEY ({_PRIMARY}, fields));
CREATE TABLE IF NOT EXISTS claims ({_KEY}, holder TEXT, until REAL, PRIMARY KEY ({_PRIMARY}));
PRAGMA user_version = {FORMAT};
"""
T = TypeVar("T")
# outcomes of trials that are under way, and during which the process ended
RUNNING, BROKE_OFF = "running", "broke off"
# where Linux says which start of the machine this is
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class DamagedError(Exception):
    """The file is no database of this version; the message says why."""


def default_path() -> Path:
    """$CUTEGEMM_CACHE_DIR/tuned.sqlite, or the same in the user's data directory."""
    folder = os.environ.get("CUTEGEMM_CACHE_DIR") or platformdirs.user_data_dir("cutegemm")
    return Path(folder) / FILE


def holder() -> str:
    """A name for this process's claims, from which others on this machine see whether it still lives."""
    return f"{_machine()} {os.getpid()} {uuid.uuid4().hex[:8]}"


def _machine() -> str:
    """This start of this machine."""
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot or uuid.uuid4().hex}"


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
        # which file this object has found sound
        self._sound: int | None = None

    @contextlib.contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the file open: SQLite writes all changes back whenever its last connection is closed."""
        with self._writing():
            # makes the file
            pass
        with contextlib.closing(self._open()) as file:
            # a connection that has read nothing holds no file
            file.execute("SELECT count(*) FROM claims").fetchone()
            yield

    def entries(self, gpu: str | None = None) -> dict[Key, Entry]:
        """All entries, or those of one GPU."""

        def read(file: sqlite3.Connection) -> dict[Key, Entry]:
            text, given = ("", ()) if gpu is None else (" WHERE gpu = ?", (gpu,))
            rows = file.execute(f"SELECT {_PRIMARY}, data FROM entries{text} ORDER BY {_PRIMARY}", given)
            return {_key(row): found for row in rows if (found := self._entry(row[-1])) is not None}

        return self._with(read, {})

    def neighbours(self, key: Key) -> dict[Extents, Entry]:
        """The entries of a key's GPU, spec and kind, by extents."""

        def read(file: sqlite3.Connection) -> dict[Extents, Entry]:
            rows = file.execute(f"SELECT m, n, k, batch, data FROM entries WHERE {_WHERE}", key[:3])
            return {row[:4]: found for row in rows if (found := self._entry(row[-1])) is not None}

        return self._with(read, {})

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, or None."""

        def read(file: sqlite3.Connection) -> Entry | None:
            row = file.execute(f"SELECT data FROM entries WHERE {_EXACT}", _flat(key)).fetchone()
            return None if row is None else self._entry(row[0])

        return self._with(read, None)

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

        return self._with(read, {})

    def all_trials(self) -> dict[Key, dict[str, Trial]]:
        """What has been tried, by key and the candidate's fields as JSON."""

        def read(file: sqlite3.Connection) -> list[Key]:
            return [
                _key(row)
                for row in file.execute(f"SELECT DISTINCT {_PRIMARY} FROM trials ORDER BY {_PRIMARY}")
            ]

        nothing: list[Key] = []
        return {key: self.trials(key) for key in self._with(read, nothing)}

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
        that has ended (`holder`).
        """
        now = time.time() if now is None else now
        with self._writing() as file:
            found = file.execute(f"SELECT holder, until FROM claims WHERE {_EXACT}", _flat(key)).fetchone()
            if found is not None and found[0] != holder and found[1] > now and not _gone(found[0]):
                return False
            row = (*_flat(key), holder, now + LEASE)
            file.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            return True

    def release(self, key: Key, holder: str) -> None:
        """Say that `holder` no longer works on a key."""
        self._change(f"DELETE FROM claims WHERE {_EXACT} AND holder = ?", (*_flat(key), holder))

    def _change(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._writing() as file:
            file.execute(statement, values)

    def _entry(self, text: str) -> Entry | None:
        try:
            return Entry.from_data(json.loads(text))
        except ValueError as error:
            warnings.warn(f"{self.path}: a row is left out: {error}", RuntimeWarning, stacklevel=4)
            return None

    def _with(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """What a reader finds; nothing where there is no file or it had to be set aside."""
        if not self.path.exists():
            return nothing
        try:
            with contextlib.closing(self._open()) as file:
                return read(file)
        except sqlite3.OperationalError as error:
            warnings.warn(f"tuning database {self.path} is not read: {error}", RuntimeWarning, stacklevel=4)
            return nothing
        except (DamagedError, sqlite3.DatabaseError) as error:
            self._set_aside(error)
            return nothing

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction that no other process writes in."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            file = self._open()
        except (DamagedError, sqlite3.DatabaseError) as error:
            self._set_aside(error)
            file = self._open()
        with contextlib.closing(file):
            file.execute("BEGIN IMMEDIATE")
            try:
                yield file
            except BaseException:
                file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        """A connection to a sound file of this version.

        Raises:
            DamagedError, sqlite3.DatabaseError: it is none.
        """
        new = not self.path.exists()
        file = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None)
        try:
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and (new or not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
                file.execute("PRAGMA journal_mode = WAL")
                file.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            elif version != FORMAT:
                raise DamagedError(f"its format is {version}, not {FORMAT}")
            elif self._sound != (this := self.path.stat().st_ino):
                if (said := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise DamagedError(" ".join(said.split()))
                self._sound = this
            # of a power failure it loses the last changes, never its soundness (WAL)
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
        return file

    def _set_aside(self, why: Exception) -> None:
        """Move a file that cannot be used out of the way, and say so; one that is only busy stays.

        Raises:
            sqlite3.OperationalError: it is busy, or cannot be opened.
        """
        if isinstance(why, sqlite3.OperationalError):
            raise why
        target = self.path.with_name(f"{self.path.name}.set-aside-{time.time_ns()}")
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(OSError):
                os.replace(f"{self.path}{suffix}", f"{target}{suffix}")
        warnings.warn(
            f"tuning database {self.path} is not used: {why}; it was moved to {target.name}, and a new one is begun",
            RuntimeWarning,
            stacklevel=5,
        )


def _key(row: tuple[Any, ...]) -> Key:
    gpu, spec, kind, m, n, k, batch = row[:7]
    return Key(gpu, spec, kind, (m, n, k, batch))


def _flat(key: Key) -> tuple[Any, ...]:
    return (*key[:3], *key.extents)
