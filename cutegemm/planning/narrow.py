# SPDX-License-Identifier: Apache-2.0
"""Few rows of D without swapping: tiles 64 x n, whose n is what gives every SM an equal share of B.

Swapped operands cut N into 64 or 128, which seldom fills the SMs: 64 tiles at N = 4096, 160 at 10240. Columns of a
tile that is not swapped come in steps of 8, and TMA's box of A has the rows there are (`boxes`), so that what an SM
takes is its share of B and little more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cutegemm.arch.device import Device
from cutegemm.planning import boxes, swap
from cutegemm.planning.candidates import SUM_BYTES_PER_NS, Candidate, Order, Ranked, cut
from cutegemm.planning.given import SHAPING, WALKING, gives
from cutegemm.planning.kernel import trigger
from cutegemm.planning.request import Request
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, TILE_N_STEP, GemmSpec

# rows of D and columns of a tile up to which such tiles are considered; columns from which they are taken by
# themselves, rows up to which in several waves: as measured
MOST_ROWS = 64
MOST_COLUMNS = 128
LEAST_COLUMNS = 32
WAVES_ROWS = 32
# columns of B in rows of 128 bytes, or of 64 where those fill too few SMs, where B is contiguous along them: shorter
# rows cost TMA more than balance gains (at 1 x 6144 x 4096 64 x 48 takes 17.7 us, 64 x 64 13.9)
N_MAJOR_STEPS = (64, 32)
# elements along K of a stage, as long as four of them fit
DEPTHS = (128, 64)
LEAST_STAGES = 4

# of a kernel that only streams, fitted to 27 layers of 1 to 32 rows (H200): what memory delivers beside a copy's rate,
# and TMA to an SM; the shortest stage; how sharply the larger of both takes over
READ_RATE = 1.055
TMA_BYTES_PER_NS = 150.0
STAGE_NS = 90.0
BEND = 4
# of zeroing the rest of a ring
REST_NS = 200.0
# of a launch (beside the device's) and of a cluster's sum over parts of K (beside its bytes), by whether the next one
# begins beneath it
END_NS = {False: 750.0, True: 0.0}
SUM_NS = {False: 2000.0, True: 950.0}
# memory's rate falls by this power of the share of SMs that stream. More where the next grid begins on those that are
# free: it fills both of a TPC, which then share a port
STREAM_FILL = {False: 0.05, True: 0.22}


def _preferred(asked: Request, own: Candidate) -> bool:
    """Whether such a tile is predicted to beat swapped operands, where neither is given.

    Only for what was measured: weights contiguous along K, whole K, no fewer columns.
    """
    if asked.spec.swap != AUTO or not asked.problem.b.unit_row:
        return False
    if own.splits > 1 or own.tile[1] < LEAST_COLUMNS:
        return False
    turned = swap.transposed(asked)
    rival = swap.found(turned)[0].candidate
    return rival.reduction != "launch" and stream_ns(asked, own) < stream_ns(turned, rival)


def taken(asked: Request) -> list[Candidate]:
    """Such a tile, where it is preferred or swapping is ruled out; none elsewhere."""
    return [x for x in found(asked) if asked.spec.swap is False or _preferred(asked, x)]


def mirrored(asked: Request) -> list[Candidate]:
    """Such a tile for the transpose of few columns, where A is too large for L2; none elsewhere.

    6680 x 16 x 4792 takes 20.4 us in 64 x 56 swapped, 22.5 in pairs of 64 x 32; 13504 x 16 x 1784 15.5 and 16.2,
    12992 x 8 x 3624 26.1 and 28.8. Of an A that L2 holds pairs share what all CTAs ask for at once, few lines of B:
    4440 x 24 x 1048 5.4, swapped 6.8 (H200).
    """
    spec, problem = asked.spec, asked.problem
    few = problem.n <= MOST_ROWS < problem.m and 2 * problem.a.bytes > asked.device.l2_bytes
    if not few or spec.swap != AUTO or spec.batch_invariant is True or _shaped(spec):
        return []
    turned = found(swap.transposed(asked)) if problem.a.unit_col else []
    return [x for x in turned if x.splits == 1 and x.tile[1] >= LEAST_COLUMNS]


def order_narrow(asked: Request, own: Sequence[Candidate], order: Order, *, swapped: bool = False) -> Order:
    """What is `taken`, before the candidates of an order; `swapped`: what is `mirrored`, for the transpose."""
    few, streams = ("columns", "A") if swapped else ("rows", "B")

    def ordered(problem: Problem, device: Device, gates: int, rest: Sequence[Candidate]) -> Iterator[Ranked]:
        seen = swap.transposed(asked) if swapped and own else asked
        for x in own:
            yield Ranked(x, f"few {few}: {streams} streams in {stream_ns(seen, x) / 1e3:,.1f} us")
        yield from order(problem, device, gates, rest)

    return ordered if own else order


def found(asked: Request) -> list[Candidate]:
    """The tile 64 x n for a request of few rows that leaves its tile open; none for any other.

    In as few waves as its columns allow. Nor where such tiles are too few for the SMs, or K is very deep beside N:
    there the order's candidates cut K.
    """
    problem = asked.problem
    deep = problem.k >= swap.DEEPEST * problem.n
    if problem.m > MOST_ROWS or deep or asked.epilogue.gated or not _plain(asked):
        return []
    n_major = problem.b.unit_col and not problem.b.unit_row
    tiles = (_tile(asked, step) for step in (N_MAJOR_STEPS if n_major else (TILE_N_STEP,)))
    return [x for x in tiles if _fills(asked, x)][:1]


def _tile(asked: Request, step: int) -> Candidate:
    """The tile whose columns are an equal share for every SM, in steps of some."""
    spec, problem, device = asked.spec, asked.problem, asked.device
    parts = spec.split_k if isinstance(spec.split_k, int) else 1
    columns, rows = problem.n * problem.batch * parts, device.limits.mma_m
    waves = -(-columns // (device.sms * MOST_COLUMNS))
    n = round_up(-(-columns // (device.sms * waves)), step)
    tile = (rows, n, _depth(rows + n, problem, device))
    return cut(spec, Candidate(tile, (1, 1), "cooperative", 1), parts, device.limits)


def _fills(asked: Request, tile: Candidate) -> bool:
    """Whether tiles are enough for the SMs, and not too many for their rows, and each part of K more than a ring's."""
    problem, sms = asked.problem, asked.device.sms
    tiles = tile.tiles(problem) * tile.splits
    waved = problem.m > WAVES_ROWS and tiles > sms
    return (
        tiles >= swap.LEAST_FILL * sms
        and not waved
        and problem.k > boxes.RING_STAGES * tile.tile[2] * tile.splits
    )


