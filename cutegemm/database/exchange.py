# SPDX-License-Identifier: Apache-2.0
"""Entries as a JSON file, to copy them to another machine and to ship them.

`shipped.json` in this folder ships with the package. `python -m cutegemm.database export` makes such a file from the
user's database.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutegemm.database.entry import Entry, Key, key_from
from cutegemm.database.user_database import FORMAT, Database
from cutegemm.errors import InputError, field_error
from cutegemm.files import replace_given

SHIPPED = Path(__file__).with_name("shipped.json")


def export(path: Path | str, database: Database | None = None, *, gpu: str | None = None) -> int:
    """Write the database's entries to a file; returns how many.

    Args:
        path: of the file, which is replaced.
        database: None is the user's.
        gpu: only entries of this GPU, as `Key.gpu` names it; None is every GPU.

    Raises:
        InputError: the file cannot be written; an earlier file is kept.
    """
    return write(path, (database or Database()).entries(gpu))


def write(path: Path | str, entries: Mapping[Key, Entry]) -> int:
    """Write entries to a file, sorted by key; returns how many.

    Raises:
        InputError: the file cannot be written; an earlier file is kept.
    """
    every = sorted(entries.items())
    rows = [{"key": [*key[:3], list(key.extents)], **entry.to_data()} for key, entry in every]
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    text = f"[\n{lines}\n]" if rows else "[]"
    replace_given("path", Path(path), f'{{"format": {FORMAT}, "entries": {text}}}\n'.encode())
    return len(rows)


def import_(path: Path | str, database: Database | None = None) -> int:
    """Copy the entries of a file into the database; returns how many were new or newer than those it had.

    Raises:
        InputError: `export` did not write the file.
    """
    target = database or Database()
    here = target.entries()
    newer = {x: y for x, y in read(Path(path)).items() if x not in here or here[x].date < y.date}
    for key, entry in newer.items():
        target.put(key, entry)
    return len(newer)


def read(path: Path) -> dict[Key, Entry]:
    """The entries of a file.

    Raises:
        InputError: `export` did not write the file.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']}, not {FORMAT}")
        return dict(_row(row) for row in data["entries"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        rule = f"must be a file that cutegemm.database.export wrote: {text}"
        raise field_error(InputError, "path", str(path), rule) from error


def _row(row: dict[str, Any]) -> tuple[Key, Entry]:
    *words, extents = row["key"]
    return key_from(words, extents), Entry.from_data({x: row[x] for x in row if x != "key"})


@functools.cache
def shipped() -> dict[Key, Entry]:
    """The entries that the package ships; none if their file is damaged."""
    try:
        return read(SHIPPED)
    except InputError as error:
        warnings.warn(f"the shipped tuning database is not used: {error}", RuntimeWarning, stacklevel=3)
        return {}
