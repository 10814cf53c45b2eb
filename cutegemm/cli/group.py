# SPDX-License-Identifier: Apache-2.0
"""A group of commands, and their exit status: 0, 1 for findings, 2 for wrong usage, 130 after Ctrl-C."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from cutegemm.errors import GemmError, needing

FINDINGS, USAGE, INTERRUPTED = 1, 2, 130


class Commands(TyperGroup):
    """The commands; an error raised on purpose prints a line on standard error and exits with status 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            with needing():
                return super().invoke(ctx)
        except (GemmError, OSError) as error:
            # the reader closed the pipe, which is not an error
            if isinstance(error, BrokenPipeError):
                raise
            name = f"{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip()
            typer.echo(f"{name}: {text_of(error)}", err=True)
            raise typer.Exit(USAGE) from error
        except KeyboardInterrupt as error:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from error


def text_of(error: GemmError | OSError) -> str:
    """An error in one line; one of the system without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)
