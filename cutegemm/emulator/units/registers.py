# SPDX-License-Identifier: Apache-2.0
"""The register pool of a CTA, which setmaxnreg takes from and gives to.

A CTA is launched with the same count for each of its threads, which ptxas derives from .maxnreg, or else from the
launch bounds (.reqntid or .maxntid, .minnctapersm), but no more than the greatest count that a setmaxnreg of the kernel
names (what ptxas 13.0 reports as used: 232 of 256 threads that go from 232 to 40 and 232). A kernel that declares
neither is not checked. A warp that ends is taken to give nothing back, which PTX leaves open.

Source: PTX ISA 9.0, 9.7.20.5 (setmaxnreg), 11.4 (performance-tuning directives).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutegemm.emulator.state.group import Group

SM_REGISTERS = 65536  # 32-bit registers of an SM of sm_90, CUDA programming guide, table 28
MOST, STEP = 255, 8  # registers of a thread, and the unit they are given in
WARP = 32


def launched_with(kernel: Any) -> int | None:
    """Registers a thread of a kernel is launched with, or None where it does not say."""
    directives: dict[str, tuple[int, ...]] = kernel.directives
    if "maxnreg" in directives:
        return directives["maxnreg"][0]
    bound = directives.get("reqntid") or directives.get("maxntid")
    if not bound:
        return None
    warps = -(-math.prod(bound) // WARP)
    ctas = directives.get("minnctapersm", (1,))[0]
    raised = [ins.operands for ins in kernel.code if ins.op.startswith("setmaxnreg")]
    asked = [int(count[0]) for count in raised if count and count[0].isdecimal()]
    return min(max(asked, default=MOST), MOST, SM_REGISTERS // (warps * WARP * max(ctas, 1))) // STEP * STEP


@dataclass
class Pool:
    """Registers per thread that each warp of a CTA holds, and how many a warp could still get."""

    launched: int
    warps: int
    held: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = dict.fromkeys(range(self.warps), self.launched)

    @property
    def free(self) -> int:
        """Registers per thread of one warp that nobody holds."""
        return self.launched * self.warps - sum(self.held.values())

    def __str__(self) -> str:
        return (
            f"registers: the CTA was launched with {self.launched} a thread, of one warp {self.free} are free"
        )


def set_registers(group: Group, count: int, more: bool) -> bool:
    """setmaxnreg.inc waits until the CTA's pool has the registers (False); setmaxnreg.dec gives some back."""
    pool = group.cta.pool
    if pool is None:
        return True
    held = [pool.held[w] for w in group.warps]
    wrong = min(held) > count if more else max(held) < count
    if wrong and group.tracker is not None:
        verb, side = ("inc", "more") if more else ("dec", "fewer")
        group.tracker.defect(
            f"setmaxnreg.{verb} to {side} registers than held", f"{count} where {held[0]} are held"
        )
    need = sum(max(count - h, 0) for h in held) if more else 0
    if need and need > pool.free:
        group.waiting, group.waiting_at = ("setmaxnreg", pool), group.pc
        return False
    for w in group.warps:
        pool.held[w] = count
    group.device.events += 1
    return True
