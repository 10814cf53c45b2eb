# SPDX-License-Identifier: Apache-2.0
"""One SQLite file in WAL mode that many processes create, read and write at the same time, and that is not trusted.

A file that SQLite finds damaged, or that another version wrote, is moved aside by one process, with a warning. A file
in a read-only directory can still be read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from cutegemm.errors import InputError, field_error

# seconds that a statement waits for another process
PATIENCE = 30.0
# seconds between attempts at the one statement for which SQLite does not wait
WAITING = 0.005
T = TypeVar("T")


class DamagedError(Exception):
    """The file is not a database of this version; the text has the reason."""


class File:
    """A file that the first write creates, and that each access opens anew.

    Args:
        path: of the file.
        version: of the format, its `user_version`.
        schema: statements that create its tables.
    """

    def __init__(self, path: Path, version: int, schema: Sequence[str]) -> None:
        self.path, self._version, self._schema = path, version, schema
        # inode of the file that passed the check
        self._sound: int | None = None

    def read(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """The result of `read`; `nothing` if there is no file or it was moved aside."""
        seen = self._inode()
        if seen is None:
            return nothing
        try:
            with contextlib.closing(self.opened()) as file:
                return read(file)
        except sqlite3.OperationalError as error:
            warnings.warn(f"tuning database {self.path} is not read: {error}", RuntimeWarning, stacklevel=4)
            return nothing
        except (DamagedError, sqlite3.DatabaseError) as error:
            self._set_aside(error, seen)
            return nothing

    def change(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `change`, run in a write transaction; a damaged file is replaced by a new one first.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._fixed():
                raise PermissionError(f"nothing can be written in {self.path.parent}")
            seen = self._inode()
            try:
                return self._changed(change)
            except (DamagedError, sqlite3.DatabaseError) as error:
                self._set_aside(error, seen)
                return self._changed(change)
        except (OSError, DamagedError, sqlite3.DatabaseError) as error:
            rule = f"must be a file that can be written, or made: {error}"
            raise field_error(InputError, "database", str(self.path), rule) from error

    def _changed(self, change: Callable[[sqlite3.Connection], T]) -> T:
        with contextlib.closing(self.opened()) as file:
            file.execute("BEGIN IMMEDIATE")
            try:
                made = change(file)
            except BaseException:
                with contextlib.suppress(sqlite3.DatabaseError):
                    file.execute("ROLLBACK")
                raise
            file.execute("COMMIT")
            return made

    def opened(self) -> sqlite3.Connection:
        """A connection to a sound file of this version.

        Raises:
            DamagedError, sqlite3.DatabaseError: the file is damaged or of another version.
        """
        where = self.path.absolute().as_uri() + ("?immutable=1" if self._fixed() else "")
        file = sqlite3.connect(where, timeout=PATIENCE, isolation_level=None, uri=True)
        try:
            if _empty(file):
                _begin(file, self._schema, self._version)
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version != self._version:
                raise DamagedError(f"its format is {version}, not {self._version}")
            if not set(self._schema) <= {x for (x,) in file.execute("SELECT sql FROM sqlite_master")}:
                raise DamagedError(f"its tables are not those of format {version}")
            if self._sound != (this := self._inode()):
                if (problem := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise DamagedError(" ".join(problem.split()))
                self._sound = this
            # in WAL mode a power failure may lose the last changes but cannot damage the file
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
        return file

    def _fixed(self) -> bool:
        """Whether the directory is read-only and no WAL is left to replay.

        SQLite then needs `immutable=1`, because reading in WAL mode creates files next to the database.
        """
        log = Path(f"{self.path}-wal")
        return self.path.exists() and not os.access(self.path.parent, os.W_OK) and not log.exists()

    def _inode(self) -> int | None:
        """The file's inode, which changes when another file takes its place; None if there is no file."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _set_aside(self, why: Exception, seen: int | None) -> None:
        """Move an unusable file aside, with a warning; a file that is only busy stays.

        If several processes find the same damage, the first one moves the file. The others see that the inode is no
        longer `seen`, the damaged file's.

        Raises:
            sqlite3.OperationalError: it is busy, or cannot be opened.
        """
        if isinstance(why, sqlite3.OperationalError):
            raise why
        with self._locked():
            if self._inode() == seen:
                self._moved_aside(why)

    def _moved_aside(self, why: Exception) -> None:
        target = self.path.with_name(f"{self.path.name}.set-aside-{time.time_ns()}")
        try:
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{target}{suffix}")
            os.replace(self.path, target)
            then = f"it was moved to {target.name}, and a new one is created"
        except OSError as error:
            then = f"it cannot be moved: {error.strerror}"
        text = f"tuning database {self.path} is not used: {why}; {then}"
        warnings.warn(text, RuntimeWarning, stacklevel=6)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from moving the file; no lock is taken in a read-only directory."""
        import filelock

        lock = filelock.FileLock(f"{self.path}.lock")
        with contextlib.suppress(OSError):
            lock.acquire(PATIENCE)
        try:
            yield
        finally:
            lock.release()


def _empty(file: sqlite3.Connection) -> bool:
    """Whether the file has no tables yet; `_begin` writes tables and version in one transaction."""
    tables = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return not tables and file.execute("PRAGMA user_version").fetchone()[0] == 0


def _begin(file: sqlite3.Connection, schema: Sequence[str], version: int) -> None:
    """Create the tables, unless another process has done so meanwhile."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # SQLite does not wait for this statement
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(WAITING)
    file.execute("BEGIN IMMEDIATE")
    if _empty(file):
        for statement in (*schema, f"PRAGMA user_version = {version}"):
            file.execute(statement)
    file.execute("COMMIT")
