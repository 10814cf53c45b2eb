# SPDX-License-Identifier: Apache-2.0
"""`cutegemm database`: the tuned entries of this machine and of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from cutegemm.checks import choice
from cutegemm.cli.group import Commands
from cutegemm.cli.inputs import Json, option
from cutegemm.cli.output import print_facts, width, wrapped
from cutegemm.errors import InputError

SOURCES = ("user", "shipped", "all")
HELP = "Show the tuned entries."
commands = typer.Typer(name="database", cls=Commands, help=HELP, no_args_is_help=True, rich_markup_mode=None)


@dataclass(frozen=True)
class Measured:
    """One entry: its database, its key and its measurement."""

    source: str
    gpu: str
    spec: str
    kind: str
    m: int
    n: int
    k: int
    batch: int
    us: float
    model_us: float
    tried: int
    complete: bool
    date: str
    fields: dict[str, object]


@dataclass(frozen=True)
class Entries:
    """The user's file, and the selected entries."""

    path: str
    entries: list[Measured]


@commands.callback(help=HELP)
def group() -> None:
    """Keeps `show` a subcommand: typer replaces a group of one command by the command."""


@commands.command()
def show(
    gpu: Annotated[str, option("--gpu", "TEXT", "only GPUs whose name contains this")] = "",
    source: Annotated[str, option("--source", "|".join(SOURCES), "whose entries", lambda: SOURCES)] = "all",
    json: Json = False,
) -> None:
    """List the entries of this machine and those that ship."""
    print_facts("database", entries(gpu, choice(InputError, "--source", source, SOURCES)), as_text, json)


def as_text(facts: Entries) -> str:
    """Two lines per entry: the measurement, and the problem."""
    lines = [f"{len(facts.entries)} entries; the user's are in\n{facts.path}"]
    shapes = [f"{x.m} x {x.n} x {x.k}" + f" x {x.batch}" * (x.batch != 1) for x in facts.entries]
    room = max(map(len, shapes), default=0)
    for shape, x in zip(shapes, facts.entries, strict=True):
        chosen = ", ".join(f"{k} {_value(v)}" for k, v in x.fields.items()) or "the model's choice"
        head = f"{shape:<{room}}  {x.us:>9,.1f} us  {x.model_us / x.us:.2f} x the model's  {x.source}, {x.date[:10]}"
        more = "" if x.spec == "{}" else f"; spec {x.spec}"
        of = f"{x.gpu}; {x.kind}{more}: {chosen}"
        lines += [head if len(head) <= width() else wrapped("", head, 0), wrapped("", of, 4)]
    return "\n".join(lines)


def entries(gpu: str, source: str) -> Entries:
    """The entries of the selected GPUs, the user's first."""
    from cutegemm.database import Database
    from cutegemm.database.exchange import SHIPPED, read

    database = Database()
    sources = [("user", database.entries())] if source != "shipped" else []
    sources += [("shipped", read(SHIPPED))] if source != "user" else []
    selected = [
        Measured(
            name, key.gpu, key.spec, key.kind, *key.extents, entry.us, entry.model_us, entry.tried, entry.complete,
            entry.date, dict(entry.fields),
        )
        for name, every in sources
        for key, entry in every.items()
        if gpu.lower() in key.gpu.lower()
    ]  # fmt: skip
    return Entries(str(database.path), selected)


def _value(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
