# SPDX-License-Identifier: Apache-2.0
"""Specs to measure, from a JSON file.

The file is a list. An entry is an object of `GemmSpec` fields, {} being the planner's own choice; a field whose value
is an object {"any": [...]} stands for an entry with each of its values, so that

    [{}, {"tile": {"any": [[128, 256, 64], [128, 192, 64]]}, "cluster": {"any": [[1, 1], [2, 1]]}}]

are five specs.
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
    """Read a file of specs, each once.

    Raises:
        ValueError: the file is not such a list, or an entry is no spec; says which.
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
    """Every choice of the values that an entry leaves open."""
    names = list(entry)
    values = [
        value[ANY] if isinstance(value, dict) and set(value) == {ANY} else [value] for value in entry.values()
    ]
    return [dict(zip(names, choice, strict=True)) for choice in itertools.product(*values)]


def spec(fields: Fields) -> GemmSpec:
    """The spec of an entry's fields; lists become tuples, that of the tile a `Tile`.

    Raises:
        GemmError: a value has no legal meaning.
        TypeError: there is no such field.
    """
    given: Fields = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    if isinstance(given.get("tile"), tuple):
        given["tile"] = Tile(*given["tile"])
    return GemmSpec(**given)


def label(fields: Fields) -> str:
    """A spec in words, its fields in order of name: what names it among contenders."""

    def word(value: Any) -> str:
        return "x".join(map(str, value)) if isinstance(value, list) else str(value)

    return ", ".join(f"{name} {word(fields[name])}" for name in sorted(fields)) or "auto"