def stream_ns(asked: Request, candidate: Candidate) -> float:
    """Nanoseconds that a kernel needs to bring its operands into shared memory, its launch included."""
    problem, device = asked.problem, asked.device
    tiles, narrow = candidate.tiles(problem) * candidate.splits, _box_rows(problem, candidate)
    beneath = trigger(asked.spec, problem, candidate, device.sms) != "never"
    waves = -(-tiles // device.sms)
    fill = tiles / (waves * device.sms)
    if beneath:
        # a grid of few CTAs leaves room for as many of the next one
        fill *= max(1, int(1 / fill))
    read = problem.min_bytes / (device.dram_gbs * READ_RATE * fill ** STREAM_FILL[beneath])
    (m, n, depth), parts = candidate.tile, candidate.splits
    stage = max(STAGE_NS, ((narrow or m) + n) * depth * problem.a.dtype.bytes / TMA_BYTES_PER_NS)
    taken = waves * -(-problem.k // (depth * parts)) * stage
    beside = device.time.launch + END_NS[beneath] + REST_NS * (narrow > 0)
    if parts > 1:
        beside += SUM_NS[beneath] + 4 * m * n / SUM_BYTES_PER_NS
    return float((read**BEND + taken**BEND) ** (1 / BEND) + beside)


def _shaped(spec: GemmSpec) -> bool:
    """Whether a given field says how the planner should cut D."""
    return gives(spec, *SHAPING, *WALKING)


def _plain(asked: Request) -> bool:
    """Whether a request leaves its tile open and TMA loads both operands, A's box by its rows."""
    spec, problem = asked.spec, asked.problem
    loads = ((spec.a_load, problem.a), (spec.b_load, problem.b))
    by_tma = all(load in (AUTO, "tma") and x.tma_reason() is None for load, x in loads)
    return problem.a.unit_col and by_tma and not _shaped(spec)


def _box_rows(problem: Problem, candidate: Candidate) -> int:
    m, _, depth = candidate.tile
    return boxes.box_rows(problem, m, candidate.cluster[1], depth * candidate.splits)


def _depth(rows: int, problem: Problem, device: Device) -> int:
    room = device.limits.smem_bytes // LEAST_STAGES
    fits = (x for x in DEPTHS if x * rows * problem.a.dtype.bytes <= room)
    return next(fits, DEPTHS[-1])
