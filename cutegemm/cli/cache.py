# SPDX-License-Identifier: Apache-2.0
"""`cutegemm cache`: the compiled kernels of this machine, listed, cleared, taken to another one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutegemm.cli.given import Json
from cutegemm.cli.output import say, table, write_json

if TYPE_CHECKING:
    from cutegemm.compiling.archive import Kept

DAY = 86_400.0

commands = typer.Typer(
    name="cache",
    help="List, clear, export or import compiled kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.command("list")
def list_(json: Json = False) -> None:
    """List the kept kernels, the newest first."""
    from cutegemm.compiling import archive

    found = archive.listed()
    _told("list", len(found), json, found)


@commands.command()
def clear(
    older: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", help="only those not written since")
    ] = None,
    unusable: Annotated[bool, typer.Option("--unusable", help="only damaged ones")] = False,
    json: Json = False,
) -> None:
    """Forget kept kernels; what runs them keeps them, and others compile again."""
    from cutegemm.compiling import archive

    found = archive.listed()
    if older is not None:
        found = [x for x in found if x.modified < time.time() - older * DAY]
    if unusable:
        found = [x for x in found if x.trouble]
    count = archive.clear(x.name for x in found)
    _told("clear", count, json, found)


@commands.command()
def export(file: Annotated[Path, typer.Argument(help="to write")], json: Json = False) -> None:
    """Write all kept kernels to FILE, for a machine with the same version of cutegemm and of the DSL."""
    from cutegemm.compiling import archive

    _told("export", archive.export(file), json)


@commands.command("import")
def import_(file: Annotated[Path, typer.Argument(help="that export wrote")], json: Json = False) -> None:
    """Take the kernels of FILE. They are native code: take only files that you trust."""
    from cutegemm.compiling import archive

    _told("import", archive.import_(file), json)


def _told(action: str, count: int, json: bool, kernels: list[Kept] | None = None) -> None:
    from cutegemm.compiling import archive, kernel_cache

    folder, found = str(kernel_cache.directory()), kernels or []
    size = sum(x.bytes for x in found)
    if json:
        write_json("cache", archive.CacheDone(action, folder, count, size, found))
        return
    done = {"list": "kept in", "clear": "removed from", "export": "written from", "import": "taken into"}[
        action
    ]
    say(f"{count} kernel{'s' * (count != 1)} {done}")
    say(folder)
    if action == "list" and found:
        rows = [
            (x.name[:8], x.family or "-", f"{x.bytes:,} B", _age(x.modified), x.trouble or x.what)
            for x in found
        ]
        say(table(("name", "family", "size", "age", "what"), rows, right=(2, 3)))
        say(f"{size:,} B in all")


def _age(modified: float) -> str:
    seconds = max(0.0, time.time() - modified)
    for unit, length in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


__all__ = ["commands"]
