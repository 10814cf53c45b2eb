# SPDX-License-Identifier: Apache-2.0
"""A tile's sum in two levels: clusters add up a few parts of K each, and their sums meet elsewhere.

After the first level a CTA holds a slice of the tile's columns, so that the second moves as many bytes as if the
cluster's parts had been one, from all its CTAs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.cluster_sum import ClusterSum
from cutegemm.kernels.left_sum import LeftSum
from cutegemm.kernels.operands import NUMERIC
from cutegemm.kernels.work import OutputTile, Work
from cutegemm.kernels.workspace_sum import WorkspaceSum


@dataclass(frozen=True)
class NestedSum:
    """A cluster's sum, and where those of several clusters meet."""

    config: KernelConfig
    inner: ClusterSum
    outer: WorkspaceSum | LeftSum

    def init(self) -> None:
        """Initialise the barriers of both; from one thread."""
        self.inner.init()
        self.outer.init()

    def tile(self, work: Work) -> OutputTile:
        """What this CTA stores of a work, if it does."""
        return self.outer.tile(work)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Add up the cluster's parts and hand them on; whether this CTA stores its slice of the tile."""
        stores = cutlass.Boolean(False)
        if self.inner.send(acc, role, work, phase):
            stores = self._hand_on(role, work, phase)
        return stores

    @cute.jit
    def _hand_on(self, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        share = cute.make_rmem_tensor(self.config.slice_values, NUMERIC[self.config.sums])
        self.inner.receive(share, role, work, phase)
        return self.outer.send(share, role, work, phase)

    def receive(self, total: cute.Tensor, role: Any, work: Work, phase: Any) -> None:
        """The sum of all clusters' sums of this CTA's slice, in their order."""
        self.outer.receive(total, role, work, phase)
