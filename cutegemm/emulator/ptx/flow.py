# SPDX-License-Identifier: Apache-2.0
"""Control flow of a kernel: basic blocks, reconvergence points, and branches whose paths contain waits.

Divergent paths reconverge at the immediate post-dominator of the branch (Fung et al., MICRO 2007). An instruction that
can block is a separate block, so that a waiting group runs only this instruction again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cutegemm.emulator.ptx.kernel import Kernel, PtxInstruction
from cutegemm.errors import EmulatorError

# Instructions at which a group of warps may have to wait.
BLOCKING = (
    "mbarrier.try_wait", "mbarrier.test_wait", "bar.sync", "bar.red", "bar.arrive", "barrier.sync", "barrier.arrive",
    "barrier.cta", "barrier.red", "barrier.cluster.wait", "wgmma.commit_group", "setmaxnreg.inc",
    "nanosleep",
)  # fmt: skip
# Instructions of whole warps or warpgroups: a group whose warps diverge around them is split.
COLLECTIVE = (*BLOCKING, "wgmma", "barrier.cluster", "cp.async.bulk.wait_group", "cp.async.wait")


@dataclass
class Block:
    """A basic block: instructions, successors (the number of blocks is the exit) and reconvergence point."""

    code: list[PtxInstruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    reconverge: int = 0  # immediate post-dominator
    splits: bool = False  # a path from here to `reconverge` contains a collective instruction


def is_branch(ins: PtxInstruction) -> bool:
    """Whether the next instruction may not be the following one."""
    return ins.parts[0] in ("bra", "ret", "exit", "brx", "trap")


def _returns(ins: PtxInstruction) -> bool:
    return ins.parts[0] in ("ret", "exit")


def blocks_of(kernel: Kernel) -> tuple[list[Block], dict[str, int]]:
    """Split a kernel into blocks; returns them and the block of each label.

    Raises:
        EmulatorError: a branch to an unknown label; no instruction at all.
    """
    if not kernel.code:
        raise EmulatorError(f"{kernel.name[:80]} has no instruction", field="ptx")
    code, labels = _guarded_to_branches(kernel)
    starts = {0, *labels.values()}
    for i, ins in enumerate(code):
        if is_branch(ins):
            starts.add(i + 1)
        if ins.op.startswith(BLOCKING):
            starts |= {i, i + 1}
    order = sorted(s for s in starts if s < len(code))
    number = {start: n for n, start in enumerate(order)}
    blocks = [Block(code[a:b]) for a, b in zip(order, [*order[1:], len(code)], strict=True)]
    number[len(code)] = len(blocks)
    # lanes that branch to a return have exited, so that a barrier does not wait for them
    number |= {i: len(blocks) for i in order if _returns(code[i]) and code[i].guard is None}
    targets = {label: number[i] for label, i in labels.items()}
    for n, block in enumerate(blocks):
        _successors(n, block, blocks, targets)
    _reconvergence_points(blocks)
    return blocks, targets


def _guarded_to_branches(kernel: Kernel) -> tuple[list[PtxInstruction], dict[str, int]]:
    """Replace the guard of collective instructions by a branch around them."""
    code: list[PtxInstruction] = []
    moved: dict[int, int] = {}
    labels: dict[str, int] = {}
    for i, ins in enumerate(kernel.code):
        moved[i] = len(code)
        if ins.guard and ins.op.startswith(COLLECTIVE):
            skip = f"$skip{i}"
            code.append(
                PtxInstruction("bra", (skip,), (ins.guard[0], not ins.guard[1]), ins.line, ins.source)
            )
            ins = replace(ins, guard=None)
            labels[skip] = len(code) + 1
        code.append(ins)
    moved[len(kernel.code)] = len(code)
    labels |= {name: moved[i] for name, i in kernel.labels.items()}
    return code, labels


def _successors(n: int, block: Block, blocks: list[Block], targets: dict[str, int]) -> None:
    last = block.code[-1]
    head = last.parts[0]
    if head == "bra":
        if last.operands[0] not in targets:
            raise EmulatorError(f"line {last.line}: {last}: no such label", field="ptx")
        block.successors = [targets[last.operands[0]]]
        if last.guard:
            block.successors.append(n + 1)
    elif _returns(last) or head == "trap":
        block.successors = [len(blocks), n + 1] if last.guard else [len(blocks)]
    else:
        block.successors = [n + 1]


def _reconvergence_points(blocks: list[Block]) -> None:
    """Set the immediate post-dominators, by data-flow equations on bit sets."""
    exit_block = len(blocks)
    everything = (1 << exit_block + 1) - 1
    after = [everything] * exit_block + [1 << exit_block]
    changed = True
    while changed:
        changed = False
        for n in range(exit_block - 1, -1, -1):
            common = everything
            for s in blocks[n].successors:
                common &= after[s]
            common |= 1 << n
            if common != after[n]:
                after[n] = common
                changed = True
    sizes = [a.bit_count() for a in after]
    for n, block in enumerate(blocks):
        if len(block.successors) < 2:
            continue
        others = after[n] & ~(1 << n)
        block.reconverge = next((m for m in _ones(others) if sizes[m] == sizes[n] - 1), exit_block)
    waits = [any(i.op.startswith(COLLECTIVE) for i in b.code) for b in blocks]
    for block in blocks:
        if len(block.successors) > 1:
            block.splits = _holds(block, blocks, waits)


def _ones(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low


def _holds(branch: Block, blocks: list[Block], waits: list[bool]) -> bool:
    seen: set[int] = set()
    todo = list(branch.successors)
    while todo:
        n = todo.pop()
        if n == branch.reconverge or n in seen or n == len(blocks):
            continue
        seen.add(n)
        if waits[n]:
            return True
        todo += blocks[n].successors
    return False
