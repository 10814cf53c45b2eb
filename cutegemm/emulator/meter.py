# SPDX-License-Identifier: Apache-2.0
"""Meters: what a profiler would count, per kernel and per PTX line.

Global accesses are counted in 32-byte sectors per warp request, shared ones in wavefronts from the bank model: 32
banks of 4 bytes, one wavefront per distinct word a bank must serve; 8-byte accesses go by half warps, 16-byte ones
and matrix rows by groups of 8 lanes. What TMA and wgmma move through shared memory is counted in bytes only.

Source: CUDA C++ programming guide, 16.8.3 (shared memory banks); Nsight Compute documentation, memory tables.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.values import ND

SECTOR_BYTES = 32
BANKS = 32
BANK_BYTES = 4
WARP = 32


@dataclass
class LineCost:
    """Memory cost of one PTX line: warp requests, sectors or wavefronts, and the least possible for the same bytes."""

    line: int
    text: str
    space: str
    requests: int = 0
    units: int = 0
    ideal: int = 0

    @property
    def efficiency(self) -> float:
        """Least possible over actual: 1.0 is coalesced or free of conflicts."""
        return self.ideal / self.units if self.units else 1.0


class Meter:
    """Counts of one launch; an observer of the device."""

    def __init__(self, device):
        self.device = device
        self.totals: dict[str, float] = defaultdict(int)
        self.lines: dict[tuple[int, str], LineCost] = {}
        self.lanes = [0] * len(device.program.blocks)

    def access(self, group, m, region, offset, size, write, space, strong) -> None:
        """A plain access by a group of warps."""
        if space in ("param", "local"):
            return
        shared = region.name.startswith("shared memory")
        warp, place = _by_warp(group, m, offset, size)
        requests = group.active_warps
        if shared:
            units = wavefronts(warp, place, size)
            ideal = _least_wavefronts(warp, place, size)
            kind = "shared_store_wavefronts" if write else "shared_load_wavefronts"
        else:
            units = len(np.unique(warp << 48 | (place + region.base) // SECTOR_BYTES))
            ideal = sum(-(-n * size // SECTOR_BYTES) for n in np.bincount(warp - warp.min()).tolist())
            kind = "global_store_sectors" if write else "global_load_sectors"
            self.totals["global_store_requests" if write else "global_load_requests"] += requests
        self.totals[kind] += units
        self._line("shared" if shared else "global", requests, units, min(ideal, units))

    def _line(self, space: str, requests: int, units: int, ideal: int) -> None:
        ins = self.device.current_instruction()
        if ins is None:
            return
        cost = self.lines.get((ins.line, space))
        if cost is None:
            cost = self.lines[ins.line, space] = LineCost(ins.line, str(ins), space)
        cost.requests += requests
        cost.units += units
        cost.ideal += ideal

    def atomic(self, group, lane, region, offset, size, order) -> None:
        """One lane's atomic operation."""
        self.totals["atomic_operations"] += 1

    def tensor_load(self, group, tensor, reach, copies: int) -> None:
        """A tensor load: bytes from L2 once, into `copies` CTAs."""
        tensor_map = tensor.map
        self.totals["tma_loads"] += 1
        self.totals["tma_load_bytes"] += tensor_map.box_bytes
        self.totals["tma_multicast_saved_bytes"] += tensor_map.box_bytes * (copies - 1)

    def tensor_store(self, group, tensor, reach) -> None:
        """A tensor store."""
        self.totals["tma_stores"] += 1
        self.totals["tma_store_bytes"] += tensor.map.box_bytes

    def bulk(self, region, start: int, size: int, write: bool, copies: int) -> None:
        """A bulk copy between shared memory and bytes in a row of global memory."""
        self.totals["bulk_store_bytes" if write else "bulk_load_bytes"] += size

    def wgmma(self, group, form) -> None:
        """A wgmma, counted once per warpgroup (each warp does a quarter)."""
        self.totals["wgmma"] += group.active_warps / 4
        self.totals["wgmma_flops"] += 2 * 64 * form[0] * form[1] * group.active_warps / 4

    def counters(self) -> dict[str, float]:
        """Every total, with the floating-point operations of plain instructions."""
        flops = 0.0
        for block, lanes in zip(self.device.program.blocks, self.lanes, strict=True):
            flops += lanes * sum(operations_per_lane(ins.op) for ins in block.code)
        out = {k: int(v) if v == int(v) else v for k, v in sorted(self.totals.items())}
        return out | {"simt_flops": int(flops)}


def operations_per_lane(op: str) -> int:
    """Floating-point operations one lane does in an instruction (an fma counts two, as everywhere)."""
    head, _, rest = op.partition(".")
    kind = rest.rsplit(".", 1)[-1]
    width = {"f32": 1, "f64": 1, "f16": 1, "bf16": 1, "f16x2": 2, "bf16x2": 2}.get(kind, 0)
    if head in ("fma", "mad"):
        return 2 * width
    if head in ("add", "sub", "mul", "div"):
        return width
    if op.startswith("mma.sync"):
        m, n, k = (int(x) for x in _shape(op))
        return 2 * m * n * k // WARP
    if op.startswith("wmma.mma"):
        return 2 * 16 * 16 * 16 // WARP
    return 0


def _shape(op: str) -> list[str]:
    import re

    return list(re.search(r"m(\d+)n(\d+)k(\d+)", op).groups())


def _by_warp(group, m, offset, size) -> tuple[np.ndarray, np.ndarray]:
    """Warp number and byte offset of each request element (lanes, or the matrix rows of ldmatrix)."""
    if offset.__class__ is not ND:
        warps = len(group.warps) if m is None else int(m.reshape(-1, WARP).any(1).sum())
        return np.arange(warps), np.full(warps, offset, np.int64)
    place = offset.astype(np.int64)
    lanes = np.arange(group.lanes) if m is None else np.flatnonzero(m)
    if len(lanes) == len(place):
        return lanes >> 5, place
    return np.repeat(np.arange(len(place) // 8), 8), place  # matrix rows, eight a matrix


def _phases(warp: np.ndarray, place: np.ndarray, size: int) -> np.ndarray:
    """The group of lanes each element is served with: a warp, half a warp or eight lanes."""
    lanes = {8: 16, 16: 8}.get(size, WARP)
    order = np.arange(len(warp))
    first = np.searchsorted(warp, warp)  # warps come in order
    return warp * WARP + (order - first) // lanes


def wavefronts(warp: np.ndarray, place: np.ndarray, size: int) -> int:
    """Shared-memory wavefronts of one access: per phase, the most distinct words any bank holds."""
    phase = _phases(warp, place, size)
    words = (place[:, None] // BANK_BYTES + np.arange(max(size // BANK_BYTES, 1))).ravel()
    keys = np.unique(np.repeat(phase, max(size // BANK_BYTES, 1)) << 32 | words)
    load = np.zeros((int(keys[-1] >> 32) + 1, BANKS), np.int64)
    np.add.at(load, (keys >> 32, (keys & 0xFFFFFFFF) % BANKS), 1)
    return int(load.max(1).sum())


def _least_wavefronts(warp: np.ndarray, place: np.ndarray, size: int) -> int:
    """Wavefronts the same phases would take without conflicts: one each."""
    return len(np.unique(_phases(warp, place, size)))
