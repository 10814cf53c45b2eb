# SPDX-License-Identifier: Apache-2.0
"""Specs to measure, from a JSON file.

The file is a list of objects with `GemmSpec` fields; {} is the planner's own choice. A field with the value
{"any": [...]} expands to one spec for each value. So

    [{}, {"tile": {"any": [[128, 256, 64], [128, 192, 64]]}, "cluster": {"any": [[1, 1], [2, 1]]}}]

has five specs.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from cutegemm import GemmSpec, Tile
from cutegemm.errors import GemmError

Fields = dict[str, Any]
ANY = "any"


def load(path: Path) -> list[Fields]:
    """Read a file of specs and drop duplicates.

    Raises:
        ValueError: the file is not such a list, or an entry is not a spec; names the entry.
    """
    try:
        entries = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: must be JSON: {error}") from error
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{path}: must be a list of objects, one at least")
    found: dict[str, Fields] = {}
    for number, entry in enumerate(entries):
        for fields in expand(entry):
            try:
                spec(fields)
            except (GemmError, TypeError) as error:
                raise ValueError(f"{path}: entry {number}: {error}") from error
            found[label(fields)] = fields
    return list(found.values())


def expand(entry: Fields) -> list[Fields]:
    """Every combination of the values under "any"."""
    names = list(entry)
    values = [
        value[ANY] if isinstance(value, dict) and set(value) == {ANY} else [value] for value in entry.values()
    ]
    return [dict(zip(names, choice, strict=True)) for choice in itertools.product(*values)]


def spec(fields: Fields) -> GemmSpec:
    """The spec with these fields; lists become tuples, the tile's a `Tile`.

    Raises:
        GemmError: a value is illegal.
        TypeError: there is no such field.
    """
    given: Fields = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    if isinstance(given.get("tile"), tuple):
        given["tile"] = Tile(*given["tile"])
    return GemmSpec(**given)


def label(fields: Fields) -> str:
    """A spec in words, fields sorted by name: its contender name."""

    def word(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{name} {word(fields[name])}" for name in sorted(fields)) or "auto"
