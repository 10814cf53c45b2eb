# SPDX-License-Identifier: Apache-2.0
"""What a request leaves open beside a config: whether operands are swapped, and how they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cutegemm.planning import invariance, swap
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.request import Request
from cutegemm.planning.setting import Setting, settings
from cutegemm.spec import Tile, tile_fault


class Way(NamedTuple):
    """A request as its kernel sees it, D's transpose where operands are swapped, and how its operands arrive."""

    seen: Request
    setting: Setting
    swapped: bool


class Option(NamedTuple):
    """A config with its predicted nanoseconds."""

    ns: float
    way: Way
    candidate: Candidate


# options, fastest first -> the same in the order in which they are tried
Order = Callable[[Iterator[Option]], Iterable[Option]]


def by_cost(found: Iterator[Option]) -> Iterator[Option]:
    """The order of predicted time."""
    return found


def turned(asked: Request) -> tuple[bool, ...]:
    """Whether operands are swapped: as given, as a given tile needs it, or both."""
    spec = asked.spec
    if isinstance(spec.swap, bool):
        return (spec.swap,)
    if isinstance(spec.tile, Tile):
        return (tile_fault(spec.tile) is not None,)
    # partial results of a row depend on it
    return (False,) if invariance.along_rows(asked) else (False, True)


def ways_of(asked: Request) -> Iterator[Way]:
    """Every way round and in that the spec leaves open.

    Raises:
        PlanError: a given load or store cannot be.
    """
    for swapped in turned(asked):
        seen = invariance.pinned(asked, swapped=swapped)
        seen = swap.transposed(seen) if swapped else seen
        for setting in settings(seen):
            yield Way(seen, setting, swapped)


__all__ = ["Option", "Order", "Way", "by_cost", "turned", "ways_of"]
