# SPDX-License-Identifier: Apache-2.0
"""One SQLite file in WAL mode that many processes begin, read and write at a time, and that is not trusted.

What SQLite finds damaged, or what another version wrote, is moved aside with a warning, by one process. What lies where
nothing can be written is read.
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

# seconds that a statement waits for another process's
PATIENCE = 30.0
# seconds between attempts where SQLite does not wait
WAITING = 0.005
T = TypeVar("T")


class DamagedError(Exception):
    """The file is no database of this version; the message says why."""


class File:
    """A file that is made when something is first written, and opened anew each time.

    Args:
        path: of the file.
        version: of the format, its `user_version`.
        schema: statements that make its tables.
    """

    def __init__(self, path: Path, version: int, schema: Sequence[str]) -> None:
        self.path, self._version, self._schema = path, version, schema
        # which file this object has found sound
        self._sound: int | None = None

    def read(self, read: Callable[[sqlite3.Connection], T], nothing: T) -> T:
        """What a reader finds; nothing where there is no file or it had to be set aside."""
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
        """What a change gives, in a transaction in which no other process writes; in a new file, where this is damaged.

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
            DamagedError, sqlite3.DatabaseError: it is none.
        """
        where = self.path.absolute().as_uri() + ("?immutable=1" if self._fixed() else "")
        file = sqlite3.connect(where, timeout=PATIENCE, isolation_level=None, uri=True)
        try:
            if _empty(file):
                _begin(file, self._schema, self._version)
            version = file.execute("PRAGMA user_version").fetchone()[0]
            if version != self._version:
                raise DamagedError(f"its format is {version}, not {self._version}")
            if self._sound != (this := self._inode()):
                if (said := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise DamagedError(" ".join(said.split()))
                self._sound = this
            # of a power failure it loses the last changes, never its soundness (WAL)
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
        return file

    def _fixed(self) -> bool:
        """Whether nobody can be writing the file: it lies where this user may not, and nothing is left to write back.

        To read a file in WAL mode SQLite makes others beside it, unless it is told so.
        """
        log = Path(f"{self.path}-wal")
        return self.path.exists() and not os.access(self.path.parent, os.W_OK) and not log.exists()

    def _inode(self) -> int | None:
        """What tells the file from another in its place; None where there is none."""
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _set_aside(self, why: Exception, seen: int | None) -> None:
        """Move a file that cannot be used out of the way, and say so; one that is only busy stays.

        Of several processes that find the same damage one moves the file: another in its place (`seen` is the damaged
        one's inode) has been begun since.

        Raises:
            sqlite3.OperationalError: it is busy, or cannot be opened.
        """
        if isinstance(why, sqlite3.OperationalError):
            raise why
        with self._alone():
            if self._inode() == seen:
                self._moved_aside(why)

    def _moved_aside(self, why: Exception) -> None:
        target = self.path.with_name(f"{self.path.name}.set-aside-{time.time_ns()}")
        try:
            for suffix in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{target}{suffix}")
            os.replace(self.path, target)
            then = f"it was moved to {target.name}, and a new one is begun"
        except OSError as error:
            then = f"it cannot be moved: {error.strerror}"
        text = f"tuning database {self.path} is not used: {why}; {then}"
        warnings.warn(text, RuntimeWarning, stacklevel=6)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Held against other processes that would move the file; where nothing can be written, against nobody."""
        import filelock

        lock = filelock.FileLock(f"{self.path}.lock")
        with contextlib.suppress(OSError):
            lock.acquire(PATIENCE)
        try:
            yield
        finally:
            lock.release()


def _empty(file: sqlite3.Connection) -> bool:
    """Whether nobody has written anything: a process that begins a file writes tables and version at once."""
    tables = file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return not tables and file.execute("PRAGMA user_version").fetchone()[0] == 0


def _begin(file: sqlite3.Connection, schema: Sequence[str], version: int) -> None:
    """Write the tables, unless another process has done so meanwhile."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            file.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # for this one statement SQLite does not wait
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(WAITING)
    file.execute("BEGIN IMMEDIATE")
    if _empty(file):
        for statement in (*schema, f"PRAGMA user_version = {version}"):
            file.execute(statement)
    file.execute("COMMIT")
