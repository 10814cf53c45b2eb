# SPDX-License-Identifier: Apache-2.0
"""Which warpgroup may issue the WGMMAs of its next stage, where those that share every tile promote partial sums.

The tensor cores take WGMMAs of several warpgroups in turn, so warpgroups that issue at the same time finish at the same
time, promote at the same time, and nothing multiplies meanwhile. Here they issue one after another: each promotes
while the next ones' WGMMAs run.

Barriers: one named barrier per warpgroup, 256 threads. The warpgroup waits there before it issues; the one before it
arrives once its own WGMMAs are issued.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from cutegemm.config import KernelConfig
from cutegemm.config.shared import staggers
from cutegemm.kernels.mainloop.shared_storage import arrive_named, wait_named


@dataclass(frozen=True)
class IssueOrder:
    """The place of one consumer warpgroup in it; nothing where warpgroups issue when they can."""

    config: KernelConfig
    warpgroup: Any

    @cute.jit
    def start(self) -> None:
        """Once, before the first tile: warpgroup 0 is first."""
        if cutlass.const_expr(staggers(self.config)):
            if self.warpgroup == self.config.consumers - 1:
                arrive_named(self.config, "issue", 0)

    @cute.jit
    def take(self) -> None:
        """Before the WGMMAs between two promotions: wait until the warpgroup before has issued its own."""
        if cutlass.const_expr(staggers(self.config)):
            wait_named(self.config, "issue", self.warpgroup)

    @cute.jit
    def hand_over(self) -> None:
        """They are issued."""
        if cutlass.const_expr(staggers(self.config)):
            following = self.warpgroup + 1
            if following == self.config.consumers:
                following = cutlass.Int32(0)
            arrive_named(self.config, "issue", following)

    @cute.jit
    def end(self) -> None:
        """Once, after the last tile: warpgroup 0 takes the last one's arrival, so that no barrier is left half full."""
        if cutlass.const_expr(staggers(self.config)):
            if self.warpgroup == 0:
                wait_named(self.config, "issue", 0)
