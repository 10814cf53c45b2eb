# SPDX-License-Identifier: Apache-2.0
"""`cutegemm doctor`: problems of this machine, each with the command that fixes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cutegemm.cli.inputs import Json
from cutegemm.cli.output import print_facts, table

if TYPE_CHECKING:
    from cutegemm.cli.facts.health import Health


def doctor(json: Json = False) -> None:
    """Look for missing or broken parts; exits with 1 for findings."""
    from cutegemm.cli.facts import health

    facts = health.examine()
    print_facts("doctor", facts, as_text, json)
    if facts.findings:
        raise typer.Exit(1)


def as_text(facts: Health) -> str:
    """A line for each check, and the commands that fix findings."""
    marks = {"ok": "ok", "note": "note", "finding": "FIX"}
    rows = [(marks[x.status], x.name, x.message) for x in facts.checks]
    fixes = [f"{x.name}: run\n  {x.fix}" for x in facts.findings]
    count = f"{len(fixes)} to fix" if fixes else "nothing to fix"
    return "\n\n".join([table(("", "", ""), rows, indent=0), *fixes, count])
