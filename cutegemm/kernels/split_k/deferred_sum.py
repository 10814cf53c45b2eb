# SPDX-License-Identifier: Apache-2.0
"""Split-K reduced by the next launch: every CTA writes its partial sum to workspace and is done with the tile.

No counters, no fences: the next launch (`add_partials`) reads after this one has ended. Partial sums of a run are
written only when the adding launch of the run before has ended. This kernel waits for that before it touches memory,
whether or not it began earlier (`dependent_launch`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.schedule.tile_scheduler import TileScheduler
from cutegemm.kernels.schedule.work import OutputTile, Work
from cutegemm.kernels.split_k.partial_sums import PartialSums


@dataclass(frozen=True)
class DeferredSum:
    """Partial sums that the next launch adds up."""

    partials: PartialSums
    share: Any  # which slice of a tile this CTA leaves

    @classmethod
    def create(
        cls, config: KernelConfig, scheduler: TileScheduler, addresses: dict[str, Any], shared: Shared
    ) -> DeferredSum:
        """Views of the workspace."""
        return cls(PartialSums(config, scheduler, addresses["split.partials"]), scheduler.place.split)

    def init(self) -> None:
        """Nothing to initialise."""

    def tile(self, work: Work) -> OutputTile:
        """What this CTA leaves of a work tile."""
        return work.slice(self.share, self.partials.config.slices)

    def send(self, acc: cute.Tensor, role: Any, work: Work, phase: Any) -> Any:
        """Write this CTA's partial sum; this CTA never runs the epilogue."""
        self.partials.put(acc, role, work, self.share)
        return cutlass.Boolean(False)

    def receive(self, total: cute.Tensor, role: Any, work: Work, phase: Any) -> None:
        """Nothing comes back."""
