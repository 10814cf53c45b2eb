# SPDX-License-Identifier: Apache-2.0
"""`StageItem`: what one stage of the mainloop's pipeline holds of one matrix.

Budget, loads, tensor maps, byte counts and launch arguments iterate over a config's items (`KernelDraft.stage`) and do
not know which roles exist. A new kind of matrix, such as scales of A per block, is a role in
`config.parts.AXES` and a loader.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.config.numbers import Number, where
from cutegemm.config.parts import BOX_ALIGN, OperandConfig, Words
from cutegemm.layouts.hardware import CORE_ROWS

WARPS = 4  # of the producer warpgroup; each shifts its own words
WORD_BARRIER = 8  # bytes of the mbarrier of a warp's words, PTX ISA


@dataclass(frozen=True)
class StageItem:
    """One matrix's tile in a stage.

    Attributes:
        operand: the matrix: element type, layout in shared memory, and how it is loaded.
        box: extents of the tile along the matrix's axes, elements.
        peers: CTAs of a cluster that need the same tile; each loads a share, or every `peers`-th tile whole, and
            multicasts it to all.
    """

    operand: OperandConfig
    box: tuple[Number, Number]
    peers: Number

    @property
    def role(self) -> str:
        """What the matrix is for, such as "a"."""
        return self.operand.role

    @property
    def axes(self) -> str:
        """The matrix's axes, of "m", "n" and "k"."""
        return self.operand.axes

    @property
    def load(self) -> str:
        """How it is loaded."""
        return self.operand.load

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return self.operand.dtype.bits

    @property
    def layout(self) -> tuple[str, str]:
        """The axis along which its tiles are contiguous in shared memory, "k" or "mn", and their swizzle."""
        return ("k" if self.operand.k_major else "mn"), self.operand.swizzle

    @property
    def bytes(self) -> Number:
        """Bytes of the tile in shared memory."""
        return self.size(self.box)

    @property
    def contiguous(self) -> Number:
        """Bytes over which one half of the tile is contiguous in shared memory."""
        rows, depth = self.half
        return (depth if self.operand.k_major else rows) * self.bits // 8

    @property
    def half(self) -> tuple[Number, Number]:
        """Extents of one half of a gated pair; else of the whole tile."""
        return self.box[0] // self.operand.halves, self.box[1]

    @property
    def part(self) -> tuple[Number, Number]:
        """Extents of what one loader loads: a half, or no more rows than the matrix has."""
        few = self.operand.box_rows
        return where(few != 0, few, self.half[0]), self.box[1]

    @property
    def shares(self) -> Number:
        """Into how many shares the CTAs that need a tile divide it: 1 if they load whole tiles in turn.

        A tile is divided along its strided axis. Each share is whole groups of the swizzle's rows, which not all
        numbers of rows have.
        """
        return where(self.lines % (CORE_ROWS * self.peers) == 0, self.peers, 1)

    @property
    def lines(self) -> Number:
        """Rows of the swizzle in one half of the tile: its extent along the strided axis."""
        return self.box[0] // self.operand.halves if self.operand.k_major else self.box[1]

    @property
    def in_turn(self) -> Number:
        """Whether CTAs of a cluster load whole tiles in turn."""
        return self.shares != self.peers

    @property
    def delivered(self) -> Number:
        """Bytes that TMA delivers to a stage."""
        return self.operand.halves * self.size(self.part) if self.load == "tma" else 0

    @property
    def boxed(self) -> bool:
        """Whether TMA loads the aligned words of the tile."""
        return self.operand.boxed(*self.box)

    @property
    def words(self) -> Words:
        """The layout of one half's words, which "shift" keeps."""
        return self.operand.words(*self.half)

    @property
    def beside(self) -> tuple[tuple[str, Number, int], ...]:
        """(name, bytes, alignment) of what the loader keeps beside a stage's tile."""
        if self.load != "shift":
            return ()
        barriers = WARPS * WORD_BARRIER * self.boxed
        return (
            ("words", self.operand.halves * self.words.bytes, BOX_ALIGN),
            ("word barriers", barriers, WORD_BARRIER),
        )

    def size(self, extents: tuple[Number, Number]) -> Number:
        """Bytes of a box of elements."""
        return extents[0] * extents[1] * self.bits // 8
