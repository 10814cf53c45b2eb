# SPDX-License-Identifier: Apache-2.0
"""Translates a kernel to Python: one function per basic block, in a full and a masked version.

The masked version runs while some lanes are inactive and merges its results. A version is compiled when it first runs:
most blocks of a large kernel never run with inactive lanes, and many never run at all.

A register that is only used in one block becomes a local variable, any other a slot of the group's register list.
Accumulators of `wgmma` are matrices; their registers are views. This module assigns registers, accumulators and static
memory; `emitter.py` writes the code.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from cutegemm.emulator.numbers import extended, floats, fused_jit, rounding, values
from cutegemm.emulator.ptx.executable import WORD, BlockFunction, Translation
from cutegemm.emulator.ptx.flow import blocks_of
from cutegemm.emulator.ptx.kernel import Kernel, items
from cutegemm.emulator.state import memory
from cutegemm.emulator.translate import (  # noqa: F401  these fill EMITTERS
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

# Names for translated kernels: the public functions and constants of the modules that implement instructions.
_MODULES = (values, extended, floats, fused_jit, rounding, memory, access, atomics, warp_ops, barriers, bulk, copies,
            tma, wgmma, mma, host_calls)  # fmt: skip
NAMES = {name: x for module in _MODULES for name, x in vars(module).items() if not name.startswith("_")}
NAMES |= {"BOOL": np.bool_, **{f"U{bits}": kind for bits, kind in values.UINT.items()}}


def translate(kernel: Kernel) -> Translation:
    """Translate a kernel.

    Raises:
        EmulatorError: an unknown opcode, with its instruction and PTX line. Unknown forms of known opcodes are refused
            when their block first runs.
    """
    kernel.registers.setdefault(CARRY, "pred")
    blocks, targets = blocks_of(kernel)
    program = Translation(kernel, blocks)
    _allocate(program)
    _place_variables(program)
    for block in blocks:
        check_known(block)
    names = dict(NAMES)

    def compiled(number: int, masked: bool) -> BlockFunction:
        emitter = Emitter(program, targets, number, masked)
        name = f"block_{number}_{int(masked)}"
        lines = [f"def {name}(G, R, m):", *(" " + line for line in emitter.block(blocks[number]))]
        file = f"<ptx of {kernel.name}, {name}>"
        program.origins[file] = [None, *emitter.origin]
        exec(compile("\n".join(lines), file, "exec"), names)
        function: BlockFunction = names[name]
        program.functions[number][masked] = function
        return function

    def on_entry(number: int, masked: bool) -> BlockFunction:
        """A function that compiles the block and runs it."""
        return lambda group, registers, mask: compiled(number, masked)(group, registers, mask)

    program.functions = [[on_entry(n, False), on_entry(n, True)] for n in range(len(blocks))]
    return program


def _place_variables(program: Translation) -> None:
    """Assign offsets to shared and local variables; an extern array starts after the static ones."""
    sizes = {"shared": 0, "local": 0}
    offsets = {"shared": program.shared_offset, "local": program.local_offset}
    operands = (o for b in program.blocks for i in b.code for o in i.operands)
    used = {word for o in operands for word in re.findall(r"[\w$]+", o)}
    variables = [v for v in program.kernel.variables.values() if v.space in sizes and v.name in used]
    for var in variables:
        if var.size is not None:
            start = -(-sizes[var.space] // var.align) * var.align
            offsets[var.space][var.name] = start
            sizes[var.space] = start + var.size
    externs = [v for v in variables if v.size is None]
    align = max((v.align for v in externs), default=1)
    program.shared_size = -(-sizes["shared"] // align) * align
    program.shared_offset |= {v.name: program.shared_size for v in externs}
    program.local_size = sizes["local"]


def _allocate(program: Translation) -> None:
    """Assign each register: a local variable, a slot, or a view of a wgmma accumulator matrix."""
    blocks_with: dict[str, set[int]] = {}  # register -> blocks that name it
    defined_first: dict[str, bool] = {}
    lists: dict[tuple[str, ...], bool] = {}  # accumulator list -> whether it holds fp16
    kept: set[str] = set()

    def registers(text: str) -> list[str]:
        return [w for w in WORD.findall(text) if program.kernel.register_type(w) is not None]

    for n, block in enumerate(program.blocks):
        for ins in block.code:
            reads = [r for o in ins.operands[1:] for r in registers(o)]
            first = ins.operands[0] if ins.operands else ""
            writes = [] if first.startswith("[") else registers(first)
            if first.startswith("["):
                reads += registers(first)
            guard = [ins.guard[0]] if ins.guard else []
            if "cc" in ins.parts or ins.parts[0] in ("addc", "subc", "madc"):
                kept.add(CARRY)
                reads.append(CARRY)
            for r in [*reads, *guard, *writes]:
                blocks_with.setdefault(r, set()).add(n)
                defined_first.setdefault(r, r in writes and r not in reads and not guard)
            if ins.op.startswith("wgmma.mma_async"):
                lists.setdefault(tuple(items(first)), ins.parts[5] == "f16")
                if ins.operands[1].startswith("{"):
                    program.fragments.update(items(ins.operands[1]))
                kept |= {*reads, *writes}
            elif ins.op.startswith(("cp.async", "st.async")):
                kept |= set(reads)
    uses = Counter(r for regs in lists for r in regs)
    program.accumulators = [regs for regs in lists if all(uses[r] == 1 for r in regs)]
    program.half_lists = [lists[regs] for regs in program.accumulators]
    program.views = {r: (i, j) for i, regs in enumerate(program.accumulators) for j, r in enumerate(regs)}
    for r, numbers in blocks_with.items():
        if r in program.views:
            continue
        if len(numbers) == 1 and defined_first[r] and r not in kept:
            program.locals.add(r)
        else:
            program.slots[r] = len(program.slots)
