# SPDX-License-Identifier: Apache-2.0
"""Sealed files in one directory: each is written whole and is read back only as it was written.

A file is its seal and its bytes. The seal is HMAC-SHA256 (RFC 2104) of the file's name and bytes under the
directory's `secret`, 32 random bytes made with the directory. It is checked before anything is parsed.

What that protects against: damage of any kind, a file under another's name or from another directory, and a
file made by somebody who cannot read `secret`, whatever digests it carries. Owner and mode are checked as ssh
does: directory and files must belong to the user or root, and nobody else may write them.

What it does not protect against: whoever can write the directory and read `secret`, that is the user, root,
and programs that run as they do. They can put any code there, as they can in the library itself.

A directory that is copied keeps its files only together with its `secret`. One that root made serves other
users after `chmod -R go+rX`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from cutegemm.compiling.progress import announced
from cutegemm.files import replace

SECRET = "secret"
LOCKS = "locks"
SEAL_BYTES = hashlib.sha256().digest_size
# A file larger than this is not read; compiled kernels have 100 KB.
MOST_BYTES = 1 << 28


class UnusableError(Exception):
    """A file or a directory is not to be used; the message says why."""


def read(folder: Path, name: str) -> bytes | None:
    """The bytes written under a name; None if there are none.

    Raises:
        UnusableError: the file is not what was written, or others may have written it.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    _check_folder(folder)
    sealed = _read_own(path)
    data = sealed[SEAL_BYTES:]
    if not hmac.compare_digest(sealed[:SEAL_BYTES], _seal(_secret(folder), name, data)):
        raise UnusableError("it differs from its seal")
    return data


def write(folder: Path, name: str, data: bytes) -> None:
    """Seal bytes and put them under a name; who reads at the same time sees the old file or the new.

    Raises:
        UnusableError: others may write the directory.
        OSError: it cannot be written.
    """
    _make(folder)
    try:
        secret = _secret(folder)
    except (OSError, UnusableError):
        secret = _new_secret(folder)
    replace(folder / name, _seal(secret, name, data) + data, 0o644)


@contextlib.contextmanager
def lock(folder: Path, name: str) -> Iterator[None]:
    """Hold a name against other processes; where nothing can be written, against nobody."""
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


def _seal(secret: bytes, name: str, data: bytes) -> bytes:
    return hmac.digest(secret, name.encode() + b"\0" + data, "sha256")


def _make(folder: Path) -> None:
    """Have the directory, for the user alone, and refuse one that is not safe."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(folder)


def _check_folder(folder: Path) -> None:
    reason = _complaint(os.stat(folder))
    if reason is not None:
        raise UnusableError(f"directory {folder} {reason}")


def complaint(path: Path) -> str | None:
    """Why a file or directory is not the user's own, so that nothing in it is used; None where it is."""
    return _complaint(os.stat(path))


def _complaint(found: os.stat_result) -> str | None:
    """Why a file or directory is not the user's own (the rule of ssh's StrictModes), or None."""
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"may be written by others, its mode is {stat.filemode(found.st_mode)}"
    return None


def _read_own(path: Path) -> bytes:
    """A regular file that is the user's own; what is checked is what is read."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for its writer
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnusableError(str(error)) from error
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UnusableError("it is no regular file")
        if found.st_size > MOST_BYTES:
            raise UnusableError(f"it has {found.st_size:,} bytes")
        reason = _complaint(found)
        if reason is not None:
            raise UnusableError(f"it {reason}")
        return file.read()


def _secret(folder: Path) -> bytes:
    """The directory's secret.

    Raises:
        UnusableError: there is none that can be trusted.
    """
    try:
        secret = _read_own(folder / SECRET)
    except UnusableError as error:
        raise UnusableError(f"{SECRET}: {error}") from error
    if len(secret) != SEAL_BYTES:
        raise UnusableError(f"{SECRET}: it has {len(secret)} bytes, not {SEAL_BYTES}")
    return secret


def _new_secret(folder: Path) -> bytes:
    """Put a new secret in the place of none or a bad one, once; every file sealed before becomes unusable."""
    with lock(folder, SECRET):
        with contextlib.suppress(UnusableError):
            return _secret(folder)
        replace(folder / SECRET, secrets.token_bytes(SEAL_BYTES), 0o600)
        return _secret(folder)
