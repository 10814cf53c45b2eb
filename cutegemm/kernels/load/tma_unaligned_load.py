# SPDX-License-Identifier: Apache-2.0
"""Load one operand's tile from rows at any address: TMA loads aligned words, threads shift them into the stage.

TMA needs rows that begin at multiples of 16 bytes, a word. Rows whose index differs by a multiple of the elements of a
word share the same alignment. Each such class of rows (`config.Words`) is a matrix that begins at the word of its
first element, with a tensor map of its own. A box holds a tile's rows of one class and has one word more than a row has
chunks. It starts at a whole word, as TMA requires. Elements beyond a row's end or outside the matrix are zero. Nothing
before the matrix is read except in the word that holds its first element.

Each producer warp loads and shifts the words of its own classes (`kernels/load/unaligned_rows.py`), so no warp waits
for another. The words of a stage are replaced once the stage is empty, that is, after every thread has read them.

Barriers, per stage and warp:
    words   the warp's words have arrived. Arrival: its elected thread, with the bytes of its boxes -> the same warp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutegemm.arch import sm90 as hw
from cutegemm.config.parts import Words
from cutegemm.config.stage import StageItem
from cutegemm.kernels.host.operand_layouts import NUMERIC, batch_at
from cutegemm.kernels.load.operand_rows import Lines
from cutegemm.kernels.load.unaligned_rows import WARPS, Shifting
from cutegemm.kernels.mainloop.shared_storage import Shared
from cutegemm.kernels.memory_views import WORD


@dataclass(frozen=True)
class BoxLoad:
    """One operand shifted by the producer's threads from words that TMA loads."""

    lines: Lines
    shifting: Shifting
    atoms: tuple  # of each class
    coords: tuple  # (rows of the class, elements, l) of each class
    shared: Shared
    full: Any  # WARPS x STAGE mbarriers
    offsets: tuple  # of the warp's classes (`Shifting.offsets`)

    @staticmethod
    def create(lines: Lines, maps: Any, stages: int, shared: Shared) -> BoxLoad:
        """Take the words' shared memory and their barriers.

        Args:
            maps: from `class_maps`.
        """
        held = Words(lines.count, lines.length, lines.size)
        shifting = Shifting.create(lines, held, stages, shared)
        full = shared.barriers(f"{lines.operand.role.upper()} words")
        # tiles, K and batches begin at multiples of a word's elements
        place = cutlass.Int32(lines.mX.iterator.toint() & (WORD - 1))
        offsets = shifting.offsets(place, cutlass.Int32(lines.pitch & (WORD - 1)))
        first, (count, _) = shifting.warp * shifting.own, lines.extents()
        # a class without rows: see `class_maps`
        offsets = tuple(
            cutlass.select_(first + i < count, x, cutlass.Int32(lines.size)) for i, x in enumerate(offsets)
        )
        return BoxLoad(lines, shifting, *maps, shared, full, offsets)

    def init(self) -> None:
        """Initialise the barriers; call from one thread."""
        for i in range(WARPS * self.shifting.stages):
            self.shared.init(f"{self.lines.operand.role.upper()} words", self.full + i)

    @cute.jit
    def begin(self, corner: cutlass.Constexpr, stage: Any, thread: Any):
        """Issue the copies of the words of the tile that begins at `corner`, beside an empty `stage`.

        Its row and column are multiples of the elements of a word.
        """
        shifting, words = self.shifting, self.shifting.words
        barrier = self._barrier(stage)
        first, start = self.lines.origin(corner)
        origin = (first // words.classes, start, batch_at(self.lines.mX, corner.batch))
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, shifting.own * words.per_class * words.pitch)
        for mine in cutlass.range_constexpr(WARPS):
            if shifting.warp == mine:
                for i in cutlass.range_constexpr(shifting.own):
                    self._copy(mine * shifting.own + i, origin, barrier, stage)

    @cute.jit
    def _copy(self, kind: cutlass.Constexpr, origin: Any, barrier: Any, stage: Any) -> None:
        """Issue the copy of one class's words; `origin` in its coordinates."""
        words, atom, coords = self.shifting.words, self.atoms[kind], self.coords[kind]
        box = (words.per_class, words.pitch // words.size)
        gX = cute.local_tile(cute.domain_offset(origin, coords), (*box, 1), (0, 0, 0))
        place = self.shifting.word(kind, 0, 0, stage)
        ptr = cute.make_ptr(
            NUMERIC[self.lines.operand.dtype], place, cute.AddressSpace.smem, assumed_align=hw.WARPGROUP
        )
        sW = cute.make_tensor(ptr, cute.make_layout((*box, 1), stride=(box[1], 1, 0)))
        tXsW, tXgX = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(sW, 0, 3), cute.group_modes(gX, 0, 3)
        )
        cute.copy(atom, tXgX, tXsW, tma_bar_ptr=barrier)

    def _barrier(self, stage: Any) -> Any:
        return self.full + (self.shifting.warp * self.shifting.stages + stage)

    @cute.jit
    def end(self, corner: cutlass.Constexpr, stage: Any, phase: Any, thread: Any):
        """Shift the words of the tile that begins at `corner` into `stage` once they have arrived."""
        cute.arch.mbarrier_wait(self._barrier(stage), phase)
        self.shifting.shift(self.offsets, stage)


def class_maps(item: StageItem, tensor: cute.Tensor) -> tuple[tuple, tuple]:
    """The TMA atom and the coordinates (rows, elements, l) of each class of an operand's contiguous rows.

    Args:
        tensor: (rows, k, l) in global memory.

    A class without rows has one row of one element, the element before those that a thread shifts.
    """
    operand, words = item.operand, item.words
    numeric = NUMERIC[operand.dtype]
    along = 1 if operand.k_major else 0
    lines, length, batches = tensor.shape[1 - along], tensor.shape[along], tensor.shape[2]
    pitch = cutlass.Int64(tensor.stride[1 - along])
    apart = cute.assume(pitch * words.classes, divby=words.classes)
    # the stride of a single batch has no meaning
    batch = cutlass.select_(batches > 1, cutlass.Int64(tensor.stride[2]), pitch * words.classes)
    batch = cute.assume(batch, divby=words.classes)
    start, size = tensor.iterator.toint(), words.size
    row = words.pitch // size
    layout = cute.make_layout((words.per_class, row), stride=(row, 1))
    atoms, coords = [], []
    for kind in range(words.classes):
        place = start + cutlass.Int64(cutlass.min(cutlass.Int32(kind), lines - 1)) * pitch * size
        before = cutlass.Int32(place & (WORD - 1)) // size
        held = cutlass.max((lines + (words.classes - 1 - kind)) // words.classes, 1)
        long = cutlass.select_(cutlass.Int32(kind) < lines, length + before, cutlass.Int32(1))
        ptr = cute.make_ptr(numeric, place & -WORD, cute.AddressSpace.gmem, assumed_align=WORD)
        view = cute.make_tensor(ptr, cute.make_layout((held, long, batches), stride=(apart, 1, batch)))
        atom, place_of = cpasync.make_tiled_tma_atom(
            cpasync.CopyBulkTensorTileG2SOp(), view, layout, (words.per_class, row)
        )
        atoms.append(atom)
        coords.append(place_of)
    return tuple(atoms), tuple(coords)
