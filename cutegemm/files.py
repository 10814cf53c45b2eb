# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole, so that readers get the old bytes or the new; and zips of named members."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import zipfile
from collections.abc import Mapping
from pathlib import Path

from cutegemm.errors import InputError, field_error

# all members of a zip together
MOST_BYTES = 1 << 31


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file beside its place and rename it into it; where that fails, nothing is left behind.

    Args:
        path: of the file, in a folder that is there.
        data: all of it.
        mode: its permissions, less those that the process's umask takes away.

    Raises:
        OSError: it cannot be written.
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
    """`replace` of a file that a caller named in an argument.

    Raises:
        InputError: it cannot be written; what was there before is there still.
    """
    try:
        replace(path, data)
    except OSError as error:
        rule = f"must be a file that can be written: {error.strerror or error}"
        raise field_error(InputError, field, str(path), rule) from error


def packed(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members by name. It has no time of day: the same members make the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def unpacked(source: Path | io.BytesIO) -> dict[str, bytes]:
    """The members of a zip that are at most `MOST_BYTES` together.

    Raises:
        ValueError: they are more. Damage raises almost anything.
    """
    with zipfile.ZipFile(source) as file:
        if sum(x.file_size for x in file.infolist()) > MOST_BYTES:
            raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
        return {name: file.read(name) for name in file.namelist()}
