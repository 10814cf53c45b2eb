# SPDX-License-Identifier: Apache-2.0
"""A kernel translated to Python: one function per basic block, in a full and a masked version.

A register that lives within one block becomes a local variable, any other a slot of the group's register list.
The accumulators of `wgmma` live in fp32 matrices (`wgmma.py`); their registers are views of these. The masked
version runs while some lanes are inactive and merges what it writes.

The emitters (`emit_*.py`) hold the instructions; here is what they share: operands, destinations, guards.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from cutegemm.emulator.flow import Block, blocks_of, is_branch
from cutegemm.emulator.kernel import Instruction, Kernel
from cutegemm.errors import EmulatorError

PARAM_WINDOW = 1 << 60  # generic addresses of the parameter space; real pointers use fewer than 57 bits
SHARED_WINDOW = 1 << 59
LOCAL_WINDOW = 1 << 58
SHARED_BASE = 0x400  # sm_90 reserves 1 KiB of shared memory for the system (CUDA programming guide, 16.8)
RANK_SHIFT = 24  # a shared address holds its CTA's rank in the cluster above the offset
CARRY = "%carry"  # the condition code of extended arithmetic, PTX ISA 9.7.2, kept as a predicate register
_BITS = {"pred": 1, "f16x2": 32, "b128": 128}

Emit = Callable[["Emitter", Instruction], None]
EMITTERS: dict[str, Emit] = {}


def emits(*heads: str) -> Callable[[Emit], Emit]:
    """Register the emitter of the instructions whose opcode starts with one of `heads`."""

    def register(f: Emit) -> Emit:
        for head in heads:
            EMITTERS[head] = f
        return f

    return register


class Unknown(Exception):
    """An emitter does not know this form of its instruction."""


@dataclass
class Program:
    """A translated kernel, ready to launch."""

    kernel: Kernel
    blocks: list[Block]
    slots: dict[str, int]
    accumulators: list[tuple[str, ...]]  # register lists of wgmma, each a matrix
    half_lists: list[bool]  # whether a list holds packed fp16
    fragments: frozenset[str]  # registers that hold operand A of a wgmma
    functions: list[tuple[Callable, Callable]] = field(default_factory=list)  # per block: full, masked
    shared_size: int = 0  # static shared memory, bytes
    shared_offset: dict[str, int] = field(default_factory=dict)
    local_size: int = 0
    local_offset: dict[str, int] = field(default_factory=dict)
    text: str = ""
    origin: list[Instruction | None] = field(default_factory=list)  # per line of `text`
    file: str = ""

    @property
    def exit(self) -> int:
        """The block number that stands for the kernel's end."""
        return len(self.blocks)


def bits_of(kind: str) -> int:
    """Width in bits of a PTX type name."""
    return _BITS.get(kind) or int(re.sub(r"\D", "", kind.removesuffix("x2"))) * (
        2 if kind.endswith("x2") else 1
    )


def translate(kernel: Kernel) -> Program:
    """Translate a kernel.

    Raises:
        EmulatorError: an instruction the emulator does not know, with its text and PTX line.
    """
    from cutegemm.emulator.runtime import NAMES

    for emitters in ("convert", "float", "integer", "memory", "select", "units"):  # they fill EMITTERS
        importlib.import_module(f"cutegemm.emulator.emit_{emitters}")

    kernel.registers.setdefault(CARRY, "pred")
    blocks, targets = blocks_of(kernel)
    slots, locals_, lists, views = _allocate(kernel, blocks)
    half = {
        _list_of(i)
        for b in blocks
        for i in b.code
        if i.op.startswith("wgmma.mma_async") and i.parts[5] == "f16"
    }
    fragments = frozenset(r for b in blocks for i in b.code for r in _fragments_of(i))
    program = Program(kernel, blocks, slots, lists, [regs in half for regs in lists], fragments)
    _layout(program)
    text = []
    for n, block in enumerate(blocks):
        for masked in (False, True):
            emitter = Emitter(program, targets, locals_, views, n, masked)
            text.append(f"def block_{n}_{int(masked)}(G, R, m):")
            program.origin.append(None)
            text += [" " + line for line in emitter.block(block)]
            program.origin += emitter.origin
    program.text = "\n".join(text)
    program.file = f"<ptx of {kernel.name}>"
    names = dict(NAMES)
    exec(compile(program.text, program.file, "exec"), names)
    program.functions = [(names[f"block_{n}_0"], names[f"block_{n}_1"]) for n in range(len(blocks))]
    return program


