# SPDX-License-Identifier: Apache-2.0
"""The meter: counters of a profiler, per kernel and per PTX line.

Global accesses are counted in 32-byte sectors per warp request, shared ones in wavefronts (`costs.py`), as Nsight
Compute counts those of the LSU on an H200 (benchmarks/NOTES-emulator.md). Shared-memory traffic of cp.async, TMA and
wgmma is counted in bytes only. L2 and DRAM traffic comes from a model (`l2.py`).

Source: Nsight Compute documentation, memory tables and metrics.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cutegemm.emulator.numbers.tensor_core_jit import ITEM_BYTES
from cutegemm.emulator.numbers.types import Mask, Value
from cutegemm.emulator.ptx.executable import Translation
from cutegemm.emulator.state.geometry import WARP
from cutegemm.emulator.state.group import WarpSet
from cutegemm.emulator.state.hooks import Observer, Reach, Touch, Touched
from cutegemm.emulator.state.memory import MemoryRegion
from cutegemm.emulator.state.tensors import Tensor
from cutegemm.emulator.units.wgmma_operands import Form
from cutegemm.emulator.watch import costs
from cutegemm.emulator.watch.l2 import L2, SECTOR_BYTES, sectors_of
from cutegemm.emulator.watch.warp_roles import wait_kind

_LANE_COUNTS = {"fma": "fma_f32", "mad": "fma_f32", "mul": "mul_f32", "add": "add_f32", "sub": "add_f32"}


@dataclass
class LineCost:
    """Memory cost of a PTX line: warp requests, sectors or wavefronts (units), and the least possible units."""

    line: int
    text: str
    space: str
    requests: int = 0
    units: int = 0
    ideal: int = 0


class Meter(Observer):
    """Counts events of one launch."""

    def __init__(self, program: Translation, l2: L2) -> None:
        self.program, self.l2 = program, l2
        self.totals: dict[str, float] = defaultdict(int)
        self.lines: dict[tuple[int, str], LineCost] = {}
        self.lanes = [0] * len(program.blocks)
        self.waits: dict[int, Counter[str]] = defaultdict(Counter)  # warp of a CTA -> waits by kind
        self.sizes = [len(block.code) for block in program.blocks]
        self.position = {id(ins): i for block in program.blocks for i, ins in enumerate(block.code)}
        self.fused = {k: v for block in program.blocks for k, v in costs.fused_loads(block.code).items()}
        self.before = self._l2_counts()

    # ---- execution

    def ran(self, group: WarpSet, block: int, mask: Mask) -> None:
        if mask is None:
            self.lanes[block] += group.lanes
            return
        self.lanes[block] += int(np.count_nonzero(mask))
        active = mask.reshape(-1, WARP).any(1)
        if not active.all():
            ran = np.asarray(active, np.int64)
            before = group.uneven.get(block)
            group.uneven[block] = ran if before is None else before + ran

    def blocked(self, group: WarpSet, block: int) -> None:
        """Count a wait once, however often the group polls."""
        now = (block, group.counts[block])
        if group.blocked_at != now:
            group.blocked_at = now
            kind = wait_kind(self.program.blocks[block].code[0].op)
            for warp in group.warps:
                self.waits[warp][kind or "other"] += 1

    # ---- memory

    def access(self, group: WarpSet, touch: Touch) -> None:
        m, region, offset, size, write, space, _ = touch
        if space in ("param", "local"):
            return
        lane, place = _places(group, m, offset, space)
        if region.shared:
            share = self.fused.get(id(self.program.current_instruction())) if self.fused else None
            if share is not None and not ((place - costs.BANK_BYTES * share.word) % share.size).any():
                if share.word:
                    return  # the first word of a fused load counts
                size = share.size
            phase = costs.phases(lane, place, size, not write and space != "matrix")
            units = costs.wavefronts(phase, place, size)
            ideal = costs.least_wavefronts(phase, place, size)
            self.totals["shared_store_wavefronts" if write else "shared_load_wavefronts"] += units
            self._line("shared", len(np.unique(lane // WARP)), units, min(ideal, units))
        else:
            keys = costs.sectors(lane // WARP, place + region.base, size)
            self._global(region, keys, len(keys), lane, size, write)

    def _global(
        self,
        region: MemoryRegion,
        keys: npt.NDArray[np.int64],
        units: int,
        lane: npt.NDArray[np.int64],
        size: int,
        write: bool,
    ) -> None:
        """Count requests to global memory: `keys` of `costs.sectors` go to L2, `units` count as sectors."""
        per_warp = np.bincount(lane // WARP)
        requests = int(np.count_nonzero(per_warp))
        kind = "store" if write else "load"
        self.totals[f"global_{kind}_requests"] += requests
        self.totals[f"global_{kind}_sectors"] += units
        for sectors in np.split(keys, np.flatnonzero(np.diff(keys >> 48)) + 1):
            self.l2.access(region, sectors & ((1 << 48) - 1), write)
        ideal = sum(-(-n * size // SECTOR_BYTES) for n in per_warp.tolist())
        self._line("global", requests, units, min(ideal, units))

    def async_copy(self, to: Touched, source: Touched | None, size: int, around_l1: bool) -> None:
        lanes, _, offset = to
        self.totals["async_copy_bytes"] += len(lanes) * size
        if source is None:
            return
        reading, region, place = source
        place = np.broadcast_to(np.asarray(place, np.int64), len(reading)) + region.base
        target = np.broadcast_to(np.asarray(offset, np.int64), len(lanes))[np.isin(lanes, reading)]
        keys = costs.sectors(reading // WARP, place, size)
        units = costs.copied_sectors(reading // WARP, place, target) if around_l1 else len(keys)
        self._global(region, keys, units, reading, size, False)

    def _line(self, space: str, requests: int, units: int, ideal: int) -> None:
        ins = self.program.current_instruction()
        if ins is None:
            return
        cost = self.lines.get((ins.line, space))
        if cost is None:
            cost = self.lines[ins.line, space] = LineCost(ins.line, str(ins), space)
        cost.requests += requests
        cost.units += units
        cost.ideal += ideal

    def atomics(self, group: WarpSet, touch: Touch, returns: bool) -> None:
        """Count operations; in global memory each lane reads and writes a sector of L2."""
        region, offsets = touch.region, np.asarray(touch.offset)
        self.totals["atomic_operations"] += len(offsets)
        for sector in ((region.base + offsets) // SECTOR_BYTES).tolist() if not region.shared else ():
            self.l2.access(region, np.array([sector]), False)
            self.l2.access(region, np.array([sector]), True)

    def tensor_load(
        self, group: WarpSet, tensor: Tensor, at: tuple[int, ...], bars: Sequence[object]
    ) -> None:
        """Count a load: L2 is read once for the CTAs of all mbarriers."""
        box = tensor.map.box_bytes
        self.totals["tma_loads"] += 1
        self.totals["tma_load_bytes"] += box
        self.totals["tma_multicast_saved_bytes"] += box * (len(bars) - 1)
        self._box(tensor, tensor.reach(at), False)

    def tensor_store(self, group: WarpSet, tensor: Tensor, reach: Reach | None) -> None:
        self.totals["tma_stores"] += 1
        self.totals["tma_store_bytes"] += tensor.map.box_bytes
        self._box(tensor, reach, True)

    def _box(self, tensor: Tensor, reach: Reach | None, write: bool) -> None:
        if reach is not None:
            start, shape, strides = reach
            self.l2.access(tensor.region, sectors_of(tensor.region.base + start, shape, strides), write)

    def bulk(self, region: MemoryRegion, start: int, size: int, write: bool, copies: int) -> None:
        self.totals["bulk_store_bytes" if write else "bulk_load_bytes"] += size
        self.totals["tma_multicast_saved_bytes"] += size * (copies - 1)
        self.l2.access(region, sectors_of(region.base + start, (size,), ()), write)

    # ---- tensor cores

    def wgmma(self, group: WarpSet, form: Form, a_in_registers: bool) -> None:
        """Count a wgmma, a quarter for each warp, and the instructions since the previous one.

        A wavefront reads 128 bytes of operands, as on an H200 with swizzled operands.
        """
        groups = group.active_warps / 4
        n, k, _, a_type, b_type, *_ = form
        read = n * k * ITEM_BYTES[b_type] + (0 if a_in_registers else 64 * k * ITEM_BYTES[a_type])
        self.totals["wgmma_shared_wavefronts"] += read // (costs.BANKS * costs.BANK_BYTES) * groups
        self.totals["wgmma"] += groups
        self.totals["wgmma_flops"] += 2 * 64 * form[0] * form[1] * groups
        done = sum(n * size for n, size in zip(group.counts, self.sizes, strict=True)) // len(group.warps)
        clock = done + self.position.get(id(self.program.current_instruction()), 0)
        if group.wgmma_clock is not None:
            self.totals["wgmma_gaps"] += groups
            self.totals["wgmma_gap_instructions"] += (clock - group.wgmma_clock) * groups
        group.wgmma_clock = clock

    # ---- results

    def _l2_counts(self) -> np.ndarray:
        return np.array([self.l2.read, self.l2.written, self.l2.fetched, self.l2.written_back])

    def sums(self) -> dict[str, float]:
        """All counts of the launch; `combined` adds those of several launches."""
        flops, done = 0, {"fma_f32": 0, "mul_f32": 0, "add_f32": 0}
        for block, lanes in zip(self.program.blocks, self.lanes, strict=True):
            flops += lanes * sum(operations_per_lane(ins.op) for ins in block.code)
            for ins in block.code:
                if ins.parts[-1] == "f32" and (name := _LANE_COUNTS.get(ins.parts[0])):
                    done[name] += lanes
        read, written, fetched, back = ((self._l2_counts() - self.before) * SECTOR_BYTES).tolist()
        out = {k: int(v) if v == int(v) else v for k, v in sorted(self.totals.items())}
        return out | {
            "simt_flops": int(flops),
            "l2_read_bytes": read,
            "l2_write_bytes": written,
            "dram_read_bytes": fetched,
            "dram_write_bytes": back,
            **done,
        }


def combined(sums: list[dict[str, float]], dirty_bytes: int) -> dict[str, float]:
    """Counters of consecutive launches: sums and ratios.

    `dirty_bytes` are in L2 after the last launch. Ratios: wgmma_issue_gap, the warp instructions between two wgmmas of
    a warp; l2_hit_rate of the bytes read; flops, and flops per byte of L2 and DRAM traffic (dirty bytes included).
    """
    total: Counter[str] = Counter()
    for one in sums:
        total.update(one)
    out: dict[str, float] = dict(total)
    gaps, instructions = out.pop("wgmma_gaps", 0), out.pop("wgmma_gap_instructions", 0)
    if gaps:
        out["wgmma_issue_gap"] = round(instructions / gaps, 2)
    out["l2_dirty_bytes"] = dirty_bytes
    out["flops"] = flops = int(out["simt_flops"] + out.get("wgmma_flops", 0))
    l2 = out["l2_read_bytes"] + out["l2_write_bytes"]
    dram = out["dram_read_bytes"] + out["dram_write_bytes"] + dirty_bytes
    if out["l2_read_bytes"]:
        out["l2_hit_rate"] = round(1 - out["dram_read_bytes"] / out["l2_read_bytes"], 4)
    if flops and l2:
        out["flops_per_l2_byte"] = round(flops / l2, 2)
        out["flops_per_dram_byte"] = round(flops / dram, 2)
    return out


def operations_per_lane(op: str) -> int:
    """Floating-point operations of one lane in an instruction; an fma counts two."""
    head, _, modifiers = op.partition(".")
    kind = modifiers.rsplit(".", 1)[-1]
    width = {"f32": 1, "f64": 1, "f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2}.get(kind, 0)
    if head in ("fma", "mad"):
        return 2 * width
    if head in ("add", "sub", "mul", "div"):
        return width
    if op.startswith("mma.sync"):
        return 2 * math.prod(int(x) for x in re.findall(r"m(\d+)n(\d+)k(\d+)", op)[0]) // WARP
    if op.startswith("wmma.mma"):
        return 2 * 16 * 16 * 16 // WARP
    return 0


def _places(group: WarpSet, m: Mask, offset: Value, space: str) -> tuple[np.ndarray, np.ndarray]:
    """Lane numbers in the group and byte offsets of an access; rows of matrices count as lanes of their warp."""
    lanes = group.active(m)
    if space == "matrix":
        warps = np.arange(len(group.warps)) if m is None else np.flatnonzero(m)
        lanes = (warps[:, None] * WARP + np.arange(np.size(offset) // len(warps))).ravel()
    return lanes, np.broadcast_to(np.asarray(offset).astype(np.int64), len(lanes))
