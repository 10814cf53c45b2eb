# SPDX-License-Identifier: Apache-2.0
"""`Rule`: one invariant of a config, and the refusal of a config that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cutegemm.config.numbers import Number, every
from cutegemm.errors import PlanError, field_error

Refusal = tuple[str, object, str, object]  # field, value, rule, nearest legal value


@dataclass(frozen=True)
class Rule:
    """An invariant.

    Attributes:
        holds: whether it does: of a config True or False, of a draft of many candidates one of these for each.
        refusal: of a config for which it does not.
        needs_tile: whether it reads the tile; what breaks another one is right with no tile.
    """

    holds: Callable[[Any], Number]
    refusal: Callable[[Any], Refusal]
    needs_tile: bool = True

    def error(self, config: Any) -> PlanError:
        """The refusal as an error, to be raised."""
        return field_error(PlanError, *self.refusal(config))


def check_all(rules: Iterable[Rule], config: Any) -> None:
    """Raise the refusal of the first rule that a config breaks.

    Raises:
        PlanError: there is one.
    """
    for rule in rules:
        if not rule.holds(config):
            raise rule.error(config)


def all_hold(rules: Iterable[Rule], drafts: Any) -> Number:
    """Whether all rules hold: of one draft, or of each candidate of a draft of many."""
    import numpy as np

    # what an earlier rule refuses may divide by zero in a later one
    with np.errstate(divide="ignore", invalid="ignore"):
        return every(rule.holds(drafts) for rule in rules)


def positive(tuples: tuple[str, ...], numbers: tuple[str, ...]) -> Rule:
    """All numbers of some fields are at least 1; the fields hold tuples or numbers."""

    def holds(x: Any) -> Number:
        values = (y for name in tuples for y in getattr(x, name))
        return every(y >= 1 for y in (*values, *(getattr(x, name) for name in numbers)))

    def refusal(x: Any) -> Refusal:
        found = [name for name in tuples if min(getattr(x, name)) < 1]
        field = (found + [name for name in numbers if getattr(x, name) < 1])[0]
        return field, getattr(x, field), "must be at least 1", 1

    return Rule(holds, refusal)
