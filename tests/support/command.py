# SPDX-License-Identifier: Apache-2.0
"""The command line in process, piped: what it prints, its status, and its JSON against the schema."""

import json

from typer.testing import CliRunner

from cutegemm.cli import schema
from cutegemm.cli.app import app

LONG = 60  # characters of a path that no line of 80 holds beside its words


def run(*words, status=0, env=None):
    """Standard output of a command that ends with a status; every line fits the width of what is piped, but for one
    with a path that is too long itself.
    """
    found = CliRunner().invoke(app, [str(x) for x in words], prog_name="cutegemm", env=env)
    assert found.exit_code == status, (found.exit_code, found.output, found.exception)
    if "--json" not in words and words[0] not in ("ptx", "sass", "schema"):
        assert all(len(x) <= 80 or max(map(len, x.split())) > LONG for x in found.stdout.splitlines()), (
            found.stdout
        )
    return found.stdout


def refused(*words):
    """What a command that was asked wrongly says on standard error, on one line."""
    found = CliRunner().invoke(app, [str(x) for x in words], prog_name="cutegemm")
    assert found.exit_code == 2 and not found.stdout, (found.exit_code, found.output)
    return " ".join(found.stderr.split())


def document(*words, status=0, env=None):
    """The JSON of a command, which is as its schema says."""
    found = json.loads(run(*words, "--json", status=status, env=env))
    trouble = list(complaints(found, schema.document(found["command"])))
    assert not trouble, trouble
    return found


_KINDS = {"integer": int, "number": (int, float), "string": str, "boolean": bool, "null": type(None)}


def complaints(value, of, path="$"):
    """Where a value is not as a schema says; the keywords are those that `cutegemm.cli.schema` makes."""
    known = {"$schema", "title", "type", "properties", "required", "additionalProperties", "anyOf", "const",
             "items", "prefixItems", "minItems"}  # fmt: skip
    assert set(of) <= known, set(of) - known
    if "const" in of and value != of["const"]:
        yield f"{path} is {value!r}"
    if "anyOf" in of and not any(not list(complaints(value, x, path)) for x in of["anyOf"]):
        yield f"{path}: {value!r} is none of {of['anyOf']}"
    kind = of.get("type")
    if kind in _KINDS and (
        not isinstance(value, _KINDS[kind]) or (kind != "boolean" and isinstance(value, bool))
    ):
        yield f"{path} is {value!r}, not {kind}"
    if kind in ("object", "array") and not isinstance(value, {"object": dict, "array": list}[kind]):
        yield f"{path} is {value!r}, not {kind}"
        return
    if kind == "object":
        named, more = of.get("properties", {}), of.get("additionalProperties", {})
        yield from (f"{path}.{x} is missing" for x in of.get("required", ()) if x not in value)
        for name, x in value.items():
            if name in named:
                yield from complaints(x, named[name], f"{path}.{name}")
            elif more is False:
                yield f"{path}.{name} is unknown"
            else:
                yield from complaints(x, more, f"{path}.{name}")
    if kind == "array":
        kinds = of.get("prefixItems") or [of.get("items", {})] * len(value)
        for i, (x, each) in enumerate(zip(value, kinds)):
            yield from complaints(x, each, f"{path}[{i}]")
