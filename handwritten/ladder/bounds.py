# SPDX-License-Identifier: Apache-2.0
"""The unit that bounds a stage: clocks that each unit of an SM needs for the counted work, and its busy share.

`counters.json` has the emulator's counts at two depths of K (`python -m handwritten --emulate --json`). Counts grow
linearly with K and with the number of output tiles, so two depths give the counts of any larger problem.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.files import replace
from handwritten.ladder.source import FOLDER

COUNTERS = FOLDER / "counters.json"
SCHEMA = 1
SMS, CLOCK = 132, 1.98e9  # of an H200 SXM, at its highest clock in Hz
BUSY = 0.5  # least busy share of a unit that bounds a stage; below it, latency bounds the stage
# throughput of one SM per clock (NVIDIA H100 white paper; wgmma: dense 16-bit peak / SMs / clock)
ISSUE = 4  # warp instructions: one per scheduler
LANES = 128  # fp32 FMAs
WAVEFRONTS = 1  # shared-memory accesses of 128 bytes
SECTORS = 4  # sectors of 32 bytes from the L1 cache
PORT = 64  # bytes from L2
TENSOR = 4096  # FLOP of wgmma on 16-bit operands
MMA_SHARE = 0.63  # mma.sync of TENSOR (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU", 2024)


def write(path: Path, rows: Sequence[Mapping[str, Any]], commit: str) -> None:
    """Write the counters of `--emulate`; rows replace older ones of the same stage, type and shape."""
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    kept = {(x["stage"], x["dtype"], *x["shape"]): x for x in [*known, *rows]}
    document = {"schema": SCHEMA, "commit": commit, "rows": [kept[key] for key in sorted(kept)]}
    replace(path, f"{json.dumps(document, indent=1)}\n".encode())


@functools.cache
def counted(path: Path = COUNTERS) -> dict[tuple[str, str], dict[tuple[int, int, int], dict[str, int]]]:
    """(stage, type) -> (M, N, K) -> counts by name; empty without a file."""
    found: dict[tuple[str, str], dict[tuple[int, int, int], dict[str, int]]] = {}
    for x in json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []:
        m, n, k = x["shape"]
        found.setdefault((x["stage"], x["dtype"]), {})[m, n, k] = x["counts"]
    return found


def scaled(
    shapes: Mapping[tuple[int, int, int], Mapping[str, int]], wanted: tuple[int, int, int]
) -> dict[str, float]:
    """Counts of a larger problem, from counts at two depths of K with equal M and N."""
    (short, few), (long, many) = sorted(shapes.items(), key=lambda x: x[0][2])
    tiles = (wanted[0] / short[0]) * (wanted[1] / short[1])
    steps = (wanted[2] - short[2]) / (long[2] - short[2])
    names = {*few, *many}
    return {x: tiles * (few.get(x, 0) + steps * (many.get(x, 0) - few.get(x, 0))) for x in names}


def clocks(counts: Mapping[str, float], m: int, n: int, k: int, dtype: str) -> dict[str, float]:
    """Clocks that each unit needs if the work is evenly distributed over the SMs."""
    of = lambda *names: sum(counts.get(name, 0) for name in names)
    flop = 2 * m * n * k
    wgmma = of("wgmma_flops") > 0
    units = {
        "instruction issue": of("warp_instructions") / ISSUE,
        "shared memory": of("shared_load_wavefronts", "shared_store_wavefronts", "wgmma_shared_wavefronts")
        / WAVEFRONTS,
        "L1": of("global_load_sectors") / SECTORS,
        "L2": of("tma_load_bytes", "async_copy_bytes") / PORT,
    }
    if dtype == "fp32":
        units["FMA"] = flop / 2 / LANES
    else:
        units["tensor cores"] = flop / (TENSOR if wgmma else TENSOR * MMA_SHARE)
    return {name: value / SMS for name, value in units.items()}


def bound(stage: str, dtype: str, shape: tuple[int, int, int], microseconds: float | None) -> str:
    """The unit that needs the most clocks, or "latency" if it is busy for less than half of the measured time.

    Without a time, only the unit; "" for a stage without counters.
    """
    shapes = counted().get((stage, dtype), {})
    if len(shapes) < 2:
        return ""
    needed = clocks(scaled(shapes, shape), *shape, dtype)
    unit = max(needed, key=needed.__getitem__)
    if microseconds is None:
        return unit
    share = needed[unit] / (microseconds * 1e-6 * CLOCK)
    return f"{unit} {share:.0%}" if share >= BUSY else f"latency ({unit} {share:.0%})"
