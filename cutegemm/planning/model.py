# SPDX-License-Identifier: Apache-2.0
"""What predicted times decide: the order of candidates, how an operand arrives, the walk over tiles."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, CLUSTERED, DEEP_SHIFT, SHIFTED, Candidate, Ranked
from cutegemm.planning.cuts import LEAST_LOADED_K, PARTS, deep
from cutegemm.problems import Problem, round_up

# clusters across a panel of the walk, and of wide tiles by turns
PANEL = 8
TURNS_PANEL = 4
# columns of a tile, and rows of a cluster's, that make it wide
WIDE = 160
PAIR_ROWS = 256
# the tile of kernels without a producer whose panels lie along N, so that other SMs share lines of L2, and K up to
# which they do: at 1024 x 1024 x 65536 they take 295 us, along M 226 (H200)
WALKED = (64, 128, 64)
WALKED_K = 2048


def by_model(
    problem: Problem, device: Device, gates: int, candidates: Sequence[Candidate]
) -> Iterator[Ranked]:
    """The candidates, fastest first by the model (`candidates.Order`, `times.fastest_first`)."""
    # imports NumPy
    from cutegemm.planning.times import fastest_first

    order, times = fastest_first(problem, device, candidates)
    for i in order:
        yield Ranked(candidates[i], f"the model's fastest, {times[i] / 1e3:,.1f} us", times[i])


def predicted_ns(problem: Problem, device: Device, candidate: Candidate) -> float:
    """Nanoseconds that the model predicts for a candidate."""
    (ranked,) = by_model(problem, device, 1, [candidate])
    assert ranked.ns is not None
    return ranked.ns


def cheapest_loads(
    problem: Problem, widths: Mapping[str, int], device: Device, copied: bool = False
) -> dict[str, str]:
    """How to load the operands that TMA cannot address.

    Copies are one launch and two passes over each operand; what the producer's threads load costs every stage of
    every tile, and pays only where there are few of either: few rows or columns, tiny products, K in many parts.

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
    total = copies_ns(problem, chosen, device)
    if any(load != "relayout" for load in chosen.values()):
        total += min(_threads_ns(problem, chosen, widths, device, x) for x in _edges(problem, device))
    return total


def copies_ns(problem: Problem, chosen: Mapping[str, str], device: Device) -> float:
    """What copies cost: one launch, and two passes over each operand."""
    copies = [getattr(problem, name).bytes for name, load in chosen.items() if load == "relayout"]
    total: float = device.time.relayout * bool(copies) + 2 * sum(copies) / device.dram_gbs
    return total


def _threads_ns(
    problem: Problem,
    chosen: Mapping[str, str],
    widths: Mapping[str, int],
    device: Device,
    edges: Mapping[str, int],
) -> float:
    """The time of the stages that threads load, of tiles of so many rows of A and of B."""
    time = device.time
    tiles = math.ceil(problem.m / edges["a"]) * math.ceil(problem.n / edges["b"]) * problem.batch
    parts, slower = _parts(problem, tiles, device)
    lines = math.ceil(tiles / device.sms) * round_up(math.ceil(problem.k / parts), BLOCK_K) * slower
    faster = DEEP_SHIFT if sum(edges.values()) <= SHIFTED else 1.0
    total = 0.0
    for name, load in chosen.items():
        size = getattr(problem, name).dtype.bytes
        if load == "gather":
            total += lines * edges[name] * time.gather
        elif load != "relayout":
            rate = faster * time.shift if load == "shift" else time.copy * widths[name]
            total += lines * edges[name] * size / rate
    return total


def _parts(problem: Problem, tiles: int, device: Device) -> tuple[int, float]:
    """Parts of K that bring few tiles to all SMs, in clusters or by a launch, and how much longer their stages take."""
    if deep(problem, device) and tiles < device.sms:
        return max(1, min(math.ceil(problem.k / (2 * BLOCK_K)), device.sms // tiles)), 1.0
    if problem.k < LEAST_LOADED_K:
        return 1, 1.0
    parts = max(x for x in PARTS if x == 1 or tiles <= device.resident_clusters(x))
    return parts, CLUSTERED if parts > 1 else 1.0


def _edges(problem: Problem, device: Device) -> list[dict[str, int]]:
    """Rows of A's and of B's tiles to reckon with: 128, or 64 where those do not fill the SMs, or all there are.

    Of the shorter side of D 32, where tiles of 64 x 64 do not fill half of them; of deep K either.
    """
    wide = math.ceil(problem.m / 128) * math.ceil(problem.n / 128) * problem.batch >= device.sms
    few = math.ceil(problem.m / 64) * math.ceil(problem.n / 64) * problem.batch <= device.sms // 2
    edge = 128 if wide else 64
    shorts = [32 if few else edge, *([edge] if few and deep(problem, device) else [])]
    pairs = [(x, edge) if problem.m < problem.n else (edge, x) for x in shorts]
    return [{"a": min(a, round_up(problem.m, 8)), "b": min(b, round_up(problem.n, 8))} for a, b in pairs]


def raster_for(problem: Problem, found: Candidate) -> tuple[str, int]:
    """Panels of eight clusters along M (or all there are): measured best or within 1 % on large products.

    In tiles of 128 x 256 that two consumers share, in pairs, panels of four take 0.3 to 2.5 % longer on all of nine
    products of 350 us and more (H200), 0.4 to 4 % on five (H100), and panels of sixteen or along N as long. Where
    consumers take turns on wide tiles in pairs it is panels of four: 8191^3 takes 1,601 us in 128 x 192, in panels of
    eight 1,654 and of sixteen 1,698; 8 x 2048 x 2048 x 1024 in 128 x 160 101 and 110 (H200).
    """
    short = problem.k <= WALKED_K and problem.batch == 1
    if short and found.schedule == "multistage" and found.tile == WALKED:
        # 1000 x 1001 x 1003 takes 10.1 us, along M 11.1; 1023^3 10.9 and 11.9 (H200)
        return "n", max(1, min(PANEL, math.ceil(problem.n / found.tile[1])))
    rows = found.tile[0] * found.cluster[0]
    wide = found.tile[1] >= WIDE and rows >= PAIR_ROWS
    panel = TURNS_PANEL if wide and found.schedule == "pingpong" else PANEL
    return "m", max(1, min(panel, math.ceil(problem.m / rows)))
