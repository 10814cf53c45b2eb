# SPDX-License-Identifier: Apache-2.0
"""Few rows of D without swapping: tiles 64 x n, whose n is what gives every SM an equal share of B.

Swapped operands cut N into 64 or 128, which seldom fills the SMs: 64 tiles at N = 4096, 160 at 10240. Columns of a
tile that is not swapped come in steps of 8, and TMA's box of A has the rows there are (`boxes`), so that what an SM
takes is its share of B and little more.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutegemm.arch.device import Device
from cutegemm.planning import boxes, swap
from cutegemm.planning.candidates import Candidate, Order, Ranked
from cutegemm.planning.request import Request
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, TILE_N_STEP

# rows of D up to which such tiles are considered
MOST_ROWS = 32
# what TMA brings into an SM that only streams: 80 CTAs take 10240 x 8192 at M = 1 in 40.9 us on an H200, 2.5 of them
# the launch's
TMA_BYTES_PER_NS = 58.0
# waves of tiles that are considered
WAVES = (1, 2, 3)
# columns of B in 64-byte rows, where B is contiguous along them: shorter rows cost TMA more than balance gains
N_MAJOR_STEP = 32
# elements along K of a stage, as long as four of them fit
DEPTHS = (128, 64)
LEAST_STAGES = 4


def preferred(asked: Request) -> bool:
    """Whether such a tile is predicted to beat swapped operands, for a request that would swap them by itself."""
    own = found(asked)
    if asked.spec.swap is True or not own:
        return False
    turned = swap.transposed(asked)
    rival = swap.found(turned)[0].candidate
    ns = stream_ns(asked.problem, asked.device, own[0])
    return ns < stream_ns(turned.problem, asked.device, rival)


def order_narrow(asked: Request, order: Order) -> Order:
    """Such tiles before the candidates of an order, where D has few rows."""
    own = found(asked)

    def ordered(problem: Problem, device: Device, gates: int, rest: Sequence[Candidate]) -> list[Ranked]:
        first = [
            Ranked(x, f"few rows: B streams in {stream_ns(problem, device, x) / 1e3:,.1f} us") for x in own
        ]
        return [*first, *order(problem, device, gates, rest)]

    return ordered if own else order


def found(asked: Request) -> list[Candidate]:
    """Tiles 64 x n for a request of few rows that leaves its tile open, fastest first; none for any other.

    Nor where such tiles are too few for the SMs: there the order's candidates cut K.
    """
    spec, problem, device = asked.spec, asked.problem, asked.device
    shaped = any(getattr(spec, name) != AUTO for name in swap.SHAPING)
    if not boxes.NARROW_TILES or shaped or problem.m > MOST_ROWS or asked.epilogue.gated:
        return []
    n_major = problem.b.unit_col and not problem.b.unit_row
    parts = spec.split_k if isinstance(spec.split_k, int) else 1
    if problem.k <= boxes.RING_STAGES * DEPTHS[0] * parts:
        # boxes are whole
        return []
    step, rows = N_MAJOR_STEP if n_major else TILE_N_STEP, device.limits.mma_m
    widths = {round_up(-(-problem.n * problem.batch // (device.sms * x)), step) for x in WAVES}
    tiles = [
        Candidate((rows, n, _depth(rows + n, problem, device)), (1, 1), "cooperative", 1, parts)
        for n in sorted(widths, reverse=True)
        if n <= device.limits.mma_max_n
        and -(-problem.n // n) * problem.batch * parts >= swap.LEAST_FILL * device.sms
    ]
    return sorted(tiles, key=lambda x: stream_ns(problem, device, x))


def stream_ns(problem: Problem, device: Device, candidate: Candidate) -> float:
    """Nanoseconds that a kernel needs to bring its operands into shared memory, its launch included."""
    (m, n, depth), parts = candidate.tile, candidate.splits
    tiles = -(-problem.m // m) * -(-problem.n // n) * problem.batch * parts
    rows = (boxes.box_rows(problem.m, m, candidate.cluster[1]) or m) + n
    each = -(-problem.k // (depth * parts)) * depth * rows * problem.a.dtype.bytes
    taken = -(-tiles // device.sms) * each / TMA_BYTES_PER_NS
    return max(taken, problem.min_bytes / device.dram_gbs) + device.time.launch


def _depth(rows: int, problem: Problem, device: Device) -> int:
    room = device.limits.smem_bytes // LEAST_STAGES
    fits = (x for x in DEPTHS if x * rows * problem.a.dtype.bytes <= room)
    return next(fits, DEPTHS[-1])