def _list_of(ins: Instruction) -> tuple[str, ...]:
    """The accumulator registers of a wgmma.mma_async."""
    return tuple(x.strip() for x in ins.operands[0].strip("{}").split(","))


def _fragments_of(ins: Instruction) -> tuple[str, ...]:
    """The registers a wgmma.mma_async reads A from."""
    if not ins.op.startswith("wgmma.mma_async") or not ins.operands[1].startswith("{"):
        return ()
    return tuple(x.strip() for x in ins.operands[1].strip("{}").split(","))


def _layout(program: Program) -> None:
    """Offsets of static shared and local variables; an extern array starts after the static ones."""
    sizes = {"shared": 0, "local": 0}
    offsets = {"shared": program.shared_offset, "local": program.local_offset}
    used = {
        word for b in program.blocks for i in b.code for o in i.operands for word in re.findall(r"[\w$]+", o)
    }
    externs = []
    for var in program.kernel.variables.values():
        if var.space not in sizes or var.name not in used:
            continue
        if var.size is None:
            externs.append(var)
            continue
        start = -(-sizes[var.space] // var.align) * var.align
        offsets[var.space][var.name] = start
        sizes[var.space] = start + var.size
    align = max((v.align for v in externs), default=1)
    program.shared_size = (
        -(-sizes["shared"] // min(align, 16)) * min(align, 16) if externs else sizes["shared"]
    )
    for var in externs:
        program.shared_offset[var.name] = program.shared_size
    program.local_size = sizes["local"]


_WORD = re.compile(r"[%$A-Za-z_][\w$.]*")


def _registers(kernel: Kernel, text: str) -> list[str]:
    return [w for w in _WORD.findall(text) if kernel.register_type(w) is not None]


def _allocate(kernel: Kernel, blocks: list[Block]):
    """Decide for each register: local variable, slot, or view of a wgmma accumulator matrix."""
    seen_in: dict[str, set[int]] = {}
    defined_first: dict[str, bool] = {}
    lists: dict[tuple[str, ...], int] = {}
    kept: set[str] = set()
    for n, block in enumerate(blocks):
        for ins in block.code:
            reads = [r for o in ins.operands[1:] for r in _registers(kernel, o)]
            first = ins.operands[0] if ins.operands else ""
            writes = _registers(kernel, first) if not first.startswith("[") else []
            if first.startswith("["):
                reads += _registers(kernel, first)
            guard = [ins.guard[0]] if ins.guard else []
            if "cc" in ins.parts or ins.parts[0] in ("addc", "subc", "madc"):
                kept.add(CARRY)
                reads = [*reads, CARRY]
            for r in [*reads, *guard, *writes]:
                seen_in.setdefault(r, set()).add(n)
                defined_first.setdefault(r, r in writes and r not in reads and not guard)
            if ins.op.startswith("wgmma.mma_async"):
                lists.setdefault(_list_of(ins), len(lists))
                kept |= set(reads) | set(writes)
            elif ins.op.startswith(("cp.async", "st.async")):
                kept |= set(reads)
    owners: dict[str, set[tuple[str, ...]]] = {}
    for regs in lists:
        for r in regs:
            owners.setdefault(r, set()).add(regs)
    alone = [regs for regs in lists if all(len(owners[r]) == 1 for r in regs) and len(set(regs)) == len(regs)]
    views = {r: (i, j) for i, regs in enumerate(alone) for j, r in enumerate(regs)}
    slots: dict[str, int] = {}
    locals_: set[str] = set()
    for r, where in seen_in.items():
        if r in views:
            continue
        if len(where) == 1 and defined_first[r] and r not in kept:
            locals_.add(r)
        else:
            slots[r] = len(slots)
    return slots, locals_, alone, views


class Emitter:
    """Writes the Python of one block. Emitters ask it for operands and hand it results."""

    def __init__(
        self,
        program: Program,
        targets: dict[str, int],
        locals_: set[str],
        views: dict,
        number: int,
        masked: bool,
    ):
        self.program, self.kernel, self.targets = program, program.kernel, targets
        self.locals, self.views, self.number = locals_, views, number
        self.mask: str | None = "m" if masked else None
        self.lines: list[str] = []
        self.origin: list[Instruction | None] = []
        self.params = {p.name: PARAM_WINDOW + p.offset for p in self.kernel.params}
        self.fragments = program.fragments

    def block(self, block: Block) -> list[str]:
        """Lines of the block's function."""
        for ins in block.code:
            try:
                self._instruction(ins, block)
            except (Unknown, KeyError, IndexError, ValueError, AttributeError) as e:
                if isinstance(e, EmulatorError):
                    raise
                raise EmulatorError(
                    f"ptx line {ins.line}: {str(ins)[:200]}: the emulator does not know this instruction ({e})"
                ) from e
            self.origin += [ins] * (len(self.lines) - len(self.origin))
        if not block.code or not (is_branch(block.code[-1])):
            self.line(f"return {self.number + 1}")
            self.origin.append(None)
        return self.lines

    def line(self, text: str) -> None:
        self.lines.append(text)

    def _instruction(self, ins: Instruction, block: Block) -> None:
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

    def _branch(self, ins: Instruction, block: Block) -> None:
        head = ins.parts[0]
        if head == "brx":
            raise Unknown("indirect branch")
        if head == "trap":
            self.line(f"trap(G, m, {ins.line})")
            self.line(f"return {self.program.exit}")
            return
        target = self.program.exit if head in ("ret", "exit") else self.targets[ins.operands[0]]
        if ins.guard is None:
            self.line(f"return {target}")
            return
        p, negate = ins.guard
        self.line(
            f"return G.branch({self.src(p, 1)}, {negate}, {target}, {self.number + 1}, {block.meet}, {block.splits}, m)"
        )

    # ---- operands

    def width(self, operand: str) -> int | None:
        """Bits of a register operand, None for anything else."""
        kind = self.kernel.register_type(operand.strip())
        return None if kind is None else bits_of(kind)

    def src(self, operand: str, bits: int) -> str:
        """Expression for an operand as an unsigned pattern of `bits` (1 for predicates)."""
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
        if name in self.views:
            return "accumulator_get(G, {}, {})".format(*self.views[name])
        if name in self.locals:
            return re.sub(r"\W", "_", name)
        if name in self.program.slots:
            return f"R[{self.program.slots[name]}]"
        return "uninitialised(G)"

    def _symbol(self, x: str) -> str:
        program = self.program
        if x.startswith("%"):
            name = x[1:]
            return (
                f"special(G, '{name}')"
                if name.startswith(("clock", "globaltimer"))
                else f"G.special['{name}']"
            )
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

    def items(self, operand: str) -> list[str]:
        """Elements of a vector operand `{a, b}`, or the operand alone."""
        return [x.strip() for x in operand.strip().strip("{}").split(",")]

    def address(self, operand: str, bits: int = 64) -> str:
        """Expression for `[base+offset]`."""
        m = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+)\s*)?\]", operand.strip())
        if m is None:
            raise Unknown(f"address {operand}")
        return self.offset(m[1], int(m[2] or "0", 0))

    def offset(self, base: str, offset: int) -> str:
        """Expression for a base register, symbol or number plus a constant."""
        text = self.src(base, 64)
        width = self.width(base) or 64
        if offset == 0:
            return text
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
        if name in self.views:
            i, j = self.views[name]
            self.line(f"accumulator_set(G, {i}, {j}, {expression}, {self.mask})")
            return
        place = self._register(name)
        if name in self.fragments:
            self.line(f"fragment_written(G, {self.program.slots[name]})")
        if self.mask is None or (name in self.locals and self.mask == "m"):
            self.line(f"{place} = {expression}")
        else:
            self.line(
                f"{place} = mrg({self.mask}, {expression}, {place}, {'BOOL' if width == 1 else f'U{width}'})"
            )
