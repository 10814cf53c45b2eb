# SPDX-License-Identifier: Apache-2.0
"""Turns of consumer warpgroups: with their mainloops in a pingpong kernel, or with the WGMMAs between two promotions.

Pingpong: two warpgroups have tiles of their own. One that passes over the other's pipeline stages may wait for a stage
only when the other has waited for all of its own: an mbarrier tells the last phase from the one before it by a single
bit. So a warpgroup waits before its mainloop until all WGMMAs of the other's are issued.

Issue: warpgroups that share every tile promote partial sums. The tensor cores take WGMMAs of several warpgroups in
turn, so warpgroups that issue at the same time finish and promote at the same time, and nothing multiplies meanwhile.
Here they issue one after another: each promotes while the next ones' WGMMAs run.

Barriers: one named barrier per warpgroup, 256 threads. The warpgroup waits there for its turn; the one before it
arrives when its own WGMMAs are issued.
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
class Turns:
    """The turns of one consumer warpgroup; nothing where warpgroups take none.

    Attributes:
        name: of the barriers, "turn" of a pingpong kernel or "issue".
        taken: whether the kernel's warpgroups take such turns.
    """

    config: KernelConfig
    warpgroup: Any
    name: str
    taken: bool

    @staticmethod
    def of(config: KernelConfig, warpgroup: Any) -> tuple[Turns, Turns]:
        """With mainloops, and with the WGMMAs between promotions."""
        pingpong = Turns(config, warpgroup, "turn", config.pingpong)
        return pingpong, Turns(config, warpgroup, "issue", staggers(config))

    @cute.jit
    def start(self) -> None:
        """Once, before the first tile: the first turn is warpgroup 0's."""
        if cutlass.const_expr(self.taken):
            if self.warpgroup == self.config.consumers - 1:
                arrive_named(self.config, self.name, 0)

    def take(self) -> None:
        """Wait until the warpgroup before has issued its WGMMAs."""
        if self.taken:
            wait_named(self.config, self.name, self.warpgroup)

    @cute.jit
    def hand_over(self, more: Any = True) -> None:
        """The WGMMAs are issued. In a pingpong kernel `more` says whether another tile follows."""
        if cutlass.const_expr(self.taken and self.name == "turn"):
            if more:
                arrive_named(self.config, self.name, 1 - self.warpgroup)
        elif cutlass.const_expr(self.taken):
            following = self.warpgroup + 1
            if following == self.config.consumers:
                following = cutlass.Int32(0)
            arrive_named(self.config, self.name, following)

    @cute.jit
    def end(self) -> None:
        """Once, after the last "issue": warpgroup 0 takes the last one's arrival, lest a barrier is left half full."""
        if cutlass.const_expr(self.taken):
            if self.warpgroup == 0:
                wait_named(self.config, self.name, 0)
