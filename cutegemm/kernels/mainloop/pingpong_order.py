# SPDX-License-Identifier: Apache-2.0
"""Whose mainloop it is, where two consumer warpgroups take tiles in turn (a pingpong kernel).

A warpgroup that passes over the other's pipeline stages may wait for a stage only when the other has waited for
all of its own: an mbarrier tells the last phase from the one before it by a single bit.

Barriers: one named barrier per warpgroup, 256 threads. The warpgroup waits there before its mainloop; the
other arrives when all WGMMAs of its own mainloop are issued, if a tile follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.mainloop.shared_storage import arrive_named, wait_named


@dataclass(frozen=True)
class PingpongOrder:
    """The turns of one consumer warpgroup; nothing where consumers share tiles."""

    config: KernelConfig
    warpgroup: Any

    @cute.jit
    def start(self) -> None:
        """Once, before the first tile: the first turn is warpgroup 0's."""
        if cutlass.const_expr(self.config.pingpong):
            if self.warpgroup == 1:
                self._arrive(0)

    @cute.jit
    def take(self) -> None:
        """Before a mainloop: wait until the other warpgroup has issued its own."""
        if cutlass.const_expr(self.config.pingpong):
            wait_named(self.config, "turn", self.warpgroup)

    @cute.jit
    def hand_over(self, more: Any) -> None:
        """All WGMMAs of a mainloop are issued; `more`: another tile follows it."""
        if cutlass.const_expr(self.config.pingpong):
            if more:
                self._arrive(1 - self.warpgroup)

    def _arrive(self, warpgroup: Any) -> None:
        arrive_named(self.config, "turn", warpgroup)
