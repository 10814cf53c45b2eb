# SPDX-License-Identifier: Apache-2.0
"""Ways to serve a request: operands swapped or not, and how matrices are loaded and stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from cutegemm.arch.limits import Limits
from cutegemm.config import MatrixConfig, OperandConfig, OutputConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.planning import epilogue_plan as plan_epilogue
from cutegemm.planning import invariance, swap
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.loads import Way, ways_in
from cutegemm.planning.requirements import Request
from cutegemm.spec import AUTO, GemmSpec, Tile, tile_fault

# fields of a spec that prune the generator's table
PRUNING = (
    "schedule", "consumers", "cluster", "scheduler", "sms", "ctas_per_sm", "stages", "epilogue_stages",
    "input_stages", "swizzle", "math",
)  # fmt: skip
# greatest K for which stages that threads load are no deeper than this
SHALLOW = 32


def direct(way: Way) -> Way | None:
    """The same with outputs stored from registers, unless the spec gives stores or all are already."""
    if way.spec.store != AUTO or all(x.store == "direct" for x in way.outputs):
        return None
    outputs = tuple(dataclasses.replace(x, store="direct") for x in way.outputs)
    why = "outputs are stored from registers: the given fields leave no shared memory for staging them"
    return dataclasses.replace(way, outputs=outputs, reasons=(*way.reasons, why))


class Kind(NamedTuple):
    """What a table follows from.

    Attributes:
        limits: of the architecture.
        operands, inputs, outputs: how matrices arrive and leave.
        epilogue: of the kernel.
        given: values of the fields of `PRUNING`.
        pinned: columns and depth that every tile must have.
        shallow: whether K is within the least depth that threads load.
        promoted: elements of K between promotions; 0 is never.
    """

    limits: Limits
    operands: tuple[OperandConfig, OperandConfig]
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    epilogue: Graph
    given: tuple[Any, ...] = (AUTO,) * len(PRUNING)
    pinned: tuple[int | None, int | None] = (None, None)
    shallow: bool = False
    promoted: int = 0

    @staticmethod
    def of(way: Way) -> Kind:
        """The kind of a way."""
        given = tuple(getattr(way.spec, name) for name in PRUNING)
        shallow = way.gathers and way.problem.k <= SHALLOW
        matrices = way.operands, way.inputs, way.outputs
        return Kind(way.limits, *matrices, way.epilogue, given, way.seen.pinned, shallow, way.promoted)

    @property
    def spec(self) -> GemmSpec:
        """A spec with only these fields."""
        return GemmSpec(**dict(zip(PRUNING, self.given, strict=True)))

    @property
    def by_threads(self) -> bool:
        """Whether the producer's threads load an operand."""
        return any(x.load != "tma" for x in self.operands)


class Option(NamedTuple):
    """A config with its predicted nanoseconds."""

    ns: float
    way: Way
    candidate: Candidate

    @property
    def in_d(self) -> Candidate:
        """The candidate in D's coordinates."""
        x = self.candidate
        if not self.way.swapped:
            return x
        (m, n, k), (along, across) = x.tile, x.cluster
        return x._replace(tile=(n, m, k), cluster=(across, along))


# options, fastest first -> the options in the order in which they are tried
Order = Callable[[Iterator[Option]], Iterable[Option]]


def by_cost(found: Iterator[Option]) -> Iterator[Option]:
    """The order of predicted time."""
    return found


def turned(asked: Request) -> tuple[bool, ...]:
    """The orientations to consider: as given, as a given tile needs, or both."""
    spec = asked.spec
    if isinstance(spec.swap, bool) or asked.epilogue.blocks:
        return (spec.swap is True,)
    if isinstance(spec.tile, Tile):
        return (tile_fault(spec.tile, arithmetic=spec.arithmetic) is not None,)
    # it changes a row's partial results
    return (False,) if invariance.along_rows(asked) else (False, True)


def ways_of(asked: Request) -> Iterator[Way]:
    """Every combination of orientation and loads that the spec leaves open."""
    for swapped in turned(asked):
        seen = invariance.pinned(asked, swapped=swapped)
        seen = swap.transposed(seen) if swapped else seen
        reasons: list[str] = []
        outputs = plan_epilogue.stored(seen.spec, seen.problem, seen.epilogue, reasons)
        inputs = plan_epilogue.fetched(seen.problem, seen.epilogue, reasons)
        yield from ways_in(seen, inputs, outputs, reasons)
