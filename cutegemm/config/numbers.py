# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that reads the same for Python integers and for NumPy arrays of them.

Conditions are combined by `&`, `|`, `implies`, `every` and `some`, never by `and`, `or` or `if`, so that the same code
works on one config and on thousands of candidates at once. NumPy is imported only for arrays.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# An integer or a truth value, or an array of them: one for each candidate.
Number = Any


def where(condition: Number, yes: Number, no: Number) -> Number:
    """`yes` where a condition holds, `no` elsewhere."""
    if condition is True:
        return yes
    if condition is False:
        return no
    import numpy as np

    return np.where(condition, yes, no)


def either(condition: Number, yes: Callable[[], Number], no: Callable[[], Number]) -> Number:
    """As `where`, with values that are computed only if a candidate needs them."""
    if condition is True:
        return yes()
    if condition is False:
        return no()
    return where(condition, yes(), no())


def implies(condition: Number, consequence: Number) -> Number:
    """Whether a consequence holds whenever a condition does."""
    return (condition ^ True) | consequence


def every(conditions: Iterable[Number]) -> Number:
    """Whether all conditions hold."""
    return functools.reduce(operator.and_, conditions, True)


def some(conditions: Iterable[Number]) -> Number:
    """Whether a condition holds."""
    return functools.reduce(operator.or_, conditions, False)


def among(value: Number, legal: tuple[Any, ...]) -> Number:
    """Whether a value is one of the legal ones."""
    return value in legal if isinstance(value, (str, int)) else some(value == x for x in legal)


def looked_up(table: Mapping[int, Any], key: Number, default: Any = 0) -> Number:
    """The entry of a table of small numbers, or the default; an array for an array of keys."""
    if isinstance(key, int):
        return table.get(key, default)
    import numpy as np

    most = max(max(table, default=0), int(key.max(initial=0)))
    return np.array([table.get(x, default) for x in range(most + 1)])[key].T


def least(x: Number, y: Number) -> Number:
    """The smaller of two."""
    return where(x < y, x, y)


def most(x: Number, y: Number) -> Number:
    """The larger of two."""
    return where(x > y, x, y)


def power_of_two(value: Number) -> Number:
    """Whether a positive number is a power of two."""
    return (value & (value - 1)) == 0


def divides(step: Number, value: Number) -> Number:
    """Whether a step divides whole numbers, as floats in an array; there NumPy's remainder takes ten times as long."""
    import numpy as np

    steps = value / step
    return steps == np.floor(steps)


def round_up(value: Number, step: Number) -> Number:
    """The least multiple of a step that is no less than a value."""
    return -(-value // step) * step
