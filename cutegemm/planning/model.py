# SPDX-License-Identifier: Apache-2.0
"""A model of a launch's time, which orders candidates where the spec leaves them open.

The time of a mainloop stage on the tensor cores or from L2, times the stages of a tile, plus what a tile costs
outside its mainloop, times waves; never less than DRAM takes. The constants are the device's
(`arch.device.TimeModel`); the model only has to order candidates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning.candidates import BLOCK_K, Candidate, Ranked
from cutegemm.planning.operands import L2_LINE
from cutegemm.problems import Operand, Problem, round_up

# bytes a row of an output's piece, below which its barriers are no longer hidden
NARROW_BYTES = 32
# of a cluster's sum over parts of K, per work; bytes that a CTA sends into distributed shared memory meanwhile
SUM_NS = 700.0
SUM_BYTES_PER_NS = 25.0
# what L2 was seen to deliver to an SM whose cluster holds parts of K (128 x 128 x 16384 to 640 x 384 x 24576, H200)
SPLIT_L2_BYTES_PER_NS = 50.0
# bandwidth falls by this power of the share of SMs that stream: 0.94 of it with 107 CTAs at 128 x 10240 x 8192, 0.82
# with 64 at 128 x 8192 x 28672, where 128 CTAs have all (H200)
STREAM_FILL = 0.28
# extent along K up to which a pingpong kernel's mainloop keeps its speed
DEEP_K = 4096


def by_model(problem: Problem, device: Device, gates: int, candidates: Sequence[Candidate]) -> list[Ranked]:
    """The candidates, fastest first by the model (`candidates.Order`).

    Among those that memory bounds alike the one that takes fewest bytes from L2 is first; then they keep their own
    order.
    """
    lines = _lines(problem.a), _lines(problem.b)
    times = []
    for x in candidates:
        delivered = _delivered(x, lines)
        times.append((estimate(problem, x, device, delivered), _traffic(problem, x, delivered), x))
    times.sort(key=lambda found: found[:2])
    return [Ranked(x, f"the model's fastest, {ns / 1e3:,.1f} us") for ns, _, x in times]


def stage_ns(problem: Problem, candidate: Candidate, device: Device, waves: int, delivered: float) -> float:
    """One mainloop stage: bound by the tensor cores or by what L2 delivers to an SM.

    A multicast slice crosses L2's port once for the cluster. `delivered`: see `_delivered`.
    """
    time, (m, n, depth), lone = device.time, candidate.tile, waves == 1
    # bytes per element of the tile: 1 for 128 x 256 in pairs
    traffic = delivered / (m * n * depth / BLOCK_K)
    compute = time.mma * m * n * (depth / BLOCK_K) * (1 + time.traffic * (traffic - 1))
    factor = 1.0
    if candidate.pingpong:
        compute *= 1 + time.turn_deep * max(0.0, math.log2(max(problem.k, 1) / DEEP_K))
        factor = time.turn_lone if lone else 1.0
    else:
        compute *= time.narrow if m == device.limits.mma_m else 1.0
        factor = time.multistage_lone if lone and candidate.schedule == "multistage" else 1.0
    rate = SPLIT_L2_BYTES_PER_NS if candidate.splits > 1 else time.l2_lone if lone else time.l2
    return factor * max(compute, delivered / rate)


def _delivered(candidate: Candidate, lines: tuple[float, float]) -> float:
    """Bytes that a stage of 16-bit operands takes from L2 for one CTA; `lines` are A's and B's (`_lines`)."""
    (m, n, depth), cluster = candidate.tile, candidate.cluster
    return (m / cluster[1] * lines[0] + n / cluster[0] * lines[1]) * depth * 2


def _lines(operand: Operand) -> float:
    """L2 lines that a 128-byte row of a box touches on average; a copy's rows begin at whole lines."""
    leading = operand.strides[0] if operand.unit_col else operand.strides[1]
    straddles = operand.tma_reason() is None and leading * operand.dtype.bytes % L2_LINE
    return 2.0 if straddles else 1.0


