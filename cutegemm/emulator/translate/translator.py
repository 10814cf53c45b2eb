# SPDX-License-Identifier: Apache-2.0
"""A kernel translated to Python: one function per basic block, in a full and a masked version.

A function is written and compiled when its block is first entered that way: most blocks of a large kernel never run
with some lanes inactive, and many never run at all.

A register that lives within one block becomes a local variable, any other a slot of the group's register list.
The accumulators of `wgmma` live in fp32 matrices (`wgmma.py`); their registers are views of these. The masked
version runs while some lanes are inactive and merges what it writes.

Here registers, accumulators and static memory are assigned; `emitter.py` writes the code.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np

from cutegemm.emulator.numbers import extended, floats, fused_jit, rounding, values
from cutegemm.emulator.numbers.types import Mask
from cutegemm.emulator.ptx.executable import WORD, BlockFunction, Translation
from cutegemm.emulator.ptx.flow import Block, blocks_of
from cutegemm.emulator.ptx.kernel import Kernel, PtxInstruction
from cutegemm.emulator.state import memory
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.translate import (  # noqa: F401  they fill EMITTERS
    emit_calls,
    emit_convert,
    emit_float,
    emit_integer,
    emit_memory,
    emit_select,
    emit_units,
)
from cutegemm.emulator.translate.emitter import CARRY, Emitter, check_known
from cutegemm.emulator.units import (
    access,
    atomics,
    barriers,
    bulk,
    copies,
    host_calls,
    mma,
    tma,
    warp_ops,
    wgmma,
)

# The names that translated kernels use: public functions and constants of the modules that implement instructions.
_MODULES = (values, extended, floats, fused_jit, rounding, memory, access, atomics, warp_ops, barriers, bulk, copies,
            tma, wgmma, mma, host_calls)  # fmt: skip
NAMES = {name: x for module in _MODULES for name, x in vars(module).items() if not name.startswith("_")}
NAMES |= {"BOOL": np.bool_, **{f"U{bits}": kind for bits, kind in values.UINT.items()}}


def translate(kernel: Kernel) -> Translation:
    """Translate a kernel.

    Raises:
        EmulatorError: an instruction the emulator does not know at all, with its text and PTX line; unknown forms of
            known instructions are refused when their block is first run.
    """
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
    program = Translation(kernel, blocks, slots, lists, [regs in half for regs in lists], fragments)
    _layout(program)
    for block in blocks:
        check_known(block)
    names = dict(NAMES)

    def written(number: int, masked: bool) -> BlockFunction:
        """The function of a block, compiled now."""
        emitter = Emitter(program, targets, locals_, views, number, masked)
        name = f"block_{number}_{int(masked)}"
        lines = [f"def {name}(G, R, m):", *(" " + line for line in emitter.block(blocks[number]))]
        file = f"<ptx of {kernel.name}, {name}>"
        program.origins[file] = [None, *emitter.origin]
        exec(compile("\n".join(lines), file, "exec"), names)
        made: BlockFunction = names[name]
        return made

    def on_entry(number: int, masked: bool) -> BlockFunction:
        """What stands for a block's function until it is first called."""

        def enter(group: WarpSet, registers: list[Any], mask: Mask) -> int:
            function = program.functions[number][masked] = written(number, masked)
            return function(group, registers, mask)

        return enter

    program.functions = [[on_entry(n, False), on_entry(n, True)] for n in range(len(blocks))]
    return program


def _list_of(ins: PtxInstruction) -> tuple[str, ...]:
    """The accumulator registers of a wgmma.mma_async."""
    return tuple(x.strip() for x in ins.operands[0].strip("{}").split(","))


def _fragments_of(ins: PtxInstruction) -> tuple[str, ...]:
    """The registers a wgmma.mma_async reads A from."""
    if not ins.op.startswith("wgmma.mma_async") or not ins.operands[1].startswith("{"):
        return ()
    return tuple(x.strip() for x in ins.operands[1].strip("{}").split(","))


def _layout(program: Translation) -> None:
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
    program.shared_size = -(-sizes["shared"] // align) * align if externs else sizes["shared"]
    for var in externs:
        program.shared_offset[var.name] = program.shared_size
    program.local_size = sizes["local"]


def _registers(kernel: Kernel, text: str) -> list[str]:
    return [w for w in WORD.findall(text) if kernel.register_type(w) is not None]


# Slots, local names, accumulator lists, and (list, number within) of each register that is a view of one.
Allocation: TypeAlias = tuple[dict[str, int], set[str], list[tuple[str, ...]], dict[str, tuple[int, int]]]


def _allocate(kernel: Kernel, blocks: list[Block]) -> Allocation:
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
