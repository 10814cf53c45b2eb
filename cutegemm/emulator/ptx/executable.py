# SPDX-License-Identifier: Apache-2.0
"""A translated kernel: its blocks, its registers and static memory, and a function for each block (`translate/`)."""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeAlias

from cutegemm.emulator.ptx.flow import Block
from cutegemm.emulator.ptx.kernel import Kernel, PtxInstruction

BLOCKED = -2  # a block returns this if its group has to wait, and runs again later
# Instructions that all lanes of a warp (or those of a mask) execute together.
WHOLE_WARP = ("bar.", "barrier.", "wgmma.", "mma.", "wmma.", "ldmatrix.", "stmatrix.", "movmatrix.", "shfl.", "vote.",
              "match.", "redux.", "elect.", "setmaxnreg.")  # fmt: skip
WORD = re.compile(r"[%$A-Za-z_][\w$.]*")
# Runs a block for a group, its registers and its active lanes; returns the next block.
BlockFunction: TypeAlias = Callable[[Any, list[Any], Any], int]


def _blocked(group: Any, registers: list[Any], mask: Any) -> int:
    group.wait_for("other lanes of its warp".__str__)
    return BLOCKED


@dataclass
class Translation:
    """A translated kernel, ready to launch."""

    kernel: Kernel
    blocks: list[Block]
    functions: list[list[BlockFunction]] = field(default_factory=list)  # per block: full, masked
    # A register is a variable of its block's function, a slot of the group's register list, or a view of an accumulator
    # matrix (number of the matrix, number of the register in it).
    locals: set[str] = field(default_factory=set)
    slots: dict[str, int] = field(default_factory=dict)
    views: dict[str, tuple[int, int]] = field(default_factory=dict)
    accumulators: list[tuple[str, ...]] = field(default_factory=list)  # register lists of wgmma
    half_lists: list[bool] = field(default_factory=list)  # whether a list holds packed fp16
    fragments: set[str] = field(default_factory=set)  # registers that hold operand A of a wgmma
    shared_size: int = 0  # static shared memory, bytes
    shared_offset: dict[str, int] = field(default_factory=dict)
    local_size: int = 0
    local_offset: dict[str, int] = field(default_factory=dict)
    # file name of a compiled function -> the instruction of each of its lines
    origins: dict[str, list[PtxInstruction | None]] = field(default_factory=dict)

    def shared_parts(
        self, dynamic_bytes: int, parts: tuple[tuple[str, int, int], ...]
    ) -> tuple[tuple[str, int, int], ...]:
        """(name, first byte, bytes) of what lies in shared memory: static variables and `parts` of the dynamic bytes.

        Without `parts` the dynamic bytes have the name of the array that the kernel declares.
        """
        found = [(self.kernel.variables[x], at) for x, at in self.shared_offset.items()]
        static = [(x.plain, at, x.size) for x, at in found if x.size is not None]
        whole = tuple((x.plain, 0, dynamic_bytes) for x, _ in found if x.size is None)
        return (*static, *((name, self.shared_size + at, n) for name, at, n in parts or whole[:1]))

    @property
    def exit(self) -> int:
        """The block number for the kernel's end."""
        return len(self.blocks)

    @functools.cached_property
    def alone(self) -> list[list[BlockFunction]]:
        """The functions for lanes without the rest of their warp: they block where all of it is needed."""
        whole = [any(ins.op.startswith(WHOLE_WARP) for ins in block.code) for block in self.blocks]
        return [[_blocked] * 2 if stops else own for stops, own in zip(whole, self.functions, strict=True)]

    @functools.cached_property
    def _mentions(self) -> Counter[str]:
        return Counter(
            word
            for block in self.blocks
            for ins in block.code
            for word in {*WORD.findall(" ".join(ins.operands)), *(ins.guard or ())[:1]}
        )

    def mentions(self, register: str) -> int:
        """How many instructions use a register; if there are two, one reads it."""
        return self._mentions[register]

    def instruction_at(self, file: str, line: int) -> PtxInstruction | None:
        """The PTX instruction of a line of a translated function; None for any other file."""
        origin = self.origins.get(file, ())
        return origin[line - 1] if 0 < line <= len(origin) else None

    def current_instruction(self) -> PtxInstruction | None:
        """The PTX instruction that executes, from the Python stack."""
        origins = self.origins
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename not in origins:
            frame = frame.f_back
        return None if frame is None else self.instruction_at(frame.f_code.co_filename, frame.f_lineno)
