# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile into a pipeline stage by TMA, for this CTA or multicast to its cluster row or column.

CTAs that need the same tile each load a share of it. If its rows do not divide into whole groups of the swizzle, they
load whole tiles in turn instead: with four CTAs each loads every fourth k tile for all. Both ways a stage is full when
its bytes have arrived, whoever sent them, and is filled again when all receivers have released it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
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
    mask: Any  # CTAs of the cluster that receive what this CTA loads, or None
    turns: Peers | None  # the CTAs that load whole tiles in turn, or None
    coords: Any  # (rows, k, l)
    gate: int | None  # which half of a gated B
    evict_first: bool  # whether L2 evicts it first

    @staticmethod
    def create(
        atom: Any,
        coords: Any,
        smem: Any,
        box: tuple[int, int],
        peers: Peers,
        shares: int,
        gate: int | None,
        evict: bool,
    ) -> TmaLoad:
        """Partition an operand among the CTAs that need the same tile.

        Args:
            atom, coords: from `operand_layouts.load_atom`; coords (rows, k, l).
            smem: the pipeline (ROWS, BLK_K, STAGE).
            box: (ROWS, BLK_K).
            peers: the CTAs that need the tile.
            shares: into how many shares they divide it, or 1 if they load whole tiles in turn.
            gate: the half of a gated B, 0 or 1; None for other operands.
            evict: whether L2 evicts it first.
        """
        first = (0, 0, 0 if gate is None else (0, 0))
        gX = cute.local_tile(coords, box, first)  # (ROWS, BLK_K)
        tXsX, tXgX = partition(atom, smem, gX, (peers.place, peers.count) if shares > 1 else (0, 1))
        mask = peers.mask if peers.count > 1 else None
        return TmaLoad(atom, tXgX, tXsX, mask, peers if shares < peers.count else None, coords, gate, evict)

    @cute.jit
    def load(
        self, corner: cutlass.Constexpr[Corner], pipeline: cutlass.Constexpr[Pipeline], stage: Any, k: Any
    ):
        """Issue the copy of the k-th tile, which begins at `corner`, into `stage`; completes on its full barrier."""
        if cutlass.const_expr(self.turns is None):
            self._issue(corner, pipeline, stage)
        else:
            if k % self.turns.count == self.turns.place:
                self._issue(corner, pipeline, stage)

    def _issue(self, corner: Corner, pipeline: Pipeline, stage: Any) -> None:
        batch = batch_at(self.coords, corner.batch, self.gate)
        source = moved(self.tXgX, self.coords, (corner.row, corner.column, batch))
        options = hint(self.evict_first)
        if self.mask is not None:
            options["mcast_mask"] = self.mask
        cute.copy(self.atom, source, self.tXsX[None, stage], tma_bar_ptr=pipeline.full + stage, **options)
