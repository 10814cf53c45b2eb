# SPDX-License-Identifier: Apache-2.0
"""Accepts every choice of equal cost when a file is verified; `fresh_check.verify` runs this text in the file's tree.

Two configs may cost the same to the picosecond, such as rasters along m and n for a square D. The planners of earlier
files took the one that NumPy's partition put first, which depends on AVX-512 of the processor. So every config of equal
cost is valid. A problem that the planner refuses has no plan.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks import fresh_bench, fresh_check
from cutegemm.errors import GemmError

# configs that are tried, fastest first, and the tolerance of equal costs in nanoseconds
TRIED, NEAR = 64, 0.002


def earlier(place: int, options: Iterable[Any]) -> Iterator[Any]:
    """The options in order, with the one at `place` moved before those of equal cost."""
    rest = iter(options)
    found = list(itertools.islice(rest, TRIED))
    if place < len(found):
        first = next(i for i, x in enumerate(found) if x.ns >= found[place].ns - NEAR)
        found.insert(first, found.pop(place))
    return itertools.chain(found, rest)


class Choices:
    """Equal to the label of any config that costs no more than the choice."""

    def __init__(self, choice: str, others: Callable[[], Iterable[str]]) -> None:
        self._choice, self._others = choice, others

    def __eq__(self, label: object) -> bool:
        return label == self._choice or any(label == x for x in self._others())

    def __repr__(self) -> str:
        return repr(self._choice)


def choices(planned: Callable[..., dict[str, str]], case: Any, record: Any) -> dict[str, Choices]:
    """The valid choices of the planner by contender; empty if it refuses."""
    own = fresh_bench.plan

    def ordered(place: int) -> dict[str, str]:
        fresh_bench.plan = functools.partial(own, order=functools.partial(earlier, place))
        try:
            return planned(case, record)
        finally:
            fresh_bench.plan = own

    try:
        found = planned(case, record)
    except GemmError:
        return {}
    return {
        name: Choices(label, lambda name=name: (ordered(place)[name] for place in range(TRIED)))
        for name, label in found.items()
    }


if __name__ == "__main__":
    fresh_bench.planned = functools.partial(choices, fresh_bench.planned)
    sys.exit(fresh_check.main(sys.argv[1:]))
