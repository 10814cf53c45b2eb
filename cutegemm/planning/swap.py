# SPDX-License-Identifier: Apache-2.0
"""Swapped operands: D^T = B^T A^T, planned as an ordinary product of the transposes.

N then lies along the instruction's 64 rows and M along its columns, which come in steps of 8: what few rows of D
want, and where weights are read at the speed of memory. The kernels see an ordinary product. Everything that a
spec, a plan and an error say is in D's coordinates; this module translates.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from cutegemm.arch.device import Device
from cutegemm.config.memory import Region
from cutegemm.epilogue.graph import Graph
from cutegemm.errors import PlanError, field_error
from cutegemm.planning import edges, invariance
from cutegemm.planning.candidates import (
    BLOCK_K,
    SHORT_K,
    Candidate,
    Order,
    Ranked,
    cut,
    has_given,
)
from cutegemm.planning.cuts import PARTS, launched, splits_for
from cutegemm.planning.given import SHAPING, gives
from cutegemm.planning.kernel_plan import KernelPlan
from cutegemm.planning.parts import Box
from cutegemm.planning.request import Request
from cutegemm.planning.steps import Multiply, Relayout, Step
from cutegemm.problems import Problem, round_up
from cutegemm.spec import AUTO, MAX_SPLITS, GemmSpec, Tile, tile_fault

OTHER = {"a": "b", "b": "a", "A": "B", "B": "A", "m": "n", "n": "m"}
# rows of D up to which the planner swaps by itself: beyond it both ways fill the instruction
MOST_ROWS = 64
# rows up to which it always does; beyond, where the tiles leave no more than this share of the SMs idle: at
# 64 x 10240 x 8192 80 tiles on 132 SMs lose to tiles that are not swapped
FEW_ROWS = 32
LEAST_FILL = 0.65
# times D's columns from which on K is that deep: at 64 x 4096 x 65536 parts of 64 x 128 take 133 us, swapped ones 145
DEEPEST = 8
# rows of the weights of a swapped tile, and its depth: every stage moves 16 KiB of them
SWAPPED_TILES = ((64, 128), (128, 64))
# stages of a part's mainloop below which the planner does not split K: at 16 x 4096 x 4096 two parts of 16 take
# 10 % longer than one of 32 on half the SMs
PART_STAGES = 32
# the same where threads load the weights, which is what bounds it: 16.4 us in two parts of 16 stages at
# 1 x 4097 x 4095, 22.9 in one (H200)
LOADED_STAGES = 8
# K up to which rows beyond FEW_ROWS are not swapped: 128 products of 64 x 128 x 64 take 3.4 us, swapped 3.9 (H200)
LEAST_K = 256
# times that parts of K on idle SMs must be predicted faster than the candidates of few rows: what is predicted of those
# is a third too long where they stream (16 x 2008 x 1368, H200), while 32 x 176 x 4296 takes 12.1 us on 3 of 132 SMs
# and 4.3 in 34 parts. Where no more than this share of the SMs would work, memory waits for their ports: there parts
# need be no more than predicted faster
OVERRULED = 1.5
IDLE = 0.25


def wanted(asked: Request) -> bool:
    """Whether to swap: as given, where only that fits a given tile, or where D has few rows."""
    spec, problem = asked.spec, asked.problem
    if isinstance(spec.swap, bool):
        return spec.swap
    if isinstance(spec.tile, Tile):
        return tile_fault(spec.tile) is not None
    if invariance.along_rows(asked):
        # a swapped kernel's partial results are of other columns
        return False
    if gives(spec, *SHAPING) or problem.m > MOST_ROWS or problem.m >= problem.n:
        return False
    if problem.m <= FEW_ROWS:
        return True
    if problem.k <= LEAST_K:
        # nothing streams
        return False
    if problem.k <= SHORT_K and edges.shared(problem, asked.device):
        # all of K is loaded at once, and lines that straddle are asked for by every CTA: 48 x 13760 x 504 takes 6.4 us
        # in 64 x 128 in 1 x 4, 7.2 without clusters either way round (H200)
        return False
    # of very deep K the parts of wide tiles fill the SMs, and read A less often
    return problem.k < DEEPEST * problem.n and _fill(asked) >= LEAST_FILL


def _fill(asked: Request) -> float:
    """Share of the SMs' time that the better of the swapped tiles' widths fills, with K in two parts at most."""
    problem, sms = asked.problem, asked.device.sms
    parts = 1 if asked.spec.batch_invariant is True or asked.spec.split_k == 1 else 2
    counts = [-(-problem.n // rows) * problem.batch for rows, _ in SWAPPED_TILES]
    shares = [x / (-(-x // sms) * sms) for x in counts]
    return max(parts * x if parts * x <= 1 else x for x in shares)


def transposed(asked: Request) -> Request:
    """The request for D's transpose."""
    return dataclasses.replace(
        asked,
        spec=_transposed_spec(asked.spec),
        problem=transposed_problem(asked.problem),
        epilogue=_transposed_epilogue(asked.epilogue),
        reasons=(*asked.reasons, "operands swapped: D's rows lie along the instruction's columns"),
    )


