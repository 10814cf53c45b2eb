# SPDX-License-Identifier: Apache-2.0
"""What a request leaves open beside a config: whether operands are swapped, and how matrices arrive and leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cutegemm.arch.limits import Limits
from cutegemm.config import MatrixConfig, OutputConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.planning import epilogue_plan as plan_epilogue
from cutegemm.planning import invariance, swap
from cutegemm.planning.candidates import Candidate
from cutegemm.planning.loads import Loads, ways_in
from cutegemm.planning.requirements import Request
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec, Tile, tile_fault


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Operands as the kernel sees them, its epilogue, and the ways in and out.

    Attributes:
        spec, epilogue, limits, sms, l2_bytes: as asked; problem: with the operand of a gated pair as one of its halves.
        loads: how A and B arrive, and the copies made for that.
        inputs, outputs: how the epilogue's matrices arrive and leave.
        reasons: why, one line each.
    """

    spec: GemmSpec
    problem: Problem
    epilogue: Graph
    limits: Limits
    sms: int
    l2_bytes: int
    loads: Loads
    inputs: tuple[MatrixConfig, ...]
    outputs: tuple[OutputConfig, ...]
    reasons: tuple[str, ...]

    @property
    def seen(self) -> Problem:
        """The problem as the kernel reads it: what was copied lies in lines that TMA can address."""
        if not self.loads.copies:
            return self.problem
        a, b = self.loads.views
        return dataclasses.replace(self.problem, a=a, b=b)

    @property
    def gates(self) -> int:
        """Accumulator columns per output column."""
        return 2 if self.epilogue.gated_axis == "n" else 1

    @property
    def halves(self) -> int:
        """Accumulator rows per output row."""
        return 2 if self.epilogue.gated_axis == "m" else 1


def settings(asked: Request) -> list[Setting]:
    """A setting for every way in that operands have.

    Raises:
        PlanError: a given load or store cannot be.
    """
    reasons: list[str] = []
    outputs = plan_epilogue.stored(asked.spec, asked.problem, asked.epilogue, reasons)
    inputs = plan_epilogue.fetched(asked.problem, asked.epilogue, reasons)
    return [
        Setting(
            spec=asked.spec,
            problem=loads.problem,
            epilogue=asked.epilogue,
            limits=asked.device.limits,
            sms=asked.device.sms,
            l2_bytes=asked.device.l2_bytes,
            loads=loads,
            inputs=inputs,
            outputs=outputs,
            reasons=(*asked.reasons, *why, *reasons),
        )
        for loads, why in ways_in(asked)
    ]


def direct(setting: Setting) -> Setting | None:
    """A setting whose outputs leave from registers, where the spec leaves that open and others would not."""
    if setting.spec.store != AUTO or all(x.store == "direct" for x in setting.outputs):
        return None
    outputs = tuple(dataclasses.replace(x, store="direct") for x in setting.outputs)
    why = "outputs are stored from registers: the given fields leave no shared memory for staging them"
    return dataclasses.replace(setting, outputs=outputs, reasons=(*setting.reasons, why))


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
