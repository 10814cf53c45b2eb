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


def positive(*names: str) -> Rule:
    """The invariant that fields, and all parts of those that have several, are at least 1."""

    def parts(x: Any) -> list[tuple[str, tuple[Number, ...]]]:
        fields = ((name, getattr(x, name)) for name in names)
        return [(name, value if isinstance(value, tuple) else (value,)) for name, value in fields]

    def holds(x: Any) -> Number:
        return every(value >= 1 for _, values in parts(x) for value in values)

    def refusal(x: Any) -> Refusal:
        field = next(name for name, values in parts(x) if min(values) < 1)
        return field, getattr(x, field), "must be at least 1", 1

    return Rule(holds, refusal)


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
