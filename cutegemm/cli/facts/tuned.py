# SPDX-License-Identifier: Apache-2.0
"""What tuning came to, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.cli.given import Asked
from cutegemm.tuning import tune


@dataclass(frozen=True)
class OutcomeOf:
    """One problem: its status, microseconds and those of the model's choice (None where nothing is known), in words."""

    status: str
    us: float | None
    model_us: float | None
    fields: dict[str, object]
    says: str


@dataclass(frozen=True)
class Tuned:
    """All problems, and whether tuning was stopped before its end."""

    outcomes: list[OutcomeOf]
    interrupted: bool


def tuned(asked: Asked, **options: Any) -> Tuned:
    """`cutegemm.tune` of what was asked."""
    report = tune(asked.spec, [asked.problem], **options)
    found = []
    for x in report.outcomes:
        us, model = (None, None) if x.entry is None else (x.entry.us, x.entry.model_us)
        fields = {} if x.entry is None else dict(x.entry.fields)
        found.append(OutcomeOf(x.status, us, model, fields, str(x)))
    return Tuned(found, report.interrupted)


__all__ = ["Tuned", "tuned"]
