# SPDX-License-Identifier: Apache-2.0
"""A tile's sum left to the next launch: every CTA writes its part to workspace and is done with the tile.

No counters, no fences: the next launch (`add_parts`) reads after this one has ended. The other way round a run's parts
may be written only when the adding launch of the run before has ended, which this kernel waits for before it touches
memory, whether or not it began earlier (`dependence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.scheduler import Walk
from cutegemm.kernels.shared import Shared
from cutegemm.kernels.sum_parts import SumParts
from cutegemm.kernels.work import OutputTile, Work


@dataclass(frozen=True)
class LeftSum:
    """Parts in workspace that somebody else adds up."""

    parts: SumParts
    share: Any  # which slice of a tile this CTA leaves

    @staticmethod
    def create(config: KernelConfig, walk: Walk, addresses: dict[str, Any], shared: Shared) -> LeftSum:
        """Views of the workspace."""
        return LeftSum(SumParts(config, walk, addresses["split.parts"]), walk.place.part)

    def init(self) -> None:
        """Nothing to initialise."""

    def tile(self, work: Work) -> OutputTile:
        """What this CTA leaves of a work."""
        return work.slice(self.share, self.parts.config.slices)

    def send(self, acc: cute.Tensor, role: Any, work: Work, phase: Any) -> Any:
        """Leave this CTA's part of the sum; it never goes on with it."""
        self.parts.put(acc, role, work, self.share)
        return cutlass.Boolean(False)

    def receive(self, total: cute.Tensor, role: Any, work: Work, phase: Any) -> None:
        """Nothing comes back."""
