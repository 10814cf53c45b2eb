# SPDX-License-Identifier: Apache-2.0
"""Writes the Python of a block: operands, destinations, guards, and the registry of emitters.

The emitters of instructions (`emit_*.py`) register themselves here. Each one runs for the full and for the masked
version of its block.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.ptx.flow import Block, is_branch
from cutegemm.emulator.ptx.kernel import PtxInstruction, items
from cutegemm.emulator.state.geometry import SHARED_BASE, SPECIAL_REGISTERS
from cutegemm.emulator.state.memory import PARAM_WINDOW
from cutegemm.errors import EmulatorError

CARRY = "%carry"  # the condition code of extended arithmetic, PTX ISA 9.7.2, as a predicate register
_BITS = {"pred": 1, "f16x2": 32, "b128": 128}

Emit = Callable[["Emitter", PtxInstruction], None]
EMITTERS: dict[str, Emit] = {}


def emits(*heads: str) -> Callable[[Emit], Emit]:
    """Register the emitter of opcodes that begin with one of `heads`."""

    def register(f: Emit) -> Emit:
        for head in heads:
            EMITTERS[head] = f
        return f

    return register


class Unknown(Exception):
    """An emitter does not know this form of its instruction."""


def only(mods: Iterable[str], *known: str | None) -> None:
    """Refuse modifiers that are not in `known`."""
    others = set(mods) - set(known)
    if others:
        raise Unknown(f"modifiers {', '.join(sorted(others))}")


def _unknown(ins: PtxInstruction, why: object) -> EmulatorError:
    text = str(ins)[:200]
    rule = f"line {ins.line}: {text}: the emulator does not know this instruction ({why})"
    return EmulatorError(rule, field="ptx")


def check_known(block: Block) -> None:
    """Refuse a block with an instruction that has no emitter.

    Raises:
        EmulatorError: with the instruction and its PTX line.
    """
    for ins in block.code:
        if not is_branch(ins) and ins.parts[0] not in EMITTERS:
            raise _unknown(ins, ins.parts[0])


@functools.cache
def bits_of(kind: str) -> int:
    """Width in bits of a PTX type name."""
    digits = re.sub(r"\D", "", kind.removesuffix("x2"))
    return _BITS.get(kind) or int(digits) * (2 if kind.endswith("x2") else 1)


class Emitter:
    """Writes the Python of one block. Emitters call it for operands and destinations."""

    def __init__(self, program: Translation, targets: dict[str, int], number: int, masked: bool) -> None:
        self.program, self.kernel, self.targets, self.number = program, program.kernel, targets, number
        self.mask: str | None = "m" if masked else None
        self.lines: list[str] = []
        self.origin: list[PtxInstruction | None] = []
        self.params = {p.name: PARAM_WINDOW + p.offset for p in self.kernel.params}

    def block(self, block: Block) -> list[str]:
        """The lines of the block's function."""
        for ins in block.code:
            try:
                self._instruction(ins, block)
            except (Unknown, KeyError, IndexError, ValueError, TypeError, AttributeError, StopIteration) as e:
                if isinstance(e, EmulatorError):
                    raise
                raise _unknown(ins, e) from e
            self.origin += [ins] * (len(self.lines) - len(self.origin))
        if not is_branch(block.code[-1]):
            self.line(f"return {self.number + 1}")
            self.origin.append(None)
        return self.lines

    def line(self, text: str) -> None:
        self.lines.append(text)

    def _instruction(self, ins: PtxInstruction, block: Block) -> None:
        head = ins.parts[0]
        if is_branch(ins):
            self._branch(ins, block)
            return
        emit = EMITTERS[head]
        if ins.guard is None:
            emit(self, ins)
            return
        p, negate = ins.guard
        outer, before = self.mask, self.lines
        self.line(f"pm = lane_mask({self.src(p, 1)}, {negate}, {outer})")
        for mask, condition in ((None, "if pm is None:"), ("pm", "elif pm is not False:")):
            self.lines, self.mask = [], mask
            emit(self, ins)
            body = [" " + line for line in self.lines] or [" pass"]
            before += [condition, *body]
        self.lines, self.mask = before, outer

    def _branch(self, ins: PtxInstruction, block: Block) -> None:
        head = ins.parts[0]
        if head == "brx":
            raise Unknown("indirect branch")
        if head == "trap":
            self.line(f"trap({ins.line})")
            self.line(f"return {self.program.exit}")
            return
        target = self.program.exit if head in ("ret", "exit") else self.targets[ins.operands[0]]
        if ins.guard is None:
            self.line(f"return {target}")
            return
        p, negate = ins.guard
        where = f"{target}, {self.number + 1}, {block.reconverge}, {block.splits}"
        self.line(f"return G.branch({self.src(p, 1)}, {negate}, {where})")

    # ---- operands

    def width(self, operand: str) -> int | None:
        """Bits of a register; None if the operand is not a register."""
        kind = self.kernel.register_type(operand.strip())
        return None if kind is None else bits_of(kind)

    def src(self, operand: str, bits: int) -> str:
        """Expression of an operand as an unsigned pattern of `bits` (1 for predicates)."""
        x = operand.strip()
        width = self.width(x)
        if width is not None:
            text = self._register(x)
            return text if width <= bits or bits == 1 else f"wrap({text}, {bits})"
        if x.startswith("!"):
            return f"pnot({self.src(x[1:], 1)})"
        if x[:2] in ("0f", "0F", "0d", "0D"):
            return str(int(x[2:], 16))
        if re.fullmatch(r"-?(0[xX][\da-fA-F]+|0[bB][01]+|\d+)U?", x):
            text = x.rstrip("U")
            value = int(text, 8) if re.fullmatch(r"-?0\d+", text) else int(text, 0)
            return str(value & ((1 << bits) - 1)) if bits > 1 else str(bool(value))
        return self._symbol(x)

    def _register(self, name: str) -> str:
        if name in self.program.views:
            return "accumulator_get(G, {}, {})".format(*self.program.views[name])
        if name in self.program.locals:
            return re.sub(r"\W", "_", name)
        if name in self.program.slots:
            return f"R[{self.program.slots[name]}]"
        return "uninitialised()"

    def _symbol(self, x: str) -> str:
        program = self.program
        if x.startswith("%"):
            name = x[1:]
            if name.startswith(("clock", "globaltimer")):
                return f"special(G, '{name}')"
            if name not in SPECIAL_REGISTERS:
                raise Unknown(f"special register {x}")
            return f"G.special['{name}']"
        if x in self.params:
            return str(self.params[x])
        if x in program.shared_offset:
            return f"(G.cta.window | {SHARED_BASE + program.shared_offset[x]})"
        if x in program.local_offset:
            return str(program.local_offset[x])
        if x in self.kernel.variables:
            return f"G.device.symbols['{x}']"
        if x == "WARP_SZ":
            return "32"
        raise Unknown(f"operand {x}")

    def sources(self, operand: str, bits: int) -> str:
        """Expression of the elements of a vector operand as a tuple."""
        return "(" + "".join(f"{self.src(x, bits)}, " for x in items(operand)) + ")"

    def results(self, operand: str, call: str) -> None:
        """Write the elements of a call's result to the elements of a vector operand."""
        self.line(f"v = {call}")
        for i, name in enumerate(items(operand)):
            self.dst(name, f"v[{i}]")

    def pair(self, operand: str, call: str) -> None:
        """Write the two results of a call to a destination `d|p`; p may be absent."""
        self.line(f"t, q = {call}")
        d, _, p = operand.partition("|")
        self.dst(d, "t")
        if p:
            self.dst(p, "q")

    def address(self, operand: str) -> str:
        """Expression of the address `[base+offset]`."""
        m = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+)\s*)?\]", operand.strip())
        if m is None:
            raise Unknown(f"address {operand}")
        text, offset = self.src(m[1], 64), int(m[2] or "0", 0)
        if offset == 0:
            return text
        width = self.width(m[1]) or 64
        return f"({text}+{offset})" if text.isdigit() else f"shift_address({text}, {offset}, {width})"

    # ---- results

    def dst(self, operand: str, expression: str) -> None:
        """Write an expression to a destination register (`_` drops it), merged under a mask."""
        name = operand.strip()
        if name == "_":
            self.line(expression)
            return
        width = self.width(name)
        if width is None:
            raise Unknown(f"destination {name}")
        if name in self.program.views:
            i, j = self.program.views[name]
            self.line(f"accumulator_set(G, {i}, {j}, {expression}, {self.mask})")
            return
        place = self._register(name)
        if name in self.program.fragments:
            self.line(f"G.tracker.fragment_written({self.program.slots[name]})")
        if self.mask is not None and not (name in self.program.locals and self.mask == "m"):
            kind = "BOOL" if width == 1 else f"U{width}"
            expression = f"mrg({self.mask}, {expression}, {place}, {kind})"
        self.line(f"{place} = {expression}")
