# SPDX-License-Identifier: Apache-2.0
"""What a tree's own planner may choose for a drawn problem; `fresh_check.verify` runs this text inside that tree.

Two configs may cost the same to the picosecond, a raster along m and one along n for a square D, say. The planners that
measured earlier files took whichever NumPy's partition put first, which differs between processors with and without
AVX-512. So each of the configs that cost the same is right. A planner that refuses a problem gives it no plan.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks import fresh_bench, fresh_check
from cutegemm.errors import GemmError

# configs that are tried, fastest first, and nanoseconds within which two cost the same
TRIED, NEAR = 64, 0.002


def earlier(place: int, options: Iterable[Any]) -> Iterator[Any]:
    """The options in order, but the one at `place` before those that cost the same."""
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
    """By contender what the planner may choose; nothing where it refuses."""
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
