# SPDX-License-Identifier: Apache-2.0
"""Requests that kernels of a few rows or columns of D support (`planning.gemv_tiles`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cutegemm.arch.architectures import DEFAULT as LIMITS
from cutegemm.config.gemv import ELEMENT_BYTES, MOST_ROWS, TILES, WORD, GemvTile
from cutegemm.errors import PlanError, field_error
from cutegemm.problems import Problem
from cutegemm.request import swap
from cutegemm.request.operand_rules import access_bytes
from cutegemm.request.requirements import MATRICES, Request
from cutegemm.spec import AUTO, TENSOR_CORE_FIELDS, Tile
from cutegemm.spec.rules import unlisted

WORD_BYTES = WORD * ELEMENT_BYTES
# below 15, an unaligned column whose first word begins at its eighth element would have less than no words
LEAST_K = 16
# elements along N and K that the kernel's 32-bit integers count, rounded up to any tile
MOST = LIMITS.max_extent - max(x for tile in TILES for x in tile.tile)
# what `as_rows` checks
NEEDS = (
    f"D of at most {MOST_ROWS} rows or columns, 16-bit operands contiguous along K with K of {LEAST_K:,} to {MOST:,}, "
    "the one of few rows aligned to 16 bytes, an epilogue without gates, scales and reductions, and no stages, "
    "split_k or batch_invariant"
)
# fields that only other kernels have
OTHERS = (*TENSOR_CORE_FIELDS, "stages", "split_k")


def as_rows(asked: Request) -> Request | None:
    """The request with D's few rows along M, of D's transpose if D has few columns; None if these kernels lack it."""
    problem, spec, graph = asked.problem, asked.spec, asked.epilogue
    if min(problem.m, problem.n) > MOST_ROWS or asked.batches != MATRICES:
        return None
    if not LEAST_K <= problem.k <= MOST or problem.a.dtype.bytes != ELEMENT_BYTES:
        return None
    if graph.gated or graph.reductions or graph.scales or spec.batch_invariant is True:
        return None
    # a tile without a schedule is one of the tensor cores
    if spec.schedule != "simt" and (spec.schedule != AUTO or isinstance(spec.tile, Tile)):
        return None
    if any(getattr(spec, x) != AUTO for x in OTHERS):
        return None
    ways: list[Request] = [asked] if problem.m <= MOST_ROWS else []
    ways += [swap.transposed(asked)] if problem.n <= MOST_ROWS else []
    for of in sorted(ways, key=lambda x: x.problem.m):
        a, b = of.problem.a, of.problem.b
        if allowed(of) and a.unit_col and b.unit_row and a.align % WORD_BYTES == 0 and of.problem.n <= MOST:
            return of
    return None


def allowed(of: Request) -> Sequence[GemvTile]:
    """The tiles of a request with D's few rows along M that a grid holds: the given one, or those of as many rows."""
    rows, given, most = of.problem.m, of.spec.tile, of.device.limits.max_grid // max(1, of.problem.batch)
    tiles = [x for x in TILES if x.ctas(of.problem.n) <= most]
    if isinstance(given, Tile):
        return [x for x in tiles if x.tile == tuple(given) and x.rows >= rows]
    return [x for x in tiles if x.rows == rows]


def few(problem: Problem) -> str:
    """D's rows, or its columns if these are fewer, in words."""
    count, name = min((problem.m, "row"), (problem.n, "column"))
    return f"{count} {name}{'' if count == 1 else 's'}"


def refusal(asked: Request) -> PlanError | None:
    """Why no kernel of few rows has a given tile of so few rows or columns; None if the tile has more or is none."""
    given, problem = asked.spec.tile, asked.problem
    if (
        not isinstance(given, Tile)
        or problem.a.dtype.bytes != ELEMENT_BYTES
        or min(given.m, given.n) > MOST_ROWS
    ):
        return None
    of = as_rows(dataclasses.replace(asked, spec=dataclasses.replace(asked.spec, tile=AUTO)))
    if of is None:
        rule = f"a tile of at most {MOST_ROWS} rows or columns needs {NEEDS}"
        return field_error(PlanError, "tile", given, rule)
    turned = of.factors != asked.factors
    tiles = [(x.columns, x.rows, x.tile[2]) if turned else x.tile for x in allowed(of)]
    rule = f"tiles of the CUDA cores for D with {few(problem)} are {{}}; tiles with more of these are allowed, too"
    return unlisted(given, tiles, rule)


def aligned(of: Request) -> bool:
    """Whether all rows of A and all columns of B begin and end at words of a load."""
    return all(access_bytes(x, (WORD_BYTES,), whole=True) > 0 for x in (of.problem.a, of.problem.b))


def has_rivals(of: Request) -> bool:
    """Whether operands are constant, and kernels of the tensor cores are weighed, too."""
    return of.spec.constants != () and of.spec.schedule == AUTO


def compared(of: Request) -> Sequence[GemvTile]:
    """The tiles that are weighed: all that are allowed, but beside tensor-core kernels none that loads constant B late.

    After another library's kernel an early start gains more than the model predicts. Kernels of the tensor cores do not
    load unaligned operands early, so there no tile is left out.
    """
    early_rivals = has_rivals(of) and "b" in of.spec.constants and aligned(of)
    return [x for x in allowed(of) if not early_rivals or early_operands(of, x)]


def early_operands(of: Request, x: GemvTile) -> tuple[str, ...]:
    """The constant operand that a tile's kernel loads before earlier launches have ended: an aligned B.

    What is loaded early is the first block of K. If one row has many blocks, that is too little to pay.
    """
    constant = "b" in of.spec.constants
    short = x.rows > 1 or of.problem.k <= of.device.thresholds.early_blocks * x.tile[2]
    return ("b",) if constant and short and aligned(of) else ()
