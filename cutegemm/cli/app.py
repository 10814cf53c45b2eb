# SPDX-License-Identifier: Apache-2.0
"""The commands, and what they end with: 0, 1 where there are findings, 2 where something was asked wrongly."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cutegemm.checks import choice
from cutegemm.cli import bench, cache, code, database, diff, doctor, emulate, explain, ladder, layout, schema
from cutegemm.errors import GemmError, InputError, needing

FINDINGS, USAGE, INTERRUPTED = 1, 2, 130


class Commands(TyperGroup):
    """The commands; errors raised on purpose end them with a line on standard error and status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with needing():
                return super().invoke(ctx)
        except (GemmError, OSError) as error:
            # a reader that closes the pipe early is not an error of ours
            if isinstance(error, BrokenPipeError):
                raise
            says = str(error)
            if isinstance(error, OSError) and error.filename:
                says = f"{error.filename}: {error.strerror}"
            typer.echo(f"{ctx.info_name} {ctx.invoked_subcommand or ''}".rstrip() + f": {says}", err=True)
            raise typer.Exit(USAGE) from error
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from error


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
    """Print the JSON schema of what a command's --json prints."""
    known = choice(InputError, "COMMAND", command, tuple(schema.DOCUMENTS))
    typer.echo(json.dumps(schema.document(known), indent=1))


def _version(asked: bool) -> None:
    if asked:
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
    """End at once where the DSL is at work: an exception in the middle of its compiler ends the process by a fault.

    Files are renamed into their places and SQLite keeps a journal, so nothing is left half written. Tuning keeps what
    it knows by itself.
    """
    if "cutlass" in sys.modules and "cutegemm.tuning.tuner" not in sys.modules:
        os.write(2, b"stopped\n")
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def main() -> None:
    """Run the command line."""
    # one that was told to ignore the signal goes on ignoring it
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    app(prog_name="cutegemm")
