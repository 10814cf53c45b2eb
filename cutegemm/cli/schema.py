# SPDX-License-Identifier: Apache-2.0
"""The JSON schema of a command's `--json` output, generated from the dataclass that it prints."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from cutegemm.families.family import load

# command -> "module:name" of the dataclass that it prints
DOCUMENTS = {
    "explain": "cutegemm.cli.facts.explained:Explained",
    "layout": "cutegemm.cli.facts.drawing:Drawn",
    "doctor": "cutegemm.cli.facts.health:Health",
    "diff": "cutegemm.cli.facts.difference:Difference",
    "ptx": "cutegemm.cli.facts.machine_code:Code",
    "sass": "cutegemm.cli.facts.machine_code:Code",
    "emulate": "cutegemm.cli.facts.emulation:EmulatedRun",
    "bench": "cutegemm.cli.facts.comparison:Comparison",
    "tune": "cutegemm.cli.facts.comparison:Tuned",
    "cache": "cutegemm.compiling.archive:CacheResult",
    "database": "cutegemm.cli.database:Entries",
}
_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}


def document(command: str) -> dict[str, Any]:
    """The schema (JSON Schema 2020-12) of the output of `cutegemm COMMAND --json`."""
    schema = _of(load(DOCUMENTS[command]))
    schema["properties"] = {"command": {"const": command}, **schema["properties"]}
    schema["required"] = ["command", *schema["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": command, **schema}


def _of(kind: Any) -> dict[str, Any]:
    if kind is Any or kind is object:
        return {}
    if kind in _SIMPLE:
        return {"type": _SIMPLE[kind]}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [f.name for f in dataclasses.fields(kind)]
        return {
            "type": "object",
            "properties": {name: _of(hints[name]) for name in names},
            "required": names,
            "additionalProperties": False,
        }
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(x) for x in inner]}
    if origin in (list, tuple):
        if origin is tuple and (len(inner) < 2 or inner[1] is not Ellipsis):
            return {"type": "array", "prefixItems": [_of(x) for x in inner], "minItems": len(inner)}
        return {"type": "array", "items": _of(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(inner[1])}
    raise TypeError(f"no schema for {kind}")
