# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile into a pipeline stage by TMA, for this CTA or multicast to its cluster row or column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute

from cutegemm.kernels.host.operand_layouts import batch_at, moved, partition
from cutegemm.kernels.load.cache_hints import hint
from cutegemm.kernels.mainloop.cluster import Peers
from cutegemm.kernels.mainloop.pipeline import Pipeline
from cutegemm.kernels.schedule.work import Corner


@dataclass(frozen=True)
class TmaLoad:
    """The TMA load of one operand, or of one half of a gated B: its atom, partitions and multicast mask."""

    atom: Any
    tXgX: Any  # (TMA) coordinates of the matrix's first box
    tXsX: Any  # (TMA, STAGE)
    mask: Any  # CTAs of the cluster that receive this CTA's slice, or None
    coords: Any  # (rows, k, l)
    gate: int | None  # which half of a gated B
    evict_first: bool  # whether L2 evicts it first

    @staticmethod
    def create(
        atom: Any, coords: Any, smem: Any, box: tuple[int, int], peers: Peers, gate: int | None, evict: bool
    ) -> TmaLoad:
        """Partition an operand among the CTAs that load slices of the same tile.

        Args:
            atom, coords: from `operand_layouts.load_atom`; coords (rows, k, l).
            smem: the pipeline (ROWS, BLK_K, STAGE).
            box: (ROWS, BLK_K).
            peers: the CTAs that share the tile.
            gate: the half of a gated B, 0 or 1; None for other operands.
            evict: whether L2 evicts it first.
        """
        first = (0, 0, 0 if gate is None else (0, 0))
        gX = cute.local_tile(coords, box, first)  # (ROWS, BLK_K)
        tXsX, tXgX = partition(atom, smem, gX, peers)
        return TmaLoad(atom, tXgX, tXsX, peers.mask if peers.count > 1 else None, coords, gate, evict)

    def load(self, corner: Corner, pipeline: Pipeline, stage: Any) -> None:
        """Issue the copy of the tile that begins at `corner` into `stage`; completes on its full barrier."""
        batch = batch_at(self.coords, corner.batch, self.gate)
        source = moved(self.tXgX, self.coords, (corner.row, corner.column, batch))
        options = hint(self.evict_first)
        if self.mask is not None:
            options["mcast_mask"] = self.mask
        cute.copy(self.atom, source, self.tXsX[None, stage], tma_bar_ptr=pipeline.full + stage, **options)
