# SPDX-License-Identifier: Apache-2.0
"""What an access of a warp costs in memory: wavefronts of shared memory and sectors of global memory.

Shared memory has 32 banks of 4 bytes; a wavefront serves one word of each bank, to any number of lanes. The lanes of
an access are served in phases: a warp for accesses of up to 4 bytes, a half for 8, a quarter for 16, and eight rows
for ldmatrix and stmatrix. A load of 8 or 16 bytes joins its phases in twos when all lanes share their address with the
lane whose number differs in the last bit, or all with the one that differs in the bit before that; idle lanes agree
with any.

Source: CUDA C++ programming guide, 16.8.3 (shared memory banks); the phases are what an H200 counts
(`benchmarks/emulator_banks.py`, tests/emulator/watch/test_nsight.py).
"""

from __future__ import annotations

import numpy as np

SECTOR_BYTES = 32
LINE_BYTES = 128
BANKS = 32
BANK_BYTES = 4
WARP = 32
_PHASES = {8: 2, 16: 4}  # phases of a warp, by bytes per lane


def phases(lane: np.ndarray, place: np.ndarray, size: int, joins: bool) -> np.ndarray:
    """The phase each lane is served in, numbered over all warps.

    lane: numbers of the active lanes, warp * 32 + lane; place: their byte offsets. `joins`: a load by lanes, whose
    phases may be joined.
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
    """Wavefronts of an access: per phase, the most distinct words that one bank must serve."""
    words = max(size // BANK_BYTES, 1)
    word = (place[:, None] // BANK_BYTES + np.arange(words)).ravel()
    keys = np.unique(np.repeat(phase, words) << 32 | word)
    load = np.zeros((int(keys[-1] >> 32) + 1, BANKS), np.int64)
    np.add.at(load, (keys >> 32, (keys & 0xFFFFFFFF) % BANKS), 1)
    return int(load.max(1).sum())


def least_wavefronts(phase: np.ndarray, place: np.ndarray, size: int) -> int:
    """Wavefronts the same phases would take without conflicts: a full row of banks each, one at least."""
    words = np.unique(phase[:, None] << 48 | (place[:, None] + np.arange(0, size, BANK_BYTES)) // BANK_BYTES)
    return int(sum(-(-n // BANKS) for n in np.bincount(words >> 48)))


def sectors(warp: np.ndarray, address: np.ndarray, size: int) -> np.ndarray:
    """The distinct sectors of each warp, as warp << 48 | sector, in order."""
    spans = address[:, None] + np.arange(0, size, SECTOR_BYTES)
    return np.unique((warp[:, None] << 48 | spans // SECTOR_BYTES).ravel())


def copied_sectors(warp: np.ndarray, address: np.ndarray, place: np.ndarray) -> int:
    """Sectors as cp.async.cg counts them: distinct pairs of a line of global memory and 32 bytes of shared memory.

    Of the lanes of a warp that write the same place only the last one counts.
    """
    last = {key: i for i, key in enumerate(zip(warp.tolist(), place.tolist()))}
    kept = list(last.values())
    pairs = {
        (w, a // LINE_BYTES, p // SECTOR_BYTES)
        for w, a, p in zip(warp[kept].tolist(), address[kept].tolist(), place[kept].tolist())
    }
    return len(pairs)
