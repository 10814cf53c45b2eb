# SPDX-License-Identifier: Apache-2.0
"""`cutegemm cache`: list, clear, export and import the compiled kernels of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutegemm.cli.group import Commands
from cutegemm.cli.inputs import Json, option
from cutegemm.cli.output import print_facts, table
from cutegemm.errors import InputError, field_error

if TYPE_CHECKING:
    from cutegemm.compiling.archive import CachedKernel, CacheResult

DAY = 86_400.0
DONE = {"list": "in", "clear": "removed from", "export": "exported from", "import": "imported into"}

HELP = "List, clear, export or import compiled kernels."
commands = typer.Typer(name="cache", cls=Commands, help=HELP, no_args_is_help=True, rich_markup_mode=None)


@commands.command("list")
def list_(json: Json = False) -> None:
    """List the cached kernels, the newest first."""
    from cutegemm.compiling import archive

    kernels = archive.listed()
    _show("list", len(kernels), json, kernels)


@commands.command()
def clear(
    older: Annotated[float | None, option("--older-than", "DAYS", "delete only older kernels")] = None,
    unusable: Annotated[bool, typer.Option("--unusable", help="delete only damaged kernels")] = False,
    json: Json = False,
) -> None:
    """Delete cached kernels. Running processes keep theirs; others compile again."""
    from cutegemm.compiling import archive

    if older is not None and not older >= 0:
        raise field_error(InputError, "--older-than", older, "must be a number of days, at least 0", 30)
    kernels = archive.listed()
    if older is not None:
        kernels = [x for x in kernels if x.modified < time.time() - older * DAY]
    if unusable:
        kernels = [x for x in kernels if x.trouble]
    _show("clear", archive.clear(x.name for x in kernels), json, kernels)


@commands.command()
def export(file: Annotated[Path, typer.Argument(help="the file to write")], json: Json = False) -> None:
    """Write all cached kernels to FILE.

    For a machine with the same version of cutegemm and of the DSL.
    """
    from cutegemm.compiling import archive

    _show("export", archive.export(file), json)


@commands.command("import")
def import_(file: Annotated[Path, typer.Argument(help="what export wrote")], json: Json = False) -> None:
    """Add the kernels of FILE. They are native code: import only files that you trust."""
    from cutegemm.compiling import archive

    _show("import", archive.import_(file), json)


def _show(action: str, count: int, json: bool, kernels: Sequence[CachedKernel] = ()) -> None:
    from cutegemm.compiling import archive, kernel_cache

    size = sum(x.bytes for x in kernels)
    done = archive.CacheResult(action, str(kernel_cache.directory()), count, size, list(kernels))
    print_facts("cache", done, as_text, json)


def as_text(done: CacheResult) -> str:
    """The result, and the kernels of a list."""
    lines = [f"{done.count} kernel{'s' * (done.count != 1)} {DONE[done.action]}", done.folder]
    rows = [
        (x.name[:8], x.family or "-", f"{x.bytes:,} B", _age(x.modified), x.trouble or x.what)
        for x in done.kernels
    ]
    if done.action == "list" and rows:
        heads = ("name", "family", "size", "age", "what")
        lines += [table(heads, rows, right=(2, 3)), f"{done.bytes:,} B in all"]
    return "\n".join(lines)


def _age(modified: float) -> str:
    seconds = max(0.0, time.time() - modified)
    for unit, length in (("d", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
