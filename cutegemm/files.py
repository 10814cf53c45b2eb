# SPDX-License-Identifier: Apache-2.0
"""Files that are replaced as a whole: whoever reads one meanwhile gets the old bytes or the new."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from cutegemm.errors import InputError, field_error


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


__all__ = ["replace", "replace_given"]
