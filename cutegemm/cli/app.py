# SPDX-License-Identifier: Apache-2.0
"""All commands, and the process that runs one."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from cutegemm.checks import choice
from cutegemm.cli import bench, cache, code, database, diff, doctor, emulate, explain, ladder, layout, schema
from cutegemm.cli.group import INTERRUPTED, USAGE, Commands, text_of
from cutegemm.errors import InputError

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Explain, compare, compile, emulate, time and tune Hopper GEMM kernels.",
    epilog="Nothing needs a GPU unless it says so. Exit status: 0, 1 for findings, 2 for usage.",
)
for command in (
    explain.explain, diff.diff, code.ptx, code.sass, emulate.emulate, bench.bench, bench.tune, layout.layout,
    doctor.doctor,
):  # fmt: skip
    app.command()(command)
app.command(context_settings=ladder.CONTEXT)(ladder.ladder)
app.add_typer(cache.commands)
app.add_typer(database.commands)


@app.command("schema")
def show_schema(
    command: Annotated[
        str, typer.Argument(help="explain, layout, …", autocompletion=lambda: list(schema.DOCUMENTS))
    ],
) -> None:
    """Print the JSON schema of a command's --json output."""
    known = choice(InputError, "COMMAND", command, tuple(schema.DOCUMENTS))
    typer.echo(json.dumps(schema.document(known), indent=1))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cutegemm {importlib.import_module('cutegemm').__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of every command."""


def _interrupted(number: int, frame: object) -> None:
    """Exit at once if the DSL is loaded, because an exception inside its compiler crashes the process.

    Files are replaced by renaming and SQLite has a journal, so no file is left half written. Tuning stores its own
    results.
    """
    if "cutlass" in sys.modules and "cutegemm.tuning.tuner" not in sys.modules:
        os.write(2, b"stopped\n")
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def _warn(message: object, *ignored: object, **more: object) -> None:
    """Print a warning as a line without the place in the code that raised it."""
    typer.echo(f"cutegemm: {message}", err=True)


def _drop_unwritten() -> None:
    """Discard output that could not be written, of which a line has told, or Python would fail to write it at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Run the command line."""
    # a process that ignores the signal keeps ignoring it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    warnings.showwarning = _warn
    try:
        app(prog_name="cutegemm")
    except OSError as error:
        # help and version are printed before a command runs
        typer.echo(f"cutegemm: {text_of(error)}", err=True)
        sys.exit(USAGE)
    finally:
        _drop_unwritten()
