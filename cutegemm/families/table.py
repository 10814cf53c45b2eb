# SPDX-License-Identifier: Apache-2.0
"""The families' rows as a table for the documentation: `python -m cutegemm.families.table`."""

from __future__ import annotations

import dataclasses
import sys

from cutegemm.families import FAMILIES, Abilities

COLUMNS = tuple(f.name for f in dataclasses.fields(Abilities))


def markdown() -> str:
    """A row for each schedule of each family; helper kernels without abilities are left out."""
    lines = [["kernels", "family", *COLUMNS]]
    for family in FAMILIES.values():
        for name, row in family.abilities.items():
            if row != Abilities():
                lines.append([f"`{name}`", f"`{family.name}`", *(_words(getattr(row, x)) for x in COLUMNS)])
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(x)} |" for x in lines)


def _words(value: bool | tuple[object, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) or "-"


if __name__ == "__main__":
    sys.stdout.write(f"{markdown()}\n")
