# SPDX-License-Identifier: Apache-2.0
"""What predicted times decide: the order of candidates, how an operand arrives, the walk over tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, Candidate, Ranked
from cutegemm.problems import Problem, round_up

# rows of a panel of tiles, all of whose columns come before the next panel
PANEL_ROWS = 1024


def by_model(problem: Problem, device: Device, gates: int, candidates: Sequence[Candidate]) -> list[Ranked]:
    """The candidates, fastest first by the model (`candidates.Order`, `times.fastest_first`)."""
    # imports NumPy
    from cutegemm.planning.times import fastest_first

    order, times = fastest_first(problem, device, candidates)
    return [Ranked(candidates[i], f"the model's fastest, {times[i] / 1e3:,.1f} us") for i in order]


def cheapest_loads(
    problem: Problem, widths: Mapping[str, int], device: Device, copied: bool = False
) -> dict[str, str]:
    """How to load the operands that TMA cannot address.

    Copies are one launch and two passes over each operand; what the producer's threads load costs every stage of
    every tile, and pays only where there are few of either: few rows or columns, tiny products.

    Args:
        widths: of those operands, "a", "b" or both: the copies of cp.async that they allow, bytes; 0 is none.
        copied: whether threads cannot load.
    """
    kinds = {
        name: ("relayout",) if copied else _loads(problem, name, width) for name, width in widths.items()
    }

    def cost(chosen: Iterable[str]) -> float:
        return loads_ns(problem, dict(zip(kinds, chosen, strict=True)), widths, device)

    return dict(zip(kinds, min(itertools.product(*kinds.values()), key=cost), strict=True))


def _loads(problem: Problem, name: str, width: int) -> tuple[str, ...]:
    """What can load an operand that TMA cannot address, the first among equals first."""
    operand = getattr(problem, name)
    if not (operand.unit_row or operand.unit_col):
        return "relayout", "gather"
    return ("relayout", *(("cp_async",) if width else ()), "shift", "gather")


def loads_ns(problem: Problem, chosen: Mapping[str, str], widths: Mapping[str, int], device: Device) -> float:
    """What loads cost beside what TMA would."""
    time, edges = device.time, _edges(problem, device)
    tiles = math.ceil(problem.m / edges["a"]) * math.ceil(problem.n / edges["b"]) * problem.batch
    lines = math.ceil(tiles / device.sms) * round_up(problem.k, BLOCK_K)
    total = time.relayout * ("relayout" in chosen.values())
    for name, load in chosen.items():
        operand = getattr(problem, name)
        size = operand.dtype.bytes
        if load == "relayout":
            total += 2 * operand.bytes / device.dram_gbs
        elif load == "gather":
            total += lines * edges[name] * time.gather
        else:
            rate = time.shift if load == "shift" else time.copy * widths[name]
            total += lines * edges[name] * size / rate
    return total


def _edges(problem: Problem, device: Device) -> dict[str, int]:
    """Rows of A's and of B's tiles to reckon with: 128, or 64 where those do not fill the SMs, or all there are."""
    wide = math.ceil(problem.m / 128) * math.ceil(problem.n / 128) * problem.batch >= device.sms
    edge = 128 if wide else 64
    return {"a": min(edge, round_up(problem.m, 8)), "b": min(edge, round_up(problem.n, 8))}


def raster_for(problem: Problem, tile: tuple[int, int, int], cluster: tuple[int, int]) -> tuple[str, int]:
    """Panels along M of so many rows, of four to eight clusters, or of all there are.

    Of 24 large products on an H100 in tiles of 128 x 256 in pairs, panels of four pairs take 2.6 % less than those of
    eight, which take 0.7 % less than those of sixteen (`benchmarks/results/sweeps/large_h100.json`).
    """
    rows = tile[0] * cluster[0]
    return "m", max(1, min(max(4, min(8, PANEL_ROWS // rows)), math.ceil(problem.m / rows)))