def transposed_problem(problem: Problem) -> Problem:
    """D^T = B^T A^T, with every matrix and vector of the epilogue transposed as well."""
    return dataclasses.replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=problem.b.transposed,
        b=problem.a.transposed,
        inputs=tuple((name, x.transposed) for name, x in problem.inputs),
        outputs=tuple((name, x.transposed) for name, x in problem.outputs),
    )


def in_d(made: KernelPlan, asked: Request) -> KernelPlan:
    """The plan of a transposed request as one of the request itself; applied twice it changes nothing."""
    m, n, batch = made.tiles
    return dataclasses.replace(
        made,
        spec=asked.spec,
        problem=asked.problem,
        steps=tuple(_step(x) for x in made.steps),
        tiles=(n, m, batch),
        smem=tuple(Region(_region(x.name), x.offset, x.size) for x in made.smem),
        boxes=tuple(Box(_region(x.operand), x.extents, x.count) for x in made.boxes),
    )


def error_in_d(error: PlanError) -> PlanError:
    """An error about a transposed request as one about the request itself."""
    field = error.field or "swap"
    rule = f"with operands swapped: {error.rule}"
    nearest = None if error.nearest is None else _value(field, error.nearest)
    return field_error(PlanError, _field(field), _value(field, error.value), rule, nearest)


def order_swapped(asked: Request, order: Order) -> Order:
    """Candidates for the transpose of a D of few rows, of those that have what is given, before those of an order.

    Args:
        asked: the transposed request.

    One CTA reads its rows of the weights; the tile whose longest CTA reads least is first, wide rows among equals.
    """

    def ordered(problem: Problem, device: Device, gates: int, rest: Sequence[Candidate]) -> Iterable[Ranked]:
        others = iter(order(problem, device, gates, rest))
        if problem.n > MOST_ROWS or not rest:
            return others
        few = found(dataclasses.replace(asked, problem=problem, device=device))
        own = [x for x in few if has_given(asked.spec, x.candidate)]
        if not own:
            return others
        # no order is asked for its best where that cannot overrule
        parted = any(x.splits > own[0].candidate.splits for x in rest)
        best = list(itertools.islice(others, int(parted)))
        if best and _overruled(problem, device, own[0].candidate, best[0].candidate):
            return itertools.chain(best, others, own)
        return itertools.chain(own, best, others)

    return ordered


