# SPDX-License-Identifier: Apache-2.0
"""`Setting`: what is known of a tensor-core kernel before its tile, and the settings that a request leaves open."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from cutegemm.arch.limits import Limits
from cutegemm.config import MatrixConfig, OutputConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.planning import epilogue as plan_epilogue
from cutegemm.planning.loads import Loads, loads_of, relaid
from cutegemm.planning.request import Request
from cutegemm.problems import Problem
from cutegemm.spec import AUTO, GemmSpec


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


def first_setting(asked: Request) -> Setting:
    """What is chosen where nothing that follows stands against it.

    Raises:
        PlanError: a given load or store cannot be.
    """
    reasons = list(asked.reasons)
    loads = loads_of(asked, reasons)
    return Setting(
        spec=asked.spec,
        problem=loads.problem,
        epilogue=asked.epilogue,
        limits=asked.device.limits,
        sms=asked.device.sms,
        l2_bytes=asked.device.l2_bytes,
        loads=loads,
        inputs=plan_epilogue.fetched(asked.problem, asked.epilogue, reasons),
        outputs=plan_epilogue.stored(asked.spec, asked.problem, asked.epilogue, reasons),
        reasons=tuple(reasons),
    )


def settings(asked: Request, first: Setting) -> Iterator[Setting]:
    """Every setting that the spec leaves open, the chosen one first: copies instead of gathering, direct stores."""
    copied = first
    if relaid(asked, first.loads) != first.loads:
        loads = relaid(asked, first.loads)
        why = "an operand is copied: the given fields leave no room for threads that load it"
        copied = dataclasses.replace(first, loads=loads, reasons=(*first.reasons, why))
    yield first
    if copied is not first:
        yield copied
    if asked.spec.store == AUTO and any(x.store != "direct" for x in first.outputs):
        outputs = tuple(dataclasses.replace(x, store="direct") for x in first.outputs)
        why = "outputs are stored from registers: the given fields leave no shared memory for staging them"
        for setting in (first, copied) if copied is not first else (first,):
            yield dataclasses.replace(setting, outputs=outputs, reasons=(*setting.reasons, why))
