# SPDX-License-Identifier: Apache-2.0
"""The texts of errors: where an instruction stands, which warps wait for what."""

from __future__ import annotations

import traceback
from typing import Any

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.memory import Fault

MOST_LINES = 16  # groups of warps a deadlock report names


def place_of(group: WarpSet, error: Exception) -> str:
    """PTX line, CTA and warps of an error raised while a group ran, with its text."""
    ins = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        ins = group.program.instruction_at(frame.f_code.co_filename, line) or ins
    text = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
    if isinstance(error, TypeError) and "NoneType" in text:
        text = "read of a register that was not written before"
    elif isinstance(error, TypeError) and "Undefined" in text:
        text = "use of bits of a register that were not written before"
    who = f"CTA {group.cta.index}, warps {_ranges(group.warps)}"
    return f"{describe(ins)}, {who}: {text}"


def deadlock(groups: list[WarpSet], unstarted: int, clusters: int, resident: int) -> str:
    """Which warps wait for what, at which instruction; and how many of the clusters have not started."""
    lines = ["deadlock: nothing can move"]
    if unstarted:
        lines.append(f"  {unstarted} of {clusters} clusters have not started: {resident} CTAs fit")
    for group in groups[:MOST_LINES]:
        what, pc = group.waiting, group.waiting_at
        if what is None:
            pc = group.pc
        if what is None or what[0] == "memory":
            waits = "spins" + (f" on {_awaited(what)}" if what else "")
        else:
            waits = f"waits for {_awaited(what)}"
        ins = group.program.blocks[min(pc, group.program.exit - 1)].code[0]
        lines.append(f"  CTA {group.cta.index} warps {_ranges(group.warps)} {waits} at {describe(ins)}")
    return "\n".join(lines)


def _awaited(what: tuple[Any, ...]) -> str:
    if what[0] == "mbarrier":
        note = what[1].mismatch() if what[1].pending == 0 or what[1].tx < 0 else ""
        return f"{what[1]}, to complete phase {'parity ' if what[2] < 2 else ''}{what[2]}{note}"
    if what[0] == "memory":
        return f"byte {what[2]:#x} of {what[1]}"
    if what[0] in ("wgmma", "setmaxnreg"):
        return str(what[1])
    if what[0] == "barrier":
        bar = what[1]
        return f"barrier {bar.number}, where {bar.arrived} of {bar.expected or 'all'} threads have arrived"
    return f"the cluster barrier, where {what[1].arrived} of {what[1].live_warps} warps have arrived"


def describe(ins: PtxInstruction | None) -> str:
    """An instruction with its PTX line and, where known, its source line."""
    if ins is None:
        return "outside the kernel"
    source = "" if ins.source is None else f" ({ins.source[0].rsplit('/', 1)[-1]}:{ins.source[1]})"
    return f"PTX line {ins.line}{source} `{str(ins)[:100]}`"


def _ranges(warps: list[int]) -> str:
    return str(warps[0]) if len(warps) == 1 else f"{warps[0]}..{warps[-1]}"