def _overruled(problem: Problem, device: Device, own: Candidate, other: Candidate) -> bool:
    """Whether a candidate with more parts of K is predicted so much faster that idle SMs must be what its rival has."""
    if other.splits <= own.splits:
        return False
    # imports NumPy
    from cutegemm.planning.times import fastest_first

    mine, least = fastest_first(problem, device, [own, other])[1]
    ctas = -(-problem.m // own.tile[0]) * problem.batch * own.splits
    return mine > (1.0 if ctas <= IDLE * device.sms else OVERRULED) * least


def found(asked: Request) -> list[Ranked]:
    """The candidates of a transposed request that come first (`order_swapped`)."""
    problem, device = asked.problem, asked.device
    width = round_up(problem.n, 8)
    halves = 2 if asked.epilogue.gated else 1
    shapes = [(rows * halves, depth) for rows, depth in SWAPPED_TILES]

    def longest(shape: tuple[int, int]) -> tuple[int, int]:
        tiles = -(-problem.m // shape[0]) * problem.batch
        return -(-tiles // device.sms) * shape[0], -shape[0]

    # what was to be copied is seen as a copy (`Setting.seen`)
    loaded = problem.a.tma_reason() is not None
    stages = LOADED_STAGES if loaded else PART_STAGES
    ranked = []
    for rows, depth in sorted(shapes, key=longest):
        whole = Candidate((rows, width, depth), (1, 1), "cooperative", rows // (64 * halves))
        candidate = _cut(asked, whole, -(-problem.m // rows) * problem.batch, stages, loaded)
        why = f"few rows: {longest((rows, depth))[0]} columns of D a CTA at most"
        if whole.tile[2] == BLOCK_K and _bare(asked, candidate):
            ranked.append(Ranked(whole._replace(schedule="multistage"), why))
        ranked.append(Ranked(candidate, why))
    return ranked


def _bare(asked: Request, candidate: Candidate) -> bool:
    """Whether a kernel without a producer warp is faster: all of K is loaded before the first product anyway.

    48 x 13760 x 504 takes 7.1 us so, 7.6 with one, and 32 x 6328 x 384 as long; shorter K takes longer (H200).
    """
    # a producer warp is what loads constant operands early, and what takes works in turn
    if gives(asked.spec, "schedule", "consumers", "scheduler", "constant"):
        return False
    k, tiles = asked.problem.k, candidate.tiles(asked.problem) * candidate.splits
    return LEAST_K < k <= SHORT_K and candidate.splits == 1 and tiles <= asked.device.sms


def _cut(asked: Request, whole: Candidate, tiles: int, stages: int, loaded: bool) -> Candidate:
    """A candidate with K in parts that bring few tiles to all SMs, as long as each part is a mainloop worth the sum.

    Clusters add them up where the GPU holds as many at once; of deep K a launch does where that fills more SMs, or
    where threads load the weights: 61 x 3537 x 12459 takes 61 us in two parts so, 79 in clusters (H200).
    """
    spec, device = asked.spec, asked.device
    most = -(-asked.problem.k // whole.tile[2]) // stages
    spreads = launched(spec, asked.problem, device) and spec.split_reduction == AUTO
    wished = PARTS if spreads else splits_for(spec, asked.problem, device)
    fits = (x for x in wished if x <= most and tiles <= device.resident_clusters(x))
    parts = max(fits, default=wished[0])
    found = cut(spec, whole, parts, device.limits)
    spread = min(most, device.sms // tiles, MAX_SPLITS)
    if spreads and spread > 1 and (spread > parts or loaded):
        found = whole._replace(splits=spread, reduction="launch")
    return found


@functools.lru_cache(256)
def _transposed_epilogue(epilogue: Graph) -> Graph:
    return epilogue.transposed()


@functools.lru_cache(256)
def _transposed_spec(spec: GemmSpec) -> GemmSpec:
    """What the transposed request's planner reads of a spec; types, majors and epilogue have been checked."""
    checked = (
        "a_dtype",
        "b_dtype",
        "c_dtype",
        "d_dtype",
        "a_major",
        "b_major",
        "c_major",
        "d_major",
        "epilogue",
    )
    changed: dict[str, Any] = dict.fromkeys(checked, AUTO)
    for field in ("evict_first", "evict_last"):
        if isinstance(getattr(spec, field), tuple):
            changed[field] = tuple(sorted(OTHER.get(name, name) for name in getattr(spec, field)))
    if isinstance(spec.constant, tuple):
        changed["constant"] = tuple(OTHER[name] for name in spec.constant)
    changed |= {name: _value(name, getattr(spec, name)) for name in ("tile", "cluster", "raster")}
    return dataclasses.replace(spec, **changed, a_load=spec.b_load, b_load=spec.a_load, swap=False)


def _step(step: Step) -> Step:
    if isinstance(step, Relayout):
        copies = (dataclasses.replace(x, operand=OTHER[x.operand]) for x in step.copies)
        return dataclasses.replace(step, copies=tuple(copies))
    if isinstance(step, Multiply):
        first, second = step.factors
        return dataclasses.replace(step, factors=(second, first))
    return step


def _region(name: str) -> str:
    """What holds or brings an operand, "A" or "A words", by what it holds in D's coordinates."""
    first, *rest = name.split(" ")
    return " ".join([OTHER.get(first, first), *rest])


def _field(name: str) -> str:
    """A spec's field by the name that the transposed request has for it."""
    if name.startswith("tile."):
        return f"tile.{OTHER.get(name[-1], name[-1])}"
    return f"{OTHER[name[0]]}{name[1:]}" if name in ("a_load", "b_load", "m", "n") else name


def _value(name: str, value: Any) -> Any:
    """A value of a spec's field in the other coordinates."""
    if name == "tile" and isinstance(value, (Tile, tuple)):
        m, n, k = value
        return Tile(n, m, k)
    if name == "cluster" and isinstance(value, tuple):
        return (value[1], value[0], *value[2:])
    if name == "raster" and isinstance(value, tuple):
        return OTHER[value[0]], value[1]
    return value
