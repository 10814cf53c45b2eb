# SPDX-License-Identifier: Apache-2.0
"""`cutegemm ladder`: the handwritten kernels on this machine, an alias of `python -m handwritten`."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

# the ladder's own command parses all arguments, including --help and --json FILE
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def ladder(
    words: Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS]", help="--help lists them")] = None,
) -> None:
    """Check, time or emulate the handwritten kernels.

    --help lists the options.
    """
    command = importlib.import_module("handwritten.ladder.command")
    raise typer.Exit(command.main(words or []))
