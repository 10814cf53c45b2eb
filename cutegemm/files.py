# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of files, so that readers get the old bytes or the new; checksums; zips of named members."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path

from cutegemm.errors import InputError, field_error

# most bytes of all members of a zip together
MOST_BYTES = 1 << 31
SEAL_BYTES = hashlib.sha256().digest_size


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a temporary file and rename it to `path`; a failure leaves no temporary file.

    Args:
        path: of the file. Its folder must exist.
        data: the whole contents.
        mode: permissions before the process's umask.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def replace_given(field: str, path: Path, data: bytes) -> None:
    """`replace` for a file that the caller passed in the argument `field`.

    Raises:
        InputError: the file cannot be written; an existing file is kept.
    """
    try:
        replace(path, data)
    except OSError as error:
        rule = f"must be a file that can be written: {error.strerror or error}"
        raise field_error(InputError, field, str(path), rule) from error


def sealed(data: bytes, name: str = "") -> bytes:
    """The data, followed by a SHA-256 of the data and its file's name."""
    return data + _seal(data, name)


def unsealed(file: bytes, name: str = "") -> bytes:
    """The data that was passed to `sealed`.

    Raises:
        ValueError: the file was changed or truncated, or has another name.
    """
    data = file[:-SEAL_BYTES]
    if file[-SEAL_BYTES:] != _seal(data, name):
        raise ValueError("it differs from its checksum")
    return data


def _seal(data: bytes, name: str) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + data).digest()


def packed(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members by name. It has no time stamps, so the same members give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def unpacked(data: bytes) -> dict[str, bytes]:
    """The members of a zip.

    Raises:
        ValueError: the members exceed `MOST_BYTES`. A damaged zip raises many other exceptions.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        if sum(x.file_size for x in file.infolist()) > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
        return {name: file.read(name) for name in file.namelist()}
