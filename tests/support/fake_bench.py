# SPDX-License-Identifier: Apache-2.0
"""A GPU that the tuner can run on without one: its clock is a number, its results are torch's or the emulator's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.arch.records import H200
from tests.support.fake_gpu import FakeGpu


class FakeBench(FakeGpu):
    """Costs are of plans; results come from a backend.

    Args:
        seconds: of a call of a plan.
        backend: "reference" or "emulator".
    """

    memory = "cpu"
    # no cache to keep cold: two sets of operands are enough
    record = dataclasses.replace(H200, l2_bytes=1)

    def __init__(self, seconds: Callable[[Any], float], backend: str = "reference") -> None:
        super().__init__()
        self.seconds, self.backend = seconds, backend

    def versions(self) -> str:
        """Nothing was made."""
        return "fake"

    def one_pass(self, prepared: Any, sets: Sequence[Any]) -> Callable[[], None]:
        """Lets the clock go on."""
        plan = prepared.kind.plan

        def work() -> None:
            self.now += len(sets) * self.seconds(plan) * self.slowdown
            if self.log[-1:] != [str(plan.raster)]:
                self.log.append(str(plan.raster))

        return work

    def sound(self) -> bool:
        """Nothing can break it."""
        return True
