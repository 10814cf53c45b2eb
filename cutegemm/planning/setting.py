# SPDX-License-Identifier: Apache-2.0
"""`Setting`: what is known of a tensor-core kernel before its tile, and the settings that a request leaves open."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from cutegemm.arch.limits import Limits
from cutegemm.config import MatrixConfig, OutputConfig
from cutegemm.epilogue.graph import Graph
from cutegemm.planning import epilogue as plan_epilogue
from cutegemm.planning.loads import Loads, ways_in
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
