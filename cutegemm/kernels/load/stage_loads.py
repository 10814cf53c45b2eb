# SPDX-License-Identifier: Apache-2.0
"""Loads of a stage's items into the pipeline's stages, by TMA or by the producer's threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute

from cutegemm.config import KernelConfig
from cutegemm.config.stage import StageItem
from cutegemm.kernels.host import operand_layouts as ops
from cutegemm.kernels.load.cp_async_load import AsyncLoad
from cutegemm.kernels.load.cp_async_unaligned_load import ShiftLoad
from cutegemm.kernels.load.gather_load import GatherLoad
from cutegemm.kernels.load.indexed_load import IndexedLoad
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.row_indices import RowIndices
from cutegemm.kernels.load.tma_load import TmaLoad
from cutegemm.kernels.load.tma_unaligned_load import BoxLoad
from cutegemm.kernels.mainloop.cluster import Place
from cutegemm.kernels.mainloop.shared_storage import Shared


@dataclass(frozen=True)
class ItemLoads:
    """One item of a stage: its tiles in all stages, and a loader for each half."""

    item: StageItem
    sX: Any  # (ROWS, BLK_K, STAGE)
    loaders: tuple[TmaLoad | GatherLoad | AsyncLoad | IndexedLoad | ShiftLoad | BoxLoad, ...]

    @staticmethod
    def create(
        config: KernelConfig,
        item: StageItem,
        atom: Any,
        tensor: Any,
        place: Place,
        shared: Shared,
        indices: RowIndices | None,
    ) -> ItemLoads:
        """Take the tiles and partition the matrix.

        Args:
            atom, tensor: from `launch_tensors.launch_tensors`; the atom is None without TMA, and the result of
                `tma_unaligned_load.class_maps` if TMA loads words.
            indices: of the operand whose rows they name.
        """
        operand, layout = item.operand, ops.item_layout(item, config.stages)
        sX = shared.tensor(item.role.upper(), ops.NUMERIC[operand.dtype], layout)
        rows, depth = item.part
        loaders = []
        for half in range(operand.halves):
            part = sX if operand.halves == 1 else cute.local_tile(sX, (rows, depth), (half, 0, None))
            if operand.box_rows:
                part = cute.make_tensor(sX.iterator, ops.first_rows(operand, sX.layout, depth, config.stages))
            which = None if operand.halves == 1 else half
            if operand.load == "tma":
                peers = place.sharing(item.axes[0])
                evict = item.role in config.evict_first
                how = peers, item.shares, which, evict
                loaders.append(TmaLoad.create(atom, tensor, part, (rows, depth), *how))
            elif operand.load == "gather":
                cut = config.instruction.ignored
                loaders.append(GatherLoad(tensor, part, (rows, depth), operand.k_major, which, cut))
            else:
                lines = Lines(operand, tensor, part, (rows, depth), which)
                if item.boxed:
                    loaders.append(BoxLoad.create(lines, atom, config.stages, shared))
                elif operand.load == "shift":
                    loaders.append(ShiftLoad.create(lines, config.stages, shared))
                elif operand.indexed:
                    loaders.append(IndexedLoad.create(lines, indices))
                else:
                    loaders.append(AsyncLoad(lines))
        return ItemLoads(item, sX, tuple(loaders))

    @property
    def atoms(self) -> tuple:
        """The TMA atoms."""
        first = self.loaders[0]
        if isinstance(first, BoxLoad):
            return first.atoms
        return (first.atom,) if isinstance(first, TmaLoad) else ()

    def init(self) -> None:
        """Initialise the loaders' own barriers; call from one thread."""
        for loader in self.loaders:
            if isinstance(loader, BoxLoad):
                loader.init()
