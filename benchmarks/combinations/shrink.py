# SPDX-License-Identifier: Apache-2.0
"""The fewest fields that still fail, so that a failure names its cause."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.combinations.cover import legal
from benchmarks.combinations.factors import shortened
from benchmarks.combinations.fields import EXTENTS, FREE, Case, Value

# runs that shrinking may take
RUNS = 60


def shrunk(
    case: Case,
    fails: Callable[[Case], bool],
    *,
    accepts: Callable[[Case], bool] = legal,
    most: int = RUNS,
    short: Callable[[Case], dict[str, Value]] = shortened,
) -> dict[str, Value]:
    """A case of fewer fields that fails too: no field of it can be left out, as far as the runs allow.

    Args:
        case: that fails.
        fails: whether a legal case does.
        accepts: whether a case is legal.
        most: runs, at most.
        short: leaves out fields that have their first value.
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
    """Fields that are left out together."""
    together = (tuple(EXTENTS), FREE)
    joined = [group for group in together if any(name in case for name in group)]
    return [*joined, *((name,) for name in case if not any(name in group for group in together))]


__all__ = ["shrunk"]
