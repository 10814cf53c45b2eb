# SPDX-License-Identifier: Apache-2.0
"""`cutegemm doctor`: what of this machine needs to be fixed, each with the command that fixes it."""

from __future__ import annotations

import typer

from cutegemm.cli.given import Json
from cutegemm.cli.output import say, table, write_json


def doctor(json: Json = False) -> None:
    """Look for what is missing or broken here; 1 where there are findings."""
    from cutegemm.cli.facts import health

    found = health.examine()
    if json:
        write_json("doctor", found)
    else:
        marks = {health.OK: "ok", health.NOTE: "note", health.FINDING: "FIX"}
        say(table(("", "", ""), [(marks[x.status], x.name, x.says) for x in found.checks], indent=0))
        for x in found.findings:
            say(f"\n{x.name}: run\n  {x.fix}")
        count = len(found.findings)
        say("\nnothing to fix" if not count else f"\n{count} to fix")
    if found.findings:
        raise typer.Exit(1)


__all__ = ["doctor"]
