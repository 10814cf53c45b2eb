# SPDX-License-Identifier: Apache-2.0
"""The order in which consumer warpgroups issue WGMMAs: whole mainloops (pingpong), or those between two promotions.

Pingpong: each of two warpgroups computes every second work tile and skips the pipeline stages of the other's. It may
wait for a stage only once the other has waited for all of its own stages: the parity bit of an mbarrier cannot tell a
phase from the one two phases earlier. So a warpgroup waits before its mainloop until the other has issued its WGMMAs.

Promotion: the warpgroups share every work tile and promote partial sums. The tensor cores alternate between the WGMMAs
of several warpgroups. Warpgroups that issue at the same time therefore also finish and promote at the same time, while
the tensor cores idle. Here they issue one after another: each promotes while the WGMMAs of the next ones run.

Barriers: one named barrier per warpgroup, 256 threads. The warpgroup waits at its own barrier before it issues; the
warpgroup before it arrives there once its own WGMMAs are issued.
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
    """One consumer warpgroup's place in the order; all methods do nothing if the kernel does not need it.

    Attributes:
        name: of the barriers, "turn" for the mainloops of a pingpong kernel or "issue" between promotions.
        used: whether the kernel needs the order.
    """

    config: KernelConfig
    warpgroup: Any
    name: str
    used: bool

    @staticmethod
    def of(config: KernelConfig, warpgroup: Any) -> tuple[IssueOrder, IssueOrder]:
        """The order of mainloops, and of the WGMMAs between promotions."""
        mainloops = IssueOrder(config, warpgroup, "turn", config.pingpong)
        return mainloops, IssueOrder(config, warpgroup, "issue", staggers(config))

    @cute.jit
    def start(self) -> None:
        """Once, before the first tile: let warpgroup 0 issue first."""
        if cutlass.const_expr(self.used):
            if self.warpgroup == self.config.consumers - 1:
                arrive_named(self.config, self.name, 0)

    def wait(self) -> None:
        """Wait until the warpgroup before has issued its WGMMAs."""
        if self.used:
            wait_named(self.config, self.name, self.warpgroup)

    @cute.jit
    def arrive(self, ends: Any = True, follows: cutlass.Constexpr = None) -> None:
        """This warpgroup's WGMMAs are issued: let the next one issue.

        Args:
            ends: whether they are the last of a work tile; in a pingpong kernel only these count.
            follows: in a pingpong kernel tells whether another work tile follows.
        """
        if cutlass.const_expr(self.used and self.name == "turn"):
            if ends:
                if follows():
                    arrive_named(self.config, self.name, 1 - self.warpgroup)
        elif cutlass.const_expr(self.used):
            following = self.warpgroup + 1
            if following == self.config.consumers:
                following = cutlass.Int32(0)
            arrive_named(self.config, self.name, following)

    @cute.jit
    def end(self) -> None:
        """Once, after the last tile: warpgroup 0 waits for the last arrival, so that no barrier is left incomplete."""
        if cutlass.const_expr(self.used):
            if self.warpgroup == 0:
                wait_named(self.config, self.name, 0)
