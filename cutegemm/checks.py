# SPDX-License-Identifier: Apache-2.0
"""Checks of single values that specs, problems and calls share. What they accept, they return as plain Python."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable, Sequence

from cutegemm.errors import GemmError, field_error


def integer(kind: type[GemmError], field: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds as an `int`: anything with `__index__`, NumPy's integers among them, but no bool.

    Raises:
        GemmError: of the given kind.
    """
    number = _index(value)
    if number is None:
        raise field_error(kind, field, value, f"must be an integer from {low} to {high}")
    if not low <= number <= high:
        nearest = min(max(number, low), high)
        raise field_error(kind, field, number, f"must be from {low} to {high}", nearest)
    return number


def integers(value: object) -> tuple[int, ...] | None:
    """A tuple or list of whole numbers as a tuple of `int`; None if it is no such thing."""
    if not isinstance(value, (tuple, list)):
        return None
    numbers = [_index(x) for x in value]
    whole = tuple(x for x in numbers if x is not None)
    return whole if len(whole) == len(numbers) else None


def among(value: object, legal: Sequence[object]) -> bool:
    """Whether a value is one of a few names, numbers, truth values or None; 1 is not True.

    Only what can be one is compared: an array would answer element by element.
    """
    if not isinstance(value, (str, int, type(None))):
        return False
    return any(value == x and isinstance(value, bool) == isinstance(x, bool) for x in legal)


def truth(kind: type[GemmError], field: str, value: object) -> bool:
    """True or False.

    Raises:
        GemmError: of the given kind.
    """
    if not isinstance(value, bool):
        raise field_error(kind, field, value, "must be True or False")
    return value


def choice(kind: type[GemmError], field: str, value: object, legal: Sequence[str]) -> str:
    """One of a few names.

    Raises:
        GemmError: of the given kind.
    """
    if not isinstance(value, str) or value not in legal:
        raise field_error(kind, field, value, f"must be one of {', '.join(legal)}")
    return str(value)


def near(name: str, legal: Iterable[str]) -> str | None:
    """The legal name that a misspelt one means; None where nothing is so near that it could be meant.

    Three letters of four must agree: fewer make "min" of "sin".
    """
    return next(iter(difflib.get_close_matches(name, list(legal), 1, 0.75)), None)


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except Exception:
        # whatever an object's own __index__ raises: it is no whole number
        return None
