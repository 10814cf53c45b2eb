# SPDX-License-Identifier: Apache-2.0
"""Files in one directory that are read back only as they were written.

Each file ends with a SHA-256 of its name and contents (`files.sealed`), which is checked before anything is parsed. The
checksum finds damage and a file under another name. It does not stop an attacker, who could compute it too.

Owner and mode stop other users, as ssh's StrictModes does. The directory and its files must belong to the user or root,
and nobody else may write them. The user, root, and programs that run as they do can put any code there, as they can in
the library itself. Other users can read a directory of root's after `chmod -R go+rX`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cutegemm.compiling.progress import announced
from cutegemm.files import replace, sealed, unsealed

LOCKS = "locks"
# A larger file is not read; compiled kernels have 100 KB.
MOST_BYTES = 1 << 28


class UnusableError(Exception):
    """A file or directory that must not be used; the text has the reason."""


def read(folder: Path, name: str) -> bytes | None:
    """The bytes written under a name; None if there are none.

    Raises:
        UnusableError: the file was changed, or other users may have written it.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    _check_folder(folder)
    try:
        return unsealed(_read_own(path), name)
    except ValueError as error:
        raise UnusableError(str(error)) from error


def write(folder: Path, name: str, data: bytes) -> None:
    """Write bytes under a name; concurrent readers see the old file or the new one.

    Raises:
        UnusableError: other users may write the directory.
        OSError: it cannot be written.
    """
    _make(folder)
    replace(folder / name, sealed(data, name), 0o644)


@contextlib.contextmanager
def lock(folder: Path, name: str) -> Iterator[None]:
    """Lock a name against other processes; without a lock if the directory is not writable."""
    import filelock

    held = filelock.FileLock(folder / LOCKS / f"{name}.lock")
    with contextlib.suppress(OSError, UnusableError):
        _make(folder)
        (folder / LOCKS).mkdir(mode=0o700, exist_ok=True)
        try:
            held.acquire(blocking=False)
        except filelock.Timeout:
            with announced(lambda: f"waiting for another process that makes {name}"):
                held.acquire()
    try:
        yield
    finally:
        held.release()


def _make(folder: Path) -> None:
    """Create the directory for the user alone, and refuse an existing one that is not safe."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(folder)


def _check_folder(folder: Path) -> None:
    if (reason := complaint(os.stat(folder))) is not None:
        raise UnusableError(f"directory {folder} {reason}")


def complaint(status: os.stat_result) -> str | None:
    """Why a file or directory is not used, by its owner and mode; None if it is safe."""
    if status.st_uid not in (0, os.geteuid()):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others, its mode is {stat.filemode(status.st_mode)}"
    return None


def _read_own(path: Path) -> bytes:
    """The bytes of a regular file of the user; the checks are on the open file, so it cannot be exchanged."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for its writer
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableError(str(error)) from error
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise UnusableError("it is not a regular file")
        if status.st_size > MOST_BYTES:
            raise UnusableError(f"it has {status.st_size:,} bytes")
        if (reason := complaint(status)) is not None:
            raise UnusableError(f"it {reason}")
        return file.read()
