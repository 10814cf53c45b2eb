# SPDX-License-Identifier: Apache-2.0
"""The memory cost of an access of a warp: wavefronts of shared memory and sectors of global memory.

Shared memory has 32 banks of 4 bytes. A wavefront reads one word of each bank, for any number of lanes. An access takes
its lanes in phases: a warp for up to 4 bytes per lane, a half for 8, a quarter for 16, and eight rows for ldmatrix and
stmatrix. Two phases of a load of 8 or 16 bytes become one if each lane has the same address as lane ^ 1, or each the
same as lane ^ 2. Inactive lanes match any address.

ptxas fuses scalar shared loads from one address register, if no instruction between them may write: four words aligned
to 16 bytes become an LDS.128, two words aligned to 8 bytes an LDS.64. The meter counts the fused load. It takes the
alignment from the addresses, and assumes that the compiler can prove it.

Source: CUDA C++ programming guide, 16.8.3 (shared memory banks); the phases as an H200 counts them
(`benchmarks/emulator_banks.py`, tests/emulator/watch/test_nsight.py); fused loads from machine code of CUDA 13.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.emulator.ptx.kernel import PtxInstruction
from cutegemm.emulator.state.geometry import WARP
from cutegemm.emulator.watch.l2 import LINE_BYTES, SECTOR_BYTES

BANKS = 32
BANK_BYTES = 4
_PHASES = {8: 2, 16: 4}  # bytes per lane -> phases of a warp
_ADDRESS = re.compile(r"\[\s*(%[\w$.]+)\s*(?:\+\s*(-?\d+))?\s*\]")
# Instructions that ptxas does not move loads across.
_ORDERED = (
    "st", "bar", "barrier", "atom", "red", "cp", "mbarrier", "fence", "membar", "stmatrix", "call", "wgmma",
)  # fmt: skip


def phases(lane: np.ndarray, place: np.ndarray, size: int, joins: bool) -> np.ndarray:
    """The phase of each lane, numbered over all warps.

    lane: numbers of the active lanes, warp * 32 + lane; place: their byte offsets; joins: two phases may become one.
    """
    count = _PHASES.get(size, 1)
    phase = lane * count // WARP
    if count == 1 or not joins:
        return phase
    warps = int(lane[-1]) // WARP + 1
    flat = np.full(warps * WARP, -1, np.int64)
    flat[lane] = place
    address = flat.reshape(warps, WARP)
    joined = np.zeros(warps, bool)
    for distance in (1, 2):
        other = address[:, np.arange(WARP) ^ distance]
        joined |= ((address == other) | (address < 0) | (other < 0)).all(1)
    return np.where(joined[lane // WARP], phase & ~1, phase)


def wavefronts(phase: np.ndarray, place: np.ndarray, size: int) -> int:
    """Wavefronts of an access: in each phase, the most different words in one bank."""
    words = max(size // BANK_BYTES, 1)
    word = (place[:, None] // BANK_BYTES + np.arange(words)).ravel()
    keys = np.unique(np.repeat(phase, words) << 32 | word)
    load = np.zeros((int(keys[-1] >> 32) + 1, BANKS), np.int64)
    np.add.at(load, (keys >> 32, (keys & 0xFFFFFFFF) % BANKS), 1)
    return int(load.max(1).sum())


def least_wavefronts(phase: np.ndarray, place: np.ndarray, size: int) -> int:
    """Wavefronts of the same phases without bank conflicts."""
    words = np.unique(phase[:, None] << 48 | (place[:, None] + np.arange(0, size, BANK_BYTES)) // BANK_BYTES)
    return int(sum(-(-n // BANKS) for n in np.bincount(words >> 48)))


def sectors(warp: np.ndarray, address: np.ndarray, size: int) -> np.ndarray:
    """The different sectors of each warp, as sorted warp << 48 | sector."""
    spans = address[:, None] + np.arange(0, size, SECTOR_BYTES)
    return np.unique((warp[:, None] << 48 | spans // SECTOR_BYTES).ravel())


def copied_sectors(warp: np.ndarray, address: np.ndarray, place: np.ndarray) -> int:
    """Sectors of cp.async.cg: different pairs of a cache line and 32 bytes of shared memory.

    If lanes of a warp write the same bytes, only the last lane counts.
    """
    last = dict(zip(zip(warp.tolist(), place.tolist()), address.tolist()))
    return len({(w, a // LINE_BYTES, p // SECTOR_BYTES) for (w, p), a in last.items()})


@dataclass(frozen=True)
class FusedWord:
    """A load that ptxas fuses: the index of its word in the fused load, and the bytes of the fused load."""

    word: int
    size: int


def fused_loads(code: list[PtxInstruction]) -> dict[int, FusedWord]:
    """The loads of a basic block that ptxas fuses, by `id` of the instruction."""
    out: dict[int, FusedWord] = {}
    for run in _runs(code):
        for width in (4, 2):
            for start in sorted(run):
                words = [run.get(start + BANK_BYTES * i) for i in range(width)]
                aligned = start % (BANK_BYTES * width) == 0
                if aligned and None not in words and not any(id(x) in out for x in words):
                    out |= {id(x): FusedWord(i, BANK_BYTES * width) for i, x in enumerate(words)}
    return out


def _runs(code: list[PtxInstruction]) -> Iterator[dict[int, PtxInstruction]]:
    """Scalar loads from one value of an address register, with no write or barrier between them, by offset."""
    open_: dict[str, dict[int, PtxInstruction]] = {}
    for ins in code:
        parts = ins.parts
        if parts[0] == "ld" and parts[1:] in (["shared", x] for x in ("f32", "b32", "u32", "s32")):
            place = _ADDRESS.fullmatch(ins.operands[1])
            if place and ins.guard is None:
                open_.setdefault(place[1], {}).setdefault(int(place[2] or 0), ins)
        elif parts[0] in _ORDERED:
            yield from open_.values()
            open_ = {}
        if ins.operands and ins.operands[0] in open_:
            yield open_.pop(ins.operands[0])
    yield from open_.values()
