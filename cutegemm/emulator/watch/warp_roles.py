# SPDX-License-Identifier: Apache-2.0
"""Roles of warps, by the asynchronous operations that they issue, and what each warp executed.

The operations name the role: TMA (tensor and bulk loads), cp.async, wgmma, mma. How often a warp blocked depends on the
order in which the emulator runs warps: it shows which role waits for which, but not for how long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cutegemm.emulator.ptx.flow import Block
from cutegemm.emulator.state.geometry import BlockCounts

# Opcode prefix -> the role of a warp that executes it.
WORK = {
    "cp.async.bulk.tensor": "TMA",
    "cp.reduce.async.bulk": "TMA",
    "cp.async.bulk.shared": "TMA",
    "cp.async.c": "cp.async",
    "wgmma.mma_async": "wgmma",
    "mma.sync": "mma",
    "wmma.mma": "mma",
}
# Copies to global memory: warps of any role may issue them in their epilogue.
STORES = (".global.shared::cta", ".bulk_group")
ISSUE = "wgmma issue"  # wgmma.commit_group blocks until all warps of the warpgroup have issued theirs
WAITS = {
    "mbarrier.try_wait": "mbarrier", "mbarrier.test_wait": "mbarrier", "bar.sync": "CTA barrier",
    "barrier.sync": "CTA barrier", "barrier.cta.sync": "CTA barrier", "bar.red": "CTA barrier",
    "barrier.cluster.wait": "cluster barrier", "wgmma.wait_group": "wgmma", "cp.async.bulk.wait_group": "bulk group",
    "wgmma.commit_group": ISSUE, "cp.async.wait": "cp.async group",
}  # fmt: skip


@dataclass
class WarpRole:
    """Warps of a CTA that issue the same operations; counts are sums over these warps and all CTAs."""

    name: str
    warps: list[int]
    instructions: Counter[str] = field(default_factory=Counter)  # per opcode
    waits: Counter[str] = field(default_factory=Counter)  # waits, per kind
    blocked: Counter[str] = field(default_factory=Counter)  # waits that blocked, per kind
    per_warp: dict[int, Counter[str]] = field(default_factory=dict)  # instructions of each warp, per opcode

    @property
    def total(self) -> int:
        """Warp instructions."""
        return self.instructions.total()


def per_warp(counts: BlockCounts, warps: int, blocks: int) -> dict[int, np.ndarray]:
    """How often each warp of a CTA ran each block, summed over CTAs."""
    out = {w: np.zeros(blocks, np.int64) for w in range(warps)}
    for together, ran in counts.by_warp.items():
        uneven = counts.uneven.get(together, {})
        even = np.array(ran, np.int64)
        for block, shares in uneven.items():
            even[block] -= int(shares.sum())
        for i, w in enumerate(together):
            out[w] += even // len(together)
            for block, shares in uneven.items():
                out[w][block] += shares[i]
    return out


def roles_of(
    blocks: list[Block], warps: int, counts: BlockCounts, waits: Mapping[int, Counter[str]]
) -> list[WarpRole]:
    """The roles of a launch, in the order of their first warps; `waits` has the waits that blocked by warp and kind."""
    roles: dict[str, WarpRole] = {}
    for warp, ran in per_warp(counts, warps, len(blocks)).items():
        executed: Counter[str] = Counter()
        for block, n in zip(blocks, ran.tolist(), strict=True):
            for ins in block.code if n else ():
                executed[ins.op] += n
        role = roles.setdefault(_name(executed), WarpRole(_name(executed), []))
        role.warps.append(warp)
        role.instructions += executed
        role.per_warp[warp] = executed
        for op, n in executed.items():
            kind = wait_kind(op)
            if kind:
                role.waits[kind] += n
        role.blocked += waits.get(warp, Counter())
    return list(roles.values())


def _name(executed: Counter[str]) -> str:
    loads = (op for op in executed if not any(part in op for part in STORES))
    work = dict.fromkeys(what for op in loads for head, what in WORK.items() if op.startswith(head))
    return " + ".join(work) or "other"


def wait_kind(op: str) -> str | None:
    """The kind of wait of an opcode; None if it is not a wait."""
    return next((kind for head, kind in WAITS.items() if op.startswith(head)), None)
