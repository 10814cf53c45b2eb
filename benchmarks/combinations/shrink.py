# SPDX-License-Identifier: Apache-2.0
"""Shrinks a failing case to the fewest fields, which show the cause."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.combinations.cover import legal
from benchmarks.combinations.factors import shortened
from benchmarks.combinations.fields import EXTENTS, FREE, Case, Value

# maximum runs
RUNS = 60


def shrunk(
    case: Case,
    fails: Callable[[Case], bool],
    *,
    accepts: Callable[[Case], bool] = legal,
    most: int = RUNS,
    short: Callable[[Case], dict[str, Value]] = shortened,
) -> dict[str, Value]:
    """A failing case with fewer fields; within the allowed runs no further field can be removed.

    Args:
        case: a failing case.
        fails: whether a legal case fails.
        accepts: whether a case is legal.
        most: maximum runs.
        short: removes fields with their default.
    """
    best, runs = short(case), 0
    # halves of the fields first, then quarters, down to single ones
    size = max(1, len(best) // 2)
    while True:
        smaller = False
        groups = _groups(best)
        for start in range(0, len(groups), size):
            dropped = {name for group in groups[start : start + size] for name in group}
            tried = {name: value for name, value in best.items() if name not in dropped}
            if tried == best or not accepts(tried):
                continue
            if runs == most:
                return best
            runs += 1
            if fails(tried):
                best, smaller = tried, True
                break
        if smaller:
            size = max(1, min(size, len(_groups(best)) // 2))
        elif size == 1:
            return best
        else:
            size = max(1, size // 2)


def _groups(case: Case) -> list[tuple[str, ...]]:
    """Fields that are removed together."""
    together = (tuple(EXTENTS), FREE)
    joined = [group for group in together if any(name in case for name in group)]
    return [*joined, *((name,) for name in case if not any(name in group for group in together))]


__all__ = ["shrunk"]
