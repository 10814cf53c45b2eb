# SPDX-License-Identifier: Apache-2.0
"""Fake GPUs on which one raster never ends, or ends the process; made in a child process."""

from __future__ import annotations

import os
import time

from cutegemm.tuning import tuner as tuning
from tests.support.fake_bench import FakeBench
from tests.support.fake_tuner import cost

# what the fastest candidate does the first time it runs
BAD = ("m", 16)


class Hanging(FakeBench):
    """One candidate sleeps for ever."""

    def __init__(self) -> None:
        super().__init__(cost)
        # in which the parent hears more
        tuning.STEP_SECONDS = 4.0

    def one_pass(self, prepared, sets):
        """As of any fake, but for one raster."""
        if prepared.kind.plan.raster == BAD:
            self.fail()
        return super().one_pass(prepared, sets)

    def fail(self) -> None:
        """Never come back."""
        time.sleep(1e6)


class Dying(Hanging):
    """One candidate ends the process."""

    def fail(self) -> None:
        """End it at once."""
        os._exit(17)
