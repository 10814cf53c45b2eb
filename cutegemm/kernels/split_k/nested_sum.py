# SPDX-License-Identifier: Apache-2.0
"""Split-K in two levels: a cluster reduces its own splits, and the clusters' sums are reduced in workspace.

After the first level a CTA holds a slice of the tile's columns, so that the second level moves one partial sum a
cluster, from all its CTAs at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.host.operand_layouts import NUMERIC
from cutegemm.kernels.schedule.work import OutputTile, Work
from cutegemm.kernels.split_k.cluster_sum import ClusterSum
from cutegemm.kernels.split_k.deferred_sum import DeferredSum
from cutegemm.kernels.split_k.workspace_sum import WorkspaceSum


@dataclass(frozen=True)
class NestedSum:
    """A cluster's sum, and how those of several clusters are added."""

    config: KernelConfig
    inner: ClusterSum
    outer: WorkspaceSum | DeferredSum

    def init(self) -> None:
        """Initialise the barriers of both; from one thread."""
        self.inner.init()
        self.outer.init()

    def tile(self, work: Work) -> OutputTile:
        """What this CTA stores of a work tile, if it does."""
        return self.outer.tile(work)

    @cute.jit
    def send(self, acc: cute.Tensor, role: cutlass.Constexpr, work: cutlass.Constexpr, phase: Any) -> Any:
        """Reduce the cluster's splits and send the sum on; whether this CTA stores its slice of the tile."""
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
