# SPDX-License-Identifier: Apache-2.0
"""The contents of PTX text: instructions, variables, parameters, kernels.

Source: PTX ISA 9.0, chapters 4 (syntax) and 5 (state spaces, types, variables).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

TYPE_BYTES = {
    **{f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64)},
    "b128": 16,
    "f16x2": 4,
    "bf16": 2,
    "bf16x2": 4,
    "tf32": 4,
    "pred": 1,
}


@dataclass(frozen=True)
class PtxInstruction:
    """An instruction: opcode with modifiers, operands as text, guard predicate, PTX line and source line."""

    op: str
    operands: tuple[str, ...]
    guard: tuple[str, bool] | None  # (register, True if negated)
    line: int  # 1-based line of the PTX text
    source: tuple[str, int] | None  # (file, line) of the last .loc, if any
    callers: tuple[
        tuple[str, int], ...
    ] = ()  # (file, line) of the calls that the compiler inlined, innermost first

    @functools.cached_property
    def parts(self) -> list[str]:
        """The opcode split at its dots: `add.s32` gives ["add", "s32"]."""
        return self.op.split(".")

    @property
    def place(self) -> str:
        """Text with its PTX line, its source line if known, and the lines that the function there was inlined at."""
        known = () if self.source is None else (self.source, *self.callers)
        lines = ", inlined at ".join(f"{file.rsplit('/', 1)[-1]}:{line}" for file, line in known)
        return f"PTX line {self.line}{lines and f' ({lines})'}"

    def __str__(self) -> str:
        guard = "" if self.guard is None else f"@{'!' if self.guard[1] else ''}{self.guard[0]} "
        return f"{guard}{self.op} {', '.join(self.operands)}".rstrip()


def items(operand: str) -> list[str]:
    """Elements of a list operand `{a, b}` or `(a, b)`, or the operand alone."""
    return [x.strip() for x in operand.strip().strip("{}()").split(",") if x.strip()]


@dataclass(frozen=True)
class Variable:
    """A .shared, .local, .const or .global variable; `size` in bytes, None for an extern array.

    addresses: (first byte, name, addend) of the pointers to other variables in its initial value.
    """

    name: str
    space: str
    size: int | None
    align: int
    data: bytes = b""
    addresses: tuple[tuple[int, str, int], ...] = ()

    @property
    def plain(self) -> str:
        """The name as the source has it: `tile` of `_ZZ6kernelE4tile`, a variable in a function (Itanium C++ ABI)."""
        for length in re.finditer(r"\d+", self.name) if self.name.startswith("_Z") else ():
            start, end = length.end(), length.end() + int(length[0])
            if re.fullmatch(r"E?(_\d+)?", self.name[end:]) and self.name[start:end]:
                return self.name[start:end]
        return self.name


@dataclass(frozen=True)
class Param:
    """A kernel parameter: offset and size in bytes in the parameter space."""

    name: str
    offset: int
    size: int
    kind: str = "b8"  # PTX type of the parameter or of its elements


@dataclass
class Kernel:
    """An .entry before translation."""

    name: str
    params: list[Param] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)  # reqntid, maxntid, ...
    registers: dict[str, str] = field(default_factory=dict)  # name or prefix< -> type
    variables: dict[str, Variable] = field(default_factory=dict)  # its own and the module's
    code: list[PtxInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)  # label -> index into code
    # its translation, set by its first launch (`launching/launch.py`)
    program: object | None = field(default=None, init=False, repr=False, compare=False)

    def register_type(self, name: str) -> str | None:
        """PTX type of a register; None if `name` is not a register."""
        kind = self.registers.get(name)
        if kind is None:
            kind = self.registers.get(name.rstrip("0123456789") + "<")
        return kind
