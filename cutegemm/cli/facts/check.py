# SPDX-License-Identifier: Apache-2.0
"""One thing that `doctor` looked at, and what it found."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, FINDING = "ok", "note", "finding"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: of the thing.
        status: "ok", "note" (nothing to do) or "finding".
        says: what was found.
        fix: the command that fixes a finding; empty otherwise.
    """

    name: str
    status: str
    says: str
    fix: str = ""