def _ctas(problem: Problem, candidate: Candidate) -> int:
    """CTAs that a launch has, clusters filled up."""
    (m, n, _), cluster = candidate.tile, candidate.cluster
    across = math.ceil(problem.m / (m * cluster[0])) * math.ceil(problem.n / (n * cluster[1]))
    return across * problem.batch * cluster[0] * cluster[1] * candidate.splits


def _traffic(problem: Problem, candidate: Candidate, delivered: float) -> float:
    """Bytes that all CTAs take from L2."""
    stages = math.ceil(problem.k / (candidate.tile[2] * candidate.splits))
    return _ctas(problem, candidate) * stages * delivered


def estimate(problem: Problem, candidate: Candidate, device: Device, delivered: float) -> float:
    """Nanoseconds for the whole problem, its launch included."""
    fill = min(1.0, _ctas(problem, candidate) / device.sms)
    least = problem.min_bytes / (device.dram_gbs * math.pow(fill, STREAM_FILL))
    return max(kernel_ns(problem, candidate, device, delivered), least) + device.time.launch


def kernel_ns(problem: Problem, candidate: Candidate, device: Device, delivered: float) -> float:
    """Nanoseconds of the waves of tiles, as if device memory kept up."""
    time, tile, cluster = device.time, candidate.tile, candidate.cluster
    across_m = math.ceil(problem.m / (tile[0] * cluster[0]))
    across_n = math.ceil(problem.n / (tile[1] * cluster[1]))
    ctas = cluster[0] * cluster[1] * candidate.splits
    waves = math.ceil(across_m * across_n * problem.batch / device.resident_clusters(ctas))
    stages = math.ceil(problem.k / (tile[2] * candidate.splits))
    mainloop = stages * stage_ns(problem, candidate, device, waves, delivered)
    d_bytes = max((x.dtype.bytes for _, x in problem.outputs), default=2)
    # rows that the warpgroups of a tile store at once
    rows = 64 if candidate.pingpong else 128
    pieces = max(1, tile[0] // rows) * tile[1] / epilogue_columns(tile[1], d_bytes)
    store = tile[0] * tile[1] * d_bytes / time.store
    reads = any(min(x.rows, x.cols) > 1 for _, x in problem.inputs)
    visible = (time.inputs + pieces * time.input_piece) * reads
    if candidate.pingpong:
        narrow = epilogue_columns(tile[1], d_bytes) * d_bytes < NARROW_BYTES and not reads
        mainloop += time.turn
        beside = max(mainloop, pieces * time.piece + store)
        return waves * (beside + visible + pieces * time.narrow_piece * narrow) + store
    mainloop += time.tile + _sum_ns(candidate)
    return waves * (mainloop + pieces * time.piece + store + time.shared * visible)


def _sum_ns(candidate: Candidate) -> float:
    """Adding up the parts of K that the CTAs of a cluster hold: each sends and receives about a tile of fp32."""
    if candidate.splits == 1:
        return 0.0
    return SUM_NS + 4 * candidate.tile[0] * candidate.tile[1] / SUM_BYTES_PER_NS


def epilogue_columns(columns: int, element_bytes: int) -> int:
    """EPI_N: the widest piece of at most 128 bytes a row that divides a tile's output columns."""
    return next(n for n in (64, 32, 16, 8) if columns % n == 0 and n * element_bytes <= 128)


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
        return _load_ns(problem, dict(zip(kinds, chosen, strict=True)), widths, device)

    return dict(zip(kinds, min(itertools.product(*kinds.values()), key=cost), strict=True))


def _loads(problem: Problem, name: str, width: int) -> tuple[str, ...]:
    """What can load an operand that TMA cannot address, the first among equals first."""
    operand = getattr(problem, name)
    if not (operand.unit_row or operand.unit_col):
        return "relayout", "gather"
    return ("relayout", *(("cp_async",) if width else ()), "shift", "gather")


def _load_ns(problem: Problem, chosen: Mapping[str, str], widths: Mapping[str, int], device: Device) -> float:
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
    """Panels of eight clusters along M (or all there are): measured best or within 1 % on large squares."""
    rows = math.ceil(problem.m / (tile[0] * cluster[0]))
    return "m", max(1, min(8, rows))
